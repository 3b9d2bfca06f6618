"""Run the checks and tests in parts, print each part's seconds, fail if any part fails.

Parts that wait or have one thread run next to the others, one after another. A part's output comes when it is done.
``--full`` adds the long parts; ``--only a,b`` runs some parts; paths run only the tests there, with ``--full`` also the
long ones. With CI=true a skipped test is a failure: a machine that ``scripts/test`` has set up can run every test.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

PYTEST = (sys.executable, "-m", "pytest", "-q", "-n", "3", "--dist", "worksteal", "--durations=10")
"""Three tests at a time, for two cores: most of a test is compilation, in one thread, but a third of the time of two
would go by in waits for processes, connections and the disk."""
SHARED = "TEST_CACHE_DIR"
"""The variable that names the folder in which a run's parts share compiled programs and native kernels."""

SETTINGS = {
    "COVERAGE_CORE": "sysmon",  # slows tests down least
    # Else each process, of which a run has hundreds, would compile all it imports, and pytest rewrite all tests.
    "PYTHONDONTWRITEBYTECODE": "",
}
OK = "ok"
LEFT_OUT = 77
"""Exit status of a part that cannot run here and has said why, as of automake's tests."""
LEFT_OUT_RESULT = "left out, as it says"
LEAST_COVERAGE = 97
"""Percent of the packages' lines that the quick tests must reach; measured by ``--full``."""
COVERAGE = (
    *(f"--cov={folder}" for folder in ("jaxgen", "pallas_kernels", "server", "weights")),
    *("--cov-report=", f"--cov-fail-under={LEAST_COVERAGE}"),
)


@dataclass(frozen=True)
class Part:
    name: str
    command: tuple[str, ...]
    full_only: bool = False
    if_full: tuple[str, ...] = ()
    """Further arguments with ``--full``."""
    environment: tuple[tuple[str, str], ...] = ()
    """Variables that are set for it."""
    beside: bool = False
    """Whether it runs next to the others: it mostly waits, or has one thread."""


BIN, HERE = Path(sys.executable).parent, Path(__file__).parent


def files_with(mark: str) -> tuple[str, ...]:
    """Return the files of tests that name a mark: to import all of them takes most of a minute of each process."""
    root = HERE.parents[1]
    files = sorted((root / "tests").rglob("test_*.py"))
    return tuple(str(file.relative_to(root)) for file in files if f"mark.{mark}" in file.read_text(encoding="utf-8"))


PARTS = (
    Part("lint", (str(BIN / "ruff"), "check", ".")),
    Part("format", (str(BIN / "ruff"), "format", "--check", ".")),
    Part("types", (str(BIN / "mypy"),), beside=True),
    Part("imports", (sys.executable, f"{HERE}/check_imports.py"), beside=True),
    # First, by itself: tests and servers of all parts would compile them at once, each for itself.
    Part("kernels", (sys.executable, "-m", "tests.support.native")),
    Part("tests", (*PYTEST, "-m", "not full and not browser and not real"), if_full=COVERAGE),
    Part("aot", ("sh", f"{HERE}/check_aot.sh"), full_only=True),
    Part("clients", ("sh", f"{HERE}/check_clients.sh", sys.executable), full_only=True, beside=True),
    Part("browser", ("sh", f"{HERE}/check_browser.sh", sys.executable), full_only=True, beside=True),
    Part("wheel", ("sh", f"{HERE}/check_wheel.sh"), full_only=True, beside=True),
    Part("real", (sys.executable, "-m", "scripts.ci.check_real"), full_only=True, environment=(("XLA_FLAGS", ""),)),
    # Again, compiled with XLA's own settings as for users: the other tests have some that compile sooner.
    Part(
        "shipped",
        (*PYTEST, "-m", "shipped and not full", *files_with("shipped")),
        full_only=True,
        environment=(("XLA_FLAGS", ""),),
    ),
    Part(
        "long tests",
        (*PYTEST, "-m", "full and not browser and not real", "--timeout", "2400", *files_with("full")),
        full_only=True,
    ),
)


def run(part: Part) -> tuple[str, float]:
    """Run one part with its output shown. Return its result and its seconds.

    The result is OK, that the part was left out, or why it failed. A skipped test fails the part on CI.
    """
    started = time.monotonic()
    words = [f"== {part.name}\n"]
    environment = os.environ | SETTINGS | dict(part.environment)
    skipped = False
    with subprocess.Popen(
        part.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            words.append(line)
            if not part.beside:
                _say(words)
            skipped = skipped or bool(re.match(r"SKIPPED ", line))
    code = process.returncode
    outcome = {0: OK, LEFT_OUT: LEFT_OUT_RESULT}.get(code, f"FAILED (exit status {code})")
    if skipped and os.environ.get("CI") == "true":
        words.append(f"{part.name}: a test was skipped, which CI does not allow\n")
        outcome = "FAILED (a test was skipped)"
    _say(words)
    return outcome, time.monotonic() - started


def _say(words: list[str]) -> None:
    """Print lines and forget them."""
    print("".join(words), end="", flush=True)
    words.clear()


def run_all(parts: list[Part]) -> list[tuple[str, str, float]]:
    """Return each part's name, its result and its seconds, in their order."""
    with ThreadPoolExecutor(1) as aside, ThreadPoolExecutor(1) as ahead:
        running = [(aside if part.beside else ahead).submit(run, part) for part in parts]
        return [(part.name, *done.result()) for part, done in zip(parts, running, strict=True)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="also the long parts (half an hour in all)")
    parser.add_argument("--only", default="", help="comma-separated names of parts")
    parser.add_argument("paths", nargs="*", help="of tests; none: all of them, and the checks")
    args = parser.parse_args()
    if args.only and args.paths:
        parser.error("--only names parts of the whole; with paths there are none")
    only = {name for name in args.only.split(",") if name}
    if unknown := only - {part.name for part in PARTS}:
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(p.name for p in PARTS)}")
    parts = [p for p in PARTS if (p.name in only if only else args.full or not p.full_only)]
    if args.full:
        parts = [replace(part, command=(*part.command, *part.if_full)) for part in parts]
    if args.paths:
        parts = [Part("tests", (*PYTEST, *(() if args.full else ("-m", "not full")), *args.paths))]
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="jaxgen-tests-") as shared:
        os.environ[SHARED] = shared
        results = run_all(parts)
    print("\npart        seconds  result")
    for name, result, seconds in results:
        print(f"{name:10} {seconds:8.1f}  {result}")
    print(f"in all     {time.monotonic() - started:8.1f}")
    return 0 if all(result in (OK, LEFT_OUT_RESULT) for _, result, _ in results) else 1


if __name__ == "__main__":
    sys.exit(main())
