"""Makes each of the listed faults in a copy of the tree, and shows that the quick tests catch it."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree
from tempfile import TemporaryDirectory
from time import monotonic

from scripts.faults.fault import ROOMS, Fault, FaultError
from scripts.faults.list import FAULTS
from scripts.faults.outcome import Outcome, Verdict, judge
from scripts.faults.tree import check_imports, copy_tracked, run_pytest

ROOT = Path(__file__).resolve().parents[2]
WITHOUT_FAULT_SECONDS = 1800.0


@dataclass(frozen=True, slots=True)
class Result:
    fault: Fault
    outcome: Outcome
    seconds: float

    @property
    def row(self) -> str:
        return f"{self.fault.name:42} {self.outcome.verdict:10} {self.seconds:7.1f}  {self.outcome.detail}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.faults", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="FAULT", help="none: all")
    parser.add_argument("--only", action="append", default=[], choices=ROOMS, metavar="ROOM", help=", ".join(ROOMS))
    parser.add_argument("--list", action="store_true", help="name the faults and their tests, and run nothing")
    parser.add_argument("-j", "--jobs", type=int, default=2, help="faults at a time")
    parser.add_argument("--seconds", type=float, default=180.0, help="the most that the tests of one fault may take")
    args = parser.parse_args(arguments)
    if unknown := set(args.names) - {fault.name for fault in FAULTS}:
        parser.error(f"no such fault: {', '.join(sorted(unknown))}")
    chosen = [f for f in FAULTS if f.name in (args.names or [f.name]) and f.room in (args.only or [f.room])]
    if args.list:
        for fault in chosen:
            print(f"{fault.room:10} {fault.name:42} {fault.file}  {' '.join(fault.tests)}")
        return 0
    try:
        with TemporaryDirectory(prefix="jaxgen-faults-") as directory:
            return _try_all(chosen, Path(directory), args.jobs, args.seconds)
    except FaultError as error:
        print(error, file=sys.stderr)
        return 1


def _try_all(faults: Sequence[Fault], directory: Path, jobs: int, seconds: float) -> int:
    tree = directory / "without"
    copy_tracked(ROOT, tree)
    for fault in faults:
        fault.applied_to((tree / fault.file).read_text(encoding="utf-8"))
    check_imports(tree)
    _run_without_fault(faults, tree, jobs)
    print(f"\n{'fault':42} {'':10} {'seconds':>7}  first test that fails", flush=True)
    missed = []
    for result in _results(faults, tree, jobs, seconds):
        print(result.row, flush=True)
        if result.outcome.verdict is not Verdict.CAUGHT:
            missed.append(result)
    print(f"\n{len(faults) - len(missed)} of {len(faults)} faults are caught")
    for result in missed:
        print(result.row)
    return 1 if missed else 0


def _run_without_fault(faults: Sequence[Fault], tree: Path, jobs: int) -> None:
    """Raises FaultError where tests fail that no fault has made fail."""
    tests = sorted({test for fault in faults for test in fault.tests})
    started = monotonic()
    options = ("-n", str(jobs), "--dist", "worksteal")
    status, output = run_pytest(tree, tests, seconds=WITHOUT_FAULT_SECONDS, options=options)
    if status != 0:
        print(output, file=sys.stderr)
        raise FaultError(f"without any fault pytest ends with {status}")
    print(f"without any fault the tests pass, in {monotonic() - started:.1f} s", flush=True)


def _results(faults: Sequence[Fault], tree: Path, jobs: int, seconds: float) -> Iterator[Result]:
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(lambda fault: attempt(fault, tree, seconds), faults)


def attempt(fault: Fault, tree: Path, seconds: float) -> Result:
    """Return what its tests say of the fault in a copy of ``tree``, within the given seconds. Raises FaultError."""
    started = monotonic()
    with TemporaryDirectory(dir=tree.parent) as place:
        copy = Path(place) / "tree"
        copytree(tree, copy, symlinks=True)  # with what Python compiled there
        fault.apply(copy)
        try:
            outcome = judge(*run_pytest(copy, fault.tests, seconds=seconds))
        except TimeoutError as error:
            outcome = Outcome(Verdict.INVALID, str(error))
    return Result(fault, outcome, monotonic() - started)
