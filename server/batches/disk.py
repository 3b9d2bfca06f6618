"""The batch directory on disk: open to the server's user alone, and what is told where the disk is full."""

import errno
import logging
import os
import pwd
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from jaxgen.core.errors import ConfigError
from jaxgen.server.errors import ApiError

logger = logging.getLogger(__name__)

_OTHERS = 0o077
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class DiskFullError(ApiError):
    """The disk has no room; nothing was stored."""

    def __init__(self) -> None:
        message = "The disk of the server's batch directory is full: nothing was stored."
        super().__init__(507, message, code="disk_full", headers={"x-should-retry": "false"})


def is_full(error: Exception) -> bool:
    """Whether an error of a file or of SQLite says that there is no room, or that a quota of the disk is used up."""
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    return isinstance(error, OSError) and error.errno in _FULL


class DiskWatch:
    """Logs once that a batch directory's disk is full, and once that it has room again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._full = False

    @contextmanager
    def writing(self, num_changes: Callable[[], int]) -> Iterator[None]:
        """Raise DiskFullError for the enclosed code's errors that mean it. ``num_changes``: of the database so far."""
        before = num_changes()
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            if not is_full(error):
                raise
            if not self._full:
                logger.error("--batch-dir %s is full: uploads fail, and batches stand still", self._directory)
            self._full = True
            raise DiskFullError from error
        if self._full and num_changes() > before:
            logger.info("--batch-dir %s has room again", self._directory)
            self._full = False


def private(path: str, flags: int) -> int:
    """Open a file that only this user may read, whatever the umask: an opener for ``open``."""
    descriptor = os.open(path, flags, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def make_private(directory: Path, *folders: Path) -> None:
    """Make a directory and folders in it, or close older ones and the files in them to other users.

    Raises ConfigError where one belongs to another user; OSError.
    """
    others = 0
    for folder in (directory, *folders):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_owner(directory, folder)
        others += _restrict(folder, 0o700)
        files = [path for path in folder.iterdir() if path.is_file() and not path.is_symlink()]
        others += sum(_restrict(path, 0o600) for path in files)
    if others:
        logger.warning("--batch-dir %s: others had access to %d files and folders; now none has", directory, others)


def _check_owner(directory: Path, folder: Path) -> None:
    owner, user = folder.stat().st_uid, os.geteuid()
    if owner != user:
        raise ConfigError(
            f"--batch-dir {directory}: {folder} belongs to the user {_name(owner)}, and this server runs as "
            f"{_name(user)}: name a directory of its own, or one that it can make"
        )


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:  # as in containers, which run as a number
        return str(user)


def _restrict(path: Path, mode: int) -> bool:
    """Set the mode of a file or folder. Return whether other users had access."""
    before = path.stat().st_mode & 0o777
    if before != mode:
        path.chmod(mode)
    return bool(before & _OTHERS)
