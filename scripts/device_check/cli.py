"""Measure this machine's device and check the engine on it.

Writes DIR/<device>-<date>.json anew after every row. All parts together take less than nine minutes on a device; each
has a budget, to which comes what the parts before it left, and rows that would exceed it are cut and say so. Parts run
in processes of their own: one that crashes or hangs loses its part, and those after it run with XLA's kernels.

Exit status: 0 everything asked for, that this machine has what it takes for, ran and held; 1 a check failed or a row
raised; 3 nothing failed, but rows were cut.
"""

import argparse
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

from scripts.device_check.header import output_of, versions
from scripts.device_check.plan import PARTS
from scripts.device_check.report import Report
from scripts.device_check.supervisor import RefusedError, Supervisor

FAILED, CUT_SHORT = 1, 3


def main(arguments: list[str] | None = None) -> int:
    """Run the parts asked for; the exit status says how it went."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the result goes; made if need be")
    parser.add_argument("--commit", help="hash to record (default: what git says)")
    parser.add_argument("--parts", default=",".join(PARTS), help="comma-separated, of: %(default)s")
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes, to see that everything works; any device")
    options = parser.parse_args(arguments)
    asked = options.parts.split(",")
    if unknown := [name for name in asked if name not in PARTS]:
        parser.error(f"--parts has {unknown[0]!r}; the parts are {', '.join(PARTS)}")
    make_report = partial(_make_report, options.out, options.commit, options.dry_run)
    names = [name for name in PARTS if name in asked]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(FAILED))  # so that what runs is ended too
    try:
        report = Supervisor(names, dry_run=options.dry_run, make_report=make_report).run()
    except RefusedError:
        parser.error("jax finds no accelerator here; --dry-run runs everything on the CPU in tiny sizes")
    print(f"written: {report.path}")
    return exit_status(report)


def exit_status(report: Report) -> int:
    """FAILED, CUT_SHORT or 0."""
    if report.failures or report.has_errors:
        return FAILED
    return CUT_SHORT if report.has_cuts else 0


def _make_report(directory: Path, commit: str | None, dry_run: bool, device: str, about: dict[str, Any]) -> Report:
    header = {
        "dry_run": dry_run,
        "versions": versions(),
        "commit": commit or output_of("git", "rev-parse", "HEAD"),
    }
    return Report(directory, device, header | about)
