"""Measure this machine's device and check the engine on it.

Rewrites DIR/<device>-<date>.json after every row, and logs the output of processes to DIR/gpu_check.log. Ends within
nine minutes on a device in any case: every row has a time limit and runs in a worker process, and if that hangs or
crashes, only this row is lost. Rows for which no time is left are "not reached"; --resume FILE runs only them.

Exit status: 0 every selected row that this machine supports ran and held; 1 a check failed, or a row raised or was
lost; 3 no such failure, but rows were not reached or did not compile in time.
"""

import argparse
import json
import os
import platform
import signal
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from scripts.gpu.child import LostError, environment
from scripts.gpu.programs import pack, parts_of, unpack
from scripts.gpu.result.header import output_of, versions
from scripts.gpu.result.plan import PROCESSES, TOTAL_SECONDS, PlannedRow
from scripts.gpu.result.report import Report, State, free_path
from scripts.gpu.rows.listing import rows_of
from scripts.gpu.rows.sizes import DRY, FULL
from scripts.gpu.supervisor import Supervisor, Workers

FAILED, INCOMPLETE = 1, 3
PARTS = tuple(dict.fromkeys(row.part for row in rows_of(FULL)))
SAME = ("device", "dry_run", "versions", "commit")
"""Values that must be equal in a run and in the file that it resumes."""


class RefusedError(Exception):
    """The run is refused; the message says why."""


def main(arguments: list[str] | None = None) -> int:
    """Run the selected rows, and return the exit status."""
    began = time.monotonic()
    parser = _parser()
    options = parser.parse_args(arguments)
    ends = began + options.seconds
    parts = options.parts.split(",")
    if unknown := [name for name in parts if name not in PARTS]:
        parser.error(f"--parts has {unknown[0]!r}; the parts are {', '.join(PARTS)}")
    rows = rows_of(DRY if options.dry_run else FULL)
    asked = _asked(parser, rows, parts, options.rows)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(FAILED))  # so that the worker is ended too
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        cache_dir = private_directory(options.cache_dir)
        workers = Workers(dry_run=options.dry_run, cache_dir=cache_dir, log=options.out / "gpu_check.log")
        try:
            unpacked = restore_programs(options, cache_dir)
            report = make_report(options, workers.header(), rows)
            report.note(programs={"unpacked": unpacked})
            try:
                Supervisor(asked, report, workers, ends=ends, compile_limit=options.compile_limit).run()
            finally:
                workers.end()
                report.note(programs={"unpacked": unpacked, **pack(cache_dir, report.path)})
                report.note(files=files_of(options.out))
        finally:
            workers.end()
    except RefusedError as error:
        parser.error(str(error))
    except LostError as lost:
        print(
            f"no device: the process that was to name it {lost}; see {options.out / 'gpu_check.log'}", file=sys.stderr
        )
        return FAILED
    print(f"written: {report.path}; with it in {options.out}: {', '.join(files_of(options.out))}")
    return exit_status(report, asked)


def _asked(
    parser: argparse.ArgumentParser, rows: Sequence[PlannedRow], parts: Sequence[str], names: str
) -> list[PlannedRow]:
    """Return the rows of these parts, or in their order the ones that ``names`` has, separated by commas.

    A name may have ``*``. Each must name a row.
    """
    asked: dict[str, PlannedRow] = {}
    for name in names.split(",") if names else ["*"]:
        named = [row for row in rows if fnmatchcase(row.name, name)]
        if not named:
            parser.error(f"--rows has {name!r}, which names no row; the file of a result lists all rows")
        if names and (other := next((row for row in named if row.part not in parts), None)):
            parser.error(f"--rows has {name!r}, which is of the part {other.part}: add that to --parts")
        asked |= {row.name: row for row in named if row.part in parts and row.name not in asked}
    return list(asked.values())


def restore_programs(options: argparse.Namespace, cache_dir: Path) -> int:
    """Put compiled programs of ``--cache``, or of the result to resume, into the cache; return the number of files.

    Raises RefusedError for what is no such archive.
    """
    parts = options.cache or ([] if options.resume is None else parts_of(options.resume))
    try:
        return unpack(parts, cache_dir) if parts else 0
    except (OSError, tarfile.TarError) as error:
        names = ", ".join(map(str, parts))
        raise RefusedError(f"--cache {names}: not all parts of compiled programs, in order: {error}") from error


def files_of(out: Path) -> dict[str, int]:
    """Return the bytes of each file that the run leaves, by name."""
    return {path.name: path.stat().st_size for path in sorted(out.iterdir()) if path.is_file()}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the result goes; made if need be")
    parser.add_argument("--commit", help="hash to record (default: what git says)")
    parser.add_argument("--parts", default=",".join(PARTS), help="comma-separated, of: %(default)s")
    parser.add_argument(
        "--rows",
        default="",
        metavar="NAME,...",
        help="only these rows, in this order; * stands for any letters (default: all of the parts)",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=TOTAL_SECONDS,
        help="after which the run ends; rows not reached are left to --resume (default: %(default)s)",
    )
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes, to see that everything works; any device")
    parser.add_argument(
        "--resume", type=Path, metavar="FILE", help="a result: keep what it has, run what it did not reach"
    )
    parser.add_argument("--again", default="", metavar="NAME,...", help="with --resume: rows to run again all the same")
    parser.add_argument(
        "--cache",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="compiled programs of an earlier call, all parts in order (default: those beside the file of --resume)",
    )
    parser.add_argument(
        "--compile-limit",
        type=float,
        metavar="SECONDS",
        help="after which a row that still compiles is given up (default: 120, of large steps 240)",
    )
    parser.add_argument(
        "--cache-dir",
        type=Path,
        default=Path(tempfile.gettempdir()) / f"jaxgen-gpu-check-{os.getuid()}",
        metavar="DIR",
        help="where compiled programs are kept for the next run (default: %(default)s)",
    )
    return parser


def exit_status(report: Report, asked: Sequence[PlannedRow]) -> int:
    """Return FAILED, INCOMPLETE or 0."""
    if report.failures:
        return FAILED
    incomplete = any(report.rows[row.name].state in (State.NOT_REACHED, State.SLOW) for row in asked)
    return INCOMPLETE if incomplete else 0


def make_report(options: argparse.Namespace, device: dict[str, Any], rows: Sequence[PlannedRow]) -> Report:
    """Make a new report, or resume that of ``--resume``.

    Raises RefusedError if there is no accelerator, or the file is of another device, version or commit.
    """
    if device["platform"] == "cpu" and not options.dry_run:
        raise RefusedError("jax finds no accelerator here; --dry-run runs everything on the CPU in tiny sizes")
    about = {
        "device": device["device"],
        "dry_run": options.dry_run,
        "versions": versions(),
        "commit": options.commit or output_of("git", "rev-parse", "HEAD"),
        "target": device["target"],
        "processes": {name: environment(name, options.cache_dir, {}) for name in PROCESSES},
        "call": {
            "started": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
            "uname": " ".join(platform.uname()),
            "nvidia_smi": device["nvidia_smi"],
        },
    }
    if options.resume is None and options.again:
        raise RefusedError("--again is for a run with --resume")
    if options.resume is None:
        return Report(free_path(options.out, device["device"]), about, rows, {})
    return Report(options.out / options.resume.name, about, rows, _earlier(options, about))


def _earlier(options: argparse.Namespace, about: dict[str, Any]) -> dict[str, Any]:
    """Read the file of ``--resume``, without the results of rows that will be run again. Raises RefusedError."""
    try:
        earlier: dict[str, Any] = json.loads(options.resume.read_text())
    except (OSError, ValueError) as error:
        raise RefusedError(f"--resume {options.resume}: {error}") from error
    if other := [name for name in SAME if earlier.get(name) != about[name]]:
        raise RefusedError(
            f"--resume {options.resume}: its {other[0]} is {earlier.get(other[0])}, not {about[other[0]]}"
        )
    again = [name for name in options.again.split(",") if name]
    if unknown := set(again) - {row["name"] for row in earlier["rows"]}:
        raise RefusedError(f"--again has {min(unknown)!r}, which {options.resume} has not")
    earlier["rows"] = [row for row in earlier["rows"] if row["name"] not in again]
    return earlier


def private_directory(path: Path) -> Path:
    """Make the directory if it is missing. Raises RefusedError if others may write into it: programs in it are run."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise RefusedError(f"--cache-dir {path} is not this user's alone")
    return path
