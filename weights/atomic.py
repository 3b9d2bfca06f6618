"""A directory that appears complete or not at all. Host only, no jax."""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from jaxgen.core.errors import ConfigError


@contextmanager
def new_directory(destination: Path, *, replaceable: Callable[[Path], bool] | None = None) -> Iterator[Path]:
    """An empty directory beside ``destination`` to write into; it becomes ``destination`` when the block ends well.

    By then everything in it is on the disk. When the block raises it is removed; what a killed process left behind has
    a hidden name of its own and the next call clears it. A directory that exists already, and is not empty, is refused
    with ConfigError unless ``replaceable`` accepts it; it stays as it was until the new one is complete.
    """
    destination = destination.resolve()
    _refuse_occupied(destination, replaceable)
    partial = destination.with_name(f".{destination.name}.partial")
    partial.mkdir(parents=True, exist_ok=True)
    with _lock(partial):
        _clear(partial)
        try:
            yield partial
            sync_tree(partial)
        except BaseException:
            shutil.rmtree(partial)
            raise
        _swap(partial, destination)


def sync_tree(directory: Path) -> None:
    """Wait until the disk has every file and directory below ``directory``."""
    for root, _, names in os.walk(directory):
        for path in [Path(root), *(Path(root, name) for name in names)]:
            _sync(path)


def _refuse_occupied(destination: Path, replaceable: Callable[[Path], bool] | None) -> None:
    if not destination.exists() or (destination.is_dir() and not any(destination.iterdir())):
        return
    if replaceable is None:
        raise ConfigError(f"{destination} exists already; choose another destination, or --force to replace it")
    if not destination.is_dir() or not replaceable(destination):
        raise ConfigError(f"{destination} is no converted checkpoint, and --force replaces nothing else")


@contextmanager
def _lock(directory: Path) -> Iterator[None]:
    """Hold the directory against other processes; the system lets go when this one ends, however it ends."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{directory} is being written by another process; wait until it is done") from None
        yield
    finally:
        os.close(handle)


def _clear(directory: Path) -> None:
    for path in directory.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _swap(partial: Path, destination: Path) -> None:
    """Put ``partial`` in the place of ``destination``."""
    retired = destination.with_name(f".{destination.name}.replaced")
    shutil.rmtree(retired, ignore_errors=True)
    if destination.exists():
        destination.rename(retired)
    partial.rename(destination)
    _sync(destination.parent)
    shutil.rmtree(retired, ignore_errors=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
