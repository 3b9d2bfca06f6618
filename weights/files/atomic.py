"""Write a directory atomically: it appears complete or not at all. Host only, no jax."""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from jaxgen.core.errors import ConfigError

PARTIAL, REPLACED = ".partial", ".replaced"
"""Ends of the hidden names of a directory that is being written, and of one that it takes the place of."""


@contextmanager
def new_directory(destination: Path, *, replaceable: Callable[[Path], bool] | None = None) -> Iterator[Path]:
    """Give an empty directory next to ``destination``, which becomes ``destination`` when the block succeeds.

    All its files are on the disk before that. When the block raises, the directory is removed; a killed process leaves
    it under a hidden name, and the next call clears it. An existing ``destination`` that is not empty is refused with
    ConfigError unless ``replaceable`` accepts it; it stays unchanged until the new directory is complete.
    """
    destination = destination.resolve()
    _refuse_occupied(destination, replaceable)
    partial = destination.with_name(f".{destination.name}{PARTIAL}")
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
    """Flush every file and directory below ``directory`` to the disk."""
    for root, _, names in os.walk(directory):
        for path in [Path(root), *(Path(root, name) for name in names)]:
            _sync(path)


def _refuse_occupied(destination: Path, replaceable: Callable[[Path], bool] | None) -> None:
    if not destination.exists() or (destination.is_dir() and not any(destination.iterdir())):
        return
    if replaceable is None:
        raise ConfigError(f"{destination} exists already; choose another destination, or --force to replace it")
    if not destination.is_dir() or not replaceable(destination):
        raise ConfigError(
            f"{destination} is not a converted checkpoint, which --force needs: choose another destination"
        )


@contextmanager
def _lock(directory: Path) -> Iterator[None]:
    """Lock the directory against other processes; the system unlocks it when this process ends, even if killed.

    Raises ConfigError where another process holds the lock.
    """
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
    retired = destination.with_name(f".{destination.name}{REPLACED}")
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
