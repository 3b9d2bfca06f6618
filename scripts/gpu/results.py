"""Write docs/gpu.md with its plots, and docs/gpu_bill.md, from the results in docs/results.

The results are those of python -m scripts.gpu and of python -m scripts.gpu.bills.

    .venv/bin/python -m scripts.gpu.results [--docs docs]

The page shows the newest result of each device. A row that did not run there comes from the newest result in which it
ran, and the page lists such rows. Other rows are shown as "compiled, not run" or "not run".
"""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from scripts.gpu import bill_page
from scripts.gpu.cells import Result
from scripts.gpu.plots import plot_attention, plot_steps
from scripts.gpu.report import State
from scripts.gpu.tables import listed, sections

DOCS = Path(__file__).resolve().parents[2] / "docs"
INTRO = """# Figures of GPUs

`python -m scripts.gpu.results` makes this page from the files that `python -m scripts.gpu` leaves in docs/results.
[gpu_check.md](gpu_check.md) says what the rows mean.

The *floor* is max(bytes / copy rate, FLOPs / matrix rate), with the rates that the same machine reached in the same
run. "Of the floor" is the floor over the time taken. The *bill* is explained in [gpu_bill.md](gpu_bill.md).
"""
_DATED = re.compile(r"-(\d{4}-\d\d-\d\d)(?:-(\d+))?$")
NOTHING = """
**Nothing here has run on a GPU yet.** The tables show what will be measured.
"""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", type=Path, default=DOCS, metavar="DIR", help="default: %(default)s")
    docs = parser.parse_args(arguments).docs
    pages = {docs / "gpu.md": page(docs)} | ({docs / "gpu_bill.md": of} if (of := bill(docs)) is not None else {})
    for path, text in pages.items():
        path.write_text(text)
        print(f"written: {path}")
    return 0


def bill(docs: Path) -> str | None:
    """Return the page of bills, compared with the newest rows of an H200; None without bills or such rows."""
    measured, path = find_results(docs / "results").get("NVIDIA H200"), docs / "results" / bill_page.BILLS
    if measured is None or not path.exists():
        return None
    return bill_page.page(json.loads(path.read_text()), newest_rows(measured)[0])


def page(docs: Path) -> str:
    """Return the whole page, and write its plots next to it."""
    devices = find_results(docs / "results")
    if not devices:
        return "\n".join([INTRO + NOTHING, "\n\n".join(sections(Result({}))), ""])
    return "\n".join([INTRO, "\n\n".join(_device(files, docs) for files in devices.values()), ""])


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


def _device(files: dict[Path, Any], docs: Path) -> str:
    header, older = newest_rows(files)
    path, result = list(files)[-1], Result(header)
    text = [f"## {header['device']}", _origin(path, header)]
    for earlier in dict.fromkeys(older.values()):
        names = listed(name for name, of in older.items() if of == earlier)
        text.append(f"These rows are from an earlier run, {_origin(earlier, files[earlier])}\n\n{names}")
    for name, plot in (("steps", plot_steps), ("attention", plot_attention)):
        image = docs / f"gpu-{_DATED.sub('', path.stem)}-{name}.png"
        if plot(result, image):
            text.append(f"![{name}]({image.name})")
    return "\n\n".join([*text, *sections(result)])


def _origin(path: Path, header: dict[str, Any]) -> str:
    versions = ", ".join(
        f"{name} {header['versions'][name]}" for name in ("jax", "jaxlib") if name in header["versions"]
    )
    return f"{_age(path)[0]}, commit `{header['commit']}`, {versions}; results/{path.name}."


if __name__ == "__main__":
    sys.exit(main())
