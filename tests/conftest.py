"""Shape and type checks on every annotated function of ours that handles arrays, in the whole test run; cache
directories of the run's own."""

import gc
import logging
import os
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# An interpreted kernel's warpgroups wait for each other, each on a thread of XLA's, of which there is one per core.
os.environ.setdefault("PJRT_NPROC", str(max(8, os.cpu_count() or 1)))
# A quarter of the seconds of a compilation, for programs that are slower: XLA's emitters without MLIR, LLVM without
# optimisation, in one thread. Tests marked ``shipped`` run in --full again with XLA_FLAGS="", which is what users have.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters"
    " --xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1",
)
# A server may have several devices; where it has one, what names none of them shows.
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")
# A dtype that widens another unasked costs memory and gives bits that nobody chose; also in processes that tests start.
os.environ.setdefault("JAX_NUMPY_DTYPE_PROMOTION", "strict")

import jax
import pytest
from hypothesis import settings
from jax.experimental.compilation_cache import compilation_cache as jax_cache
from jaxtyping import install_import_hook

import tests.support.typechecker  # noqa: F401  (the hook finds it as an attribute of ``tests``)
from tests.support.array_modules import array_modules

collect_ignore = ["aot", "clients"]
"""They need environments of their own: scripts/ci/check_aot.sh, scripts/ci/check_clients.sh."""

install_import_hook(array_modules(), "tests.support.typechecker.check")

# How long an example takes says how busy the machine is.
settings.register_profile("jaxgen", deadline=None)
settings.load_profile("jaxgen")

# What these helpers assert is shown with its values, as in a test.
pytest.register_assert_rewrite(
    "tests.support.ends",
    *(f"tests.support.scheduler_{name}" for name in ("book", "caller", "invariants", "oracle", "world")),
)


@cache
def _source(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Refuse marks that a file has from elsewhere: scripts/ci/run_tests.py finds files by the marks that they name."""
    for mark in ("full", "shipped"):
        if item.get_closest_marker(mark) and f"mark.{mark}" not in _source(item.path):
            raise pytest.UsageError(f"{item.nodeid} has the mark {mark}, which its file must name: pytest.mark.{mark}")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Spare the garbage collector what is imported and collected, which stays to the end: a million objects or more.

    After that it begins after more objects than Python has it: to trace a program makes many that stay for a while.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000, 20, 10)
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _cache_dirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The processes of a run, and those that tests start, share what takes long to make: each program is compiled once,
    by a cache of JAX's own, and so are the native kernels. Nothing is written into the user's cache.

    scripts/ci/run_tests.py names a folder that all parts of its run share."""
    run = tmp_path_factory.getbasetemp()
    if "TEST_CACHE_DIR" in os.environ:
        run = Path(os.environ["TEST_CACHE_DIR"])
    elif "PYTEST_XDIST_WORKER" in os.environ:
        run = run.parent
    ours = run / "cache"
    settings: dict[str, Any] = {
        "jax_compilation_cache_dir": str(run / "programs"),
        # To write and read a smaller program takes as long as to compile it, and most of thousands are small.
        "jax_persistent_cache_min_compile_time_secs": 0.1,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAXGEN_CACHE_DIR", str(ours))
        patch.setattr("jaxgen.files.cache_dirs.default_cache_dir", lambda: ours)
        for name, value in settings.items():
            patch.setenv(name.upper(), str(value))
            jax.config.update(name, value)
        jax_cache.reset_cache()  # JAX looks at its settings once
        yield


@pytest.fixture(autouse=True)
def _log_levels() -> Iterator[None]:
    """What a command sets up of logging ends with the test that ran it."""
    ours = [logging.getLogger(name) for name in (None, "jaxgen", "pallas_kernels")]
    before = [(logger, logger.level, logger.handlers[:]) for logger in ours]
    yield
    for logger, level, handlers in before:
        logger.setLevel(level)
        logger.handlers[:] = handlers


@pytest.fixture
def without_programs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For tests of our own cache of compiled programs, which leaves one that was set up for JAX alone."""
    name = "jax_compilation_cache_dir"
    before = getattr(jax.config, name)
    monkeypatch.delenv(name.upper())
    jax.config.update(name, None)
    jax_cache.reset_cache()
    yield
    jax.config.update(name, before)
    jax_cache.reset_cache()
