"""Copies of the working tree, in which tests run."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from scripts.faults.fault import FaultError

_PYTEST = (
    *(sys.executable, "-m", "pytest", "-m", "not full", "-x", "-q"),
    *("-p", "no:cacheprovider"),
    *("-p", "no:schemathesis"),  # half of what it takes to start; none of these tests needs it
    *("-p", "first_example"),
)
_PLUGIN = Path(__file__).parent / "plugin"
"""A folder of its own: whatever else were in it could be imported instead of a copy's."""
_PACKAGES = "jaxgen", "pallas_kernels", "tests"
_WHERE = f"""
import importlib.util
for name in {_PACKAGES}:
    found = importlib.util.find_spec(name)
    print(found and next(iter(found.submodule_search_locations)))
"""


def copy_tracked(source: Path, target: Path) -> None:
    """What git tracks of ``source``, and what it neither tracks nor ignores, as it is there now."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=source,
        check=True,
        stdout=subprocess.PIPE,
    )
    for name in dict.fromkeys(filter(None, listed.stdout.decode().split("\0"))):
        path = source / name
        if path.is_symlink() or path.is_file():  # a file may be deleted and still tracked
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target / name, follow_symlinks=False)


def check_imports(root: Path) -> None:
    """Raises FaultError if programs in the tree import our packages from elsewhere: installed ones have no faults."""
    answer = subprocess.run(
        [sys.executable, "-c", _WHERE], cwd=root, env=_environment(root), check=True, capture_output=True, text=True
    )
    for folder in answer.stdout.splitlines():
        if not Path(folder).resolve().is_relative_to(root.resolve()):
            raise FaultError(f"tests in {root} would import {folder}")


def run_pytest(root: Path, tests: Sequence[str], *, seconds: float, options: Sequence[str] = ()) -> tuple[int, str]:
    """Its status and output. Raises TimeoutError when it takes longer; nothing that it started is left then."""
    process = subprocess.Popen(
        [*_PYTEST, *options, *tests],
        cwd=root,
        env=_environment(root),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"no verdict within {seconds:g} s") from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    return process.returncode, output


def _environment(root: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    path = os.pathsep.join([str(root), str(_PLUGIN), *filter(None, [kept.get("PYTHONPATH")])])
    return kept | {"PYTHONPATH": path, "COLUMNS": "400"}
