"""The native kernels, compiled once for the whole test run."""

import atexit
import shutil
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest

from pallas_kernels.cpu.build import UnavailableError
from pallas_kernels.cpu.library import Library, load


@cache
def directory() -> Path:
    """Where they are kept until the run ends."""
    path = Path(mkdtemp())
    atexit.register(shutil.rmtree, path)
    return path


@cache
def native() -> Library:
    """Skips the test where there is no compiler; python -m scripts.ci.run_tests takes that for a failure with CI=true.

    Where there is one, kernels that do not build or are not right fail the test.
    """
    try:
        return load(directory())
    except UnavailableError as reason:
        if "no C++ compiler" in str(reason):
            pytest.skip(str(reason))
        raise
