"""The native kernels, compiled once for the whole test run.

``python -m tests.support.native`` compiles them into TEST_CACHE_DIR, before the parts of a run begin that need them.
"""

import os
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
from filelock import FileLock

from jaxgen.core.model_config import ModelConfig
from jaxgen.files.cache_dirs import open_cache_dirs
from jaxgen.kernels.native_support import native_parts
from pallas_kernels.cpu.build import Recipe, UnavailableError
from pallas_kernels.cpu.library import Library
from pallas_kernels.cpu.loading import load
from pallas_kernels.cpu.parts import PARTS


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
            return load(directory(), threads=os.cpu_count() or 1)
    except UnavailableError as reason:
        if "no C++ compiler" in str(reason):
            pytest.skip(str(reason))
        raise


def library_for(model: ModelConfig) -> Library:
    """The parts that a CPU serves a model with, and no others."""
    native()
    return load(directory(), parts=native_parts(model))


def quick_compiler(folder: Path) -> dict[str, str]:
    """An environment whose C++ compiler has the native kernels at once: they were made before."""
    (folder / "bin").mkdir()
    quick = compiler_script(folder / "bin" / Path(Recipe.find().command[0]).name, copy_library())
    return {"PATH": f"{Path(quick).parent}:{os.environ['PATH']}"}


def compiler_script(path: Path, *lines: str) -> str:
    """Make a shell script that is a compiler: it has the version of ``$real``, and finds the output file in
    ``$target``."""
    native()  # skips where there is none
    real = f'real={Recipe.find().command[0]}; [ "$1" = --version ] && exec $real --version; for target; do :; done'
    path.write_text("\n".join(["#!/bin/sh", real, *lines]))
    path.chmod(0o700)
    return str(path)


def copy_library() -> str:
    """Return a line of ``compiler_script`` that compiles to an empty file, and links to the library that there is."""
    cases = " ".join(f'*/kernels-{part}-{"?" * 20}.so) cp {_library(part)} "$target" ;;' for part in PARTS)
    return f'case "$target" in *.o) : > "$target" ;; {cases} esac'


def _library(part: str) -> Path:
    native()
    return directory() / f"kernels-{part}-{Recipe.find().digest_of(part)}.so"


if __name__ == "__main__":
    os.environ["JAXGEN_CACHE_DIR"] = str(Path(os.environ["TEST_CACHE_DIR"], "cache"))
    with suppress(UnavailableError, pytest.skip.Exception):  # tests say why there are none
        native()
