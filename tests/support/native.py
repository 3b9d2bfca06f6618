"""The native kernels, compiled once for the whole test run.

``python -m tests.support.native`` compiles them into TEST_CACHE_DIR, before the parts of a run begin that need them.
"""

import os
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
from filelock import FileLock

from jaxgen.core.cache_dirs import open_cache_dirs
from pallas_kernels.cpu.build import Recipe, UnavailableError
from pallas_kernels.cpu.library import Library
from pallas_kernels.cpu.loading import load


def directory() -> Path:
    """Where they are kept: where the run's processes look for them."""
    found = open_cache_dirs(os.environ["JAXGEN_CACHE_DIR"]).kernels
    assert found is not None
    return found


@cache
def native() -> Library:
    """Skips the test where there is no compiler; python -m scripts.ci.run_tests takes that for a failure with CI=true.

    Where there is one, kernels that do not build or are not right fail the test.
    """
    try:
        with FileLock(directory().parent / "lock"):  # two processes would compile at once
            return load(directory())
    except UnavailableError as reason:
        if "no C++ compiler" in str(reason):
            pytest.skip(str(reason))
        raise


def quick_compiler(folder: Path) -> dict[str, str]:
    """An environment whose C++ compiler has the native kernels at once: they were made before."""
    native()
    (made,) = directory().glob("*.so")
    compiler = Recipe.find().command[0]
    quick = folder / "bin" / Path(compiler).name
    quick.parent.mkdir()
    lines = (f'[ "$1" = --version ] && exec {compiler} --version', "for target; do :; done", f'cp {made} "$target"')
    quick.write_text("\n".join(["#!/bin/sh", *lines]))
    quick.chmod(0o700)
    return {"PATH": f"{quick.parent}:{os.environ['PATH']}"}


if __name__ == "__main__":
    os.environ["JAXGEN_CACHE_DIR"] = str(Path(os.environ["TEST_CACHE_DIR"], "cache"))
    with suppress(UnavailableError, pytest.skip.Exception):  # tests say why there are none
        native()
