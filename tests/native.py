"""The native kernels, compiled once for the whole test run."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from pallas_kernels.cpu.build import UnavailableError
from pallas_kernels.cpu.library import Library, load


@cache
def native() -> Library:
    """Skips the test where there is no compiler; scripts/run_tests.py takes that for a failure with CI=true.

    Where there is one, kernels that do not build or are not right fail the test.
    """
    with TemporaryDirectory() as directory:
        try:
            return load(Path(directory))  # stays in memory when its file is gone
        except UnavailableError as reason:
            if "no C++ compiler" in str(reason):
                pytest.skip(str(reason))
            raise
