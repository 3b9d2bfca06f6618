"""Write docs/gpu.md and its plots from the results of python -m scripts.gpu in docs/results.

    .venv/bin/python -m scripts.gpu.results [--docs docs]

Of each device the newest result is shown. Rows that it lacks are shown as "compiled, not run" or "not run".
"""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from scripts.gpu.cells import Result
from scripts.gpu.plots import plot_attention, plot_steps
from scripts.gpu.tables import sections

DOCS = Path(__file__).resolve().parents[2] / "docs"
INTRO = """# Figures of GPUs

Made by `python -m scripts.gpu.results` from the files that `python -m scripts.gpu` leaves in docs/results;
[gpu_check.md](gpu_check.md) says what the rows mean. "Of the floor" is max(bytes / copy rate, FLOPs / matrix rate) over
the time taken, with the rates that the same machine reached in the same run.
"""
_DATED = re.compile(r"-(\d{4}-\d\d-\d\d)(?:-(\d+))?$")
NOTHING = """
**Nothing here has run on a GPU yet.** The tables show what will be measured.
"""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", type=Path, default=DOCS, metavar="DIR", help="default: %(default)s")
    docs = parser.parse_args(arguments).docs
    (docs / "gpu.md").write_text(page(docs))
    print(f"written: {docs / 'gpu.md'}")
    return 0


def page(docs: Path) -> str:
    """Return the whole page, and write its plots beside it."""
    newest = find_results(docs / "results")
    if not newest:
        return "\n".join([INTRO + NOTHING, "\n\n".join(sections(Result({}))), ""])
    return "\n".join([INTRO, "\n\n".join(_device(path, result, docs) for path, result in newest.items()), ""])


def find_results(directory: Path) -> dict[Path, Result]:
    """Return the newest result of each device, by its file, without dry runs and files of other kinds."""
    newest: dict[str, tuple[Path, Result]] = {}
    for path in sorted(directory.glob("*.json"), key=_age):
        about = json.loads(path.read_text())
        if "ceilings" in about and not about["dry_run"]:
            newest[about["device"]] = path, Result(about)
    return dict(newest.values())


def _age(path: Path) -> tuple[str, int]:
    """Return date and number of a file <device>-<date>[-n].json."""
    found = _DATED.search(path.stem)
    return (found[1], int(found[2] or 1)) if found else ("", 0)


def _device(path: Path, result: Result, docs: Path) -> str:
    about = result.about
    text = [f"## {about['device']}", _origin(path, about)]
    for name, plot in (("steps", plot_steps), ("attention", plot_attention)):
        image = docs / f"gpu-{_DATED.sub('', path.stem)}-{name}.png"
        if plot(result, image):
            text.append(f"![{name}]({image.name})")
    return "\n\n".join([*text, *sections(result)])


def _origin(path: Path, about: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {about['versions'][name]}" for name in ("jax", "jaxlib") if name in about["versions"])
    return f"{_age(path)[0]}, commit `{about['commit']}`, {versions}; results/{path.name}."


if __name__ == "__main__":
    sys.exit(main())
