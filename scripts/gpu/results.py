"""Write the pages gpu.md and gpu_bill.md from the results that lie next to them in docs/results.

The results are those of python -m scripts.gpu and of python -m scripts.gpu.bills.

    .venv/bin/python -m scripts.gpu.results [--docs docs]

The pages show the newest result of each device. A row that did not run there comes from the newest result in which it
ran, and gpu.md lists such rows.
"""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from scripts.gpu.page import estimate as estimate_page
from scripts.gpu.page.cells import Result
from scripts.gpu.page.checks import listed
from scripts.gpu.page.figures import sections
from scripts.gpu.result.report import State

DOCS = Path(__file__).resolve().parents[2] / "docs"
TITLE = "# Figures of GPUs"
ABOUT = """## About this page

`python -m scripts.gpu.results` makes this page from the files that `python -m scripts.gpu` leaves in docs/results.
[gpu_check.md](../gpu_check.md) says what the rows mean.

The *floor* is max(bytes / copy rate, FLOPs / matrix rate), with the rates that the same machine reached in the same
run. "Of the floor" is the floor over the time taken. [gpu_bill.md](gpu_bill.md) explains the *roofline estimate*.
Columns without a value are left out."""
_DATED = re.compile(r"-(\d{4}-\d\d-\d\d)(?:-(\d+))?$")
NOTHING = "**Nothing here has run on a GPU yet.**"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", type=Path, default=DOCS, metavar="DIR", help="default: %(default)s")
    docs = parser.parse_args(arguments).docs
    for name, text in pages(docs / "results").items():
        path = docs / "results" / name
        path.write_text(text)
        print(f"written: {path}")
    return 0


def pages(results: Path) -> dict[str, str]:
    """Return the text of each page by its name. The roofline estimate needs its own results and rows of an H200."""
    devices, bills = find_results(results), results / estimate_page.BILLS
    figures = [TITLE, *(map(_device, devices.values()) if devices else [NOTHING]), ABOUT]
    texts = {"gpu.md": "\n\n".join(figures) + "\n"}
    measured = devices.get("NVIDIA H200")
    if measured is not None and bills.exists():
        texts["gpu_bill.md"] = estimate_page.page(json.loads(bills.read_text()), newest_rows(measured)[0])
    return texts


def find_results(directory: Path) -> dict[str, dict[Path, Any]]:
    """Return the results of each device by file, the oldest first, without dry runs and files of other kinds."""
    result: dict[str, dict[Path, Any]] = {}
    for path in sorted(directory.glob("*.json"), key=_age):
        header = json.loads(path.read_text())
        if "ceilings" in header and not header["dry_run"]:
            result.setdefault(header["device"], {})[path] = header
    return result


def newest_rows(files: dict[Path, Any]) -> tuple[dict[str, Any], dict[str, Path]]:
    """Return the newest file's result with the rows that ran in older files only, and the file of each such row."""
    ran: dict[str, tuple[Any, Path]] = {}
    for path, header in files.items():
        ran |= {row["name"]: (row, path) for row in header["rows"] if row["state"] == State.RAN}
    newest, header = list(files.items())[-1]
    rows = {row["name"]: row for row in header["rows"]} | {name: row for name, (row, _) in ran.items()}
    older = {name: path for name, (_, path) in ran.items() if path != newest}
    return header | {"rows": list(rows.values())}, older


def _age(path: Path) -> tuple[str, int]:
    """Return date and number of a file <device>-<date>[-n].json."""
    match = _DATED.search(path.stem)
    return (match[1], int(match[2] or 1)) if match else ("", 0)


def _device(files: dict[Path, Any]) -> str:
    """Return the sections of a device: what is in short, where the rows are from, and the tables."""
    header, older = newest_rows(files)
    path = list(files)[-1]
    short, *tables = sections(Result(header)) or [""]
    origin = [f"### Where the rows are from\n\n{_origin(path, header)}"]
    for earlier in dict.fromkeys(older.values()):
        names = listed(name for name, of in older.items() if of == earlier)
        origin.append(f"These rows are from an earlier run, {_origin(earlier, files[earlier])}\n\n{names}")
    return "\n\n".join([f"## {header['device']}", short, *tables, *origin])


def _origin(path: Path, header: dict[str, Any]) -> str:
    versions = ", ".join(
        f"{name} {header['versions'][name]}" for name in ("jax", "jaxlib") if name in header["versions"]
    )
    return f"{_age(path)[0]}, commit `{header['commit']}`, {versions}; docs/results/{path.name}."


if __name__ == "__main__":
    sys.exit(main())
