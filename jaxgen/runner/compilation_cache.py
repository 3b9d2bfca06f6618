"""Use JAX's persistent compilation cache: a program compiled once is read from a file at the next start.

JAX names an entry by a hash of program, jaxlib, compiler flags and device (on a CPU also its instruction set). So an
entry is never used for another machine or version. Entries used least recently are removed when the size limit is
reached.
"""

import glob
import logging
import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
from jax._src import compilation_cache as jax_internals  # nothing public says how entries are compressed
from jax.experimental.compilation_cache import compilation_cache as jax_cache

from jaxgen.runner.autotuned_files import checked

logger = logging.getLogger(__name__)

MAX_BYTES = 2 * 2**30
_AUTOTUNED = "xla_gpu_per_fusion_autotune_cache_dir"
"""An option of XLA; JAX gives it the folder of this name."""
_SETTINGS: dict[str, Any] = {
    "jax_compilation_cache_max_size": MAX_BYTES,
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
    # What XLA measured of a GPU's kernels stays in a folder next to the programs, for later compilations.
    "jax_persistent_cache_enable_xla_caches": _AUTOTUNED,
}
_TROUBLE = re.compile(r"Error (?:reading|writing) persistent compilation cache entry for '(?P<program>[^']*)'")
_lock = threading.RLock()


@contextmanager
def persistent_compilation(directory: Path | None) -> Iterator[None]:
    """Compile programs through the cache in ``directory`` inside this context; restore JAX's settings afterwards.

    If ``directory`` is None, or the user has set up a cache with JAX's own settings, nothing is changed. A program
    whose entry cannot be read is compiled and written again; an entry that cannot be written is left out. One warning
    gives their number. The settings belong to the process, so one thread at a time is inside the context.
    """
    if directory is None:
        yield
        return
    with _lock:  # before the question, whose answer another thread inside the context changes
        if jax.config.jax_compilation_cache_dir is not None:
            yield
            return
        with _through(directory):
            yield


@contextmanager
def _through(directory: Path) -> Iterator[None]:
    settings = {"jax_compilation_cache_dir": str(directory), **_SETTINGS}
    with _troubles(directory), _by_zlib(), checked(directory / _AUTOTUNED):
        before = {name: getattr(jax.config, name) for name in settings}
        try:
            _configure(settings)
            yield
        finally:
            _configure(before)


@contextmanager
def _by_zlib() -> Iterator[None]:
    """Have JAX compress entries by zlib, whose checksum finds any damage.

    If zstandard is installed, or Python has zstd, JAX takes that, without a checksum: a program with another bit would
    run. No setting of JAX chooses.
    """
    before = {name: getattr(jax_internals, name, None) for name in ("zstd", "zstandard")}
    try:
        for name in before:
            setattr(jax_internals, name, None)
        yield
    finally:
        for name, module in before.items():
            setattr(jax_internals, name, module)


def _configure(settings: dict[str, Any]) -> None:
    for name, value in settings.items():
        jax.config.update(name, value)
    jax_cache.reset_cache()  # JAX reads its settings once


@contextmanager
def _troubles(directory: Path) -> Iterator[None]:
    """Combine JAX's warnings about single entries into one, and remove those entries, which JAX would keep."""
    messages: list[str] = []
    with warnings.catch_warnings():
        show = warnings.showwarning

        def note(message: Warning | str, *rest: Any, **keywords: Any) -> None:
            trouble = _TROUBLE.match(str(message))
            if trouble is None:
                show(message, *rest, **keywords)
                return
            messages.append(str(message))
            for entry in directory.glob(f"{glob.escape(trouble['program'])}-*-cache"):
                entry.unlink(missing_ok=True)

        warnings.filterwarnings("always", _TROUBLE.pattern)
        warnings.showwarning = note
        yield
    if messages:
        logger.warning(
            "%d programs were compiled without the cache in %s, whose entries are damaged or cannot be written: %s",
            len(messages),
            directory,
            messages[0],
        )
