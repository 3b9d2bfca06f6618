"""Show for each family what agrees with transformers, and with itself in all circumstances.

docs/reports/2026-11-28-parity.md has the table.

Each row is one recorded checkpoint of tests/data/goldens, that with most of its family's own. Everything runs on the
CPU; what is found is added to a file of JSON lines as it comes, and rows that are there are not made again.

    .venv/bin/python -m scripts.measure.families docs/results/families.jsonl
    .venv/bin/python -m scripts.measure.families docs/results/families.jsonl --only qwen3_bias,gemma3
    .venv/bin/python -m scripts.measure.families docs/results/families.jsonl --table
"""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from jaxgen.core.model_config import DType
from jaxgen.kernels.choice import REFERENCE, native
from jaxgen.kernels.kernels import Kernels
from pallas_kernels.cpu.loading import load
from tests.support import family_checks as checks
from tests.support.golden_runs import SMALL, load_golden, relative_logit_error
from tests.support.goldens import NAMES, OF_FAMILIES, golden_answers, transformers_bfloat16
from tests.support.paths import ROOT

Row = dict[str, Any]


def measure(name: str, native_kernels: Kernels) -> Row:
    """Return what is found of one checkpoint."""
    config, params = load_golden(name)
    answers = golden_answers(name)
    row: Row = {"name": name, "family": config.family}  # type: ignore[attr-defined]
    for kernels in (REFERENCE, native_kernels):
        short = "XLA" if kernels is REFERENCE else "native"
        row[f"float32_{short}"] = relative_logit_error(config, params, answers, SMALL, kernels)
        row[f"bfloat16_{short}"] = checks.bfloat16_error(name, kernels)
        dtype: DType = "float32" if kernels is REFERENCE else "bfloat16"
        scenarios = checks.verified(name, dtype, kernels)
        row[f"verified_{short}"] = [sum(one.passed for one in scenarios), len(scenarios)]
        row[f"offloaded_{short}"] = checks.offloaded_is_right(name, kernels)
        row[f"streamed_{short}"] = checks.streamed_is_right(name, kernels)
    row["greedy"] = checks.greedy_is_right(name)
    row["preempted"] = checks.greedy_is_right(name, checks.TIGHT, 2)
    row["converted"] = checks.converted_is_right(name)
    return row


def lines_of(family: str) -> int:
    """Return the lines of the family's file."""
    return len((ROOT / "weights" / "families" / "decoders" / f"{family}.py").read_text().splitlines())


HEADER = (
    "| family | float32, XLA / native | bfloat16, XLA / native / transformers | greedy | preempted | converted "
    "| offloaded | streamed | verified, XLA / native | lines |"
)


def table(rows: Iterable[Row]) -> list[str]:
    """Return the rows as a table in Markdown."""
    lines = [HEADER, "|---|---|---|---|---|---|---|---|---|---:|"]
    for row in rows:
        name = row["name"]
        cells = [
            name if name == row["family"] else f"{row['family']} ({name})",
            " / ".join(f"{row[f'float32_{short}']:.0e}".replace("e-0", "e-") for short in ("XLA", "native")),
            f"{row['bfloat16_XLA']:.4f} / {row['bfloat16_native']:.4f} / {transformers_bfloat16(name):.4f}",
            "equal" if row["greedy"][0] else "DIFFER",
            f"equal, {row['preempted'][1]}" if row["preempted"][0] else "DIFFER",
            "equal" if row["converted"] else "DIFFER",
            f"equal, {row['offloaded_native'][1]}" if _all(row, "offloaded", 0) else "DIFFER",
            f"equal, {_bits(row)}" if _all(row, "streamed", 0) else "DIFFER",
            " / ".join("{} of {}".format(*row[f"verified_{short}"]) for short in ("XLA", "native")),
            str(lines_of(row["family"])),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _bits(row: Row) -> str:
    """Return with which kernels the bits of a streamed cache are those of one on the device, too."""
    equal = [short for short in ("XLA", "native") if row[f"streamed_{short}"][1]]
    return "bits too" if len(equal) == 2 else f"bits too if {equal[0]}" if equal else "no bits"


def _all(row: Row, what: str, index: int) -> bool:
    return all(row[f"{what}_{short}"][index] for short in ("XLA", "native"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="JSON lines")
    parser.add_argument("--only", metavar="NAME,...", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--table", action="store_true", help="make the table of what the file has")
    args = parser.parse_args()
    text = args.file.read_text() if args.file.exists() else ""
    rows: dict[str, Row] = {row["name"]: row for row in map(json.loads, text.splitlines())}
    if not args.table:
        with TemporaryDirectory() as folder:
            kernels = native(load(Path(folder)))
        for name in args.only.split(",") if args.only else OF_FAMILIES:
            if name not in rows:
                rows[name] = measure(name, kernels)
                with args.file.open("a") as file:
                    file.write(json.dumps(rows[name]) + "\n")
    print("\n".join(table(rows.values())))


if __name__ == "__main__":
    main()
