"""Files of the cache directory that are checked before they are used, and made again if they are damaged. Host only.

A file is written under a hidden name that ends with ``.part``, which its writer locks; so what a killed writer left is
known by having no lock. A file of text has its text and, as its last line, the SHA-256 of that text. So a file
that was cut short, or has another bit anywhere, is found; what can still be parsed says nothing of that.
"""

import fcntl
import hashlib
import json
import logging
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

logger = logging.getLogger(__name__)

_SEAL = "\nSHA-256 "
_PART = ".part"
_ABANDONED_SECONDS = 24 * 3600.0
"""Age after which a file that is being written has no writer any more, where files cannot be locked."""


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Give a file that takes the place of ``path`` when the block succeeds, whole and on the disk; else it is removed.

    First removes what killed writers left in the folder. Several processes may do this at once, also in containers,
    where their ids are equal: each has a file of its own. Raises OSError.
    """
    _remove_abandoned(path.parent)
    file, partial = _open_part(path)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())  # else a file of zeros may have the name after a power cut
            partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise


def keep(path: Path, text: str) -> None:
    """Write a file as ``new_file`` does. If that fails, log a warning."""
    try:
        with new_file(path) as file:
            file.write(f"{text}{_SEAL}{_digest(text)}\n".encode())
    except OSError as error:
        logger.warning("%s cannot be written: %s", path, error)


def find(path: Path, then: str) -> str | None:
    """Return the text of a file, or None if there is none that is whole.

    A damaged one is removed, and one warning names it and ends with ``then``: what happens now.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        logger.warning("%s cannot be read (%s): %s", path, error, then)
        return None
    try:
        text, seal, digest = data.decode().rpartition(_SEAL)
        if seal and digest == f"{_digest(text)}\n":
            return text
    except UnicodeDecodeError:
        pass
    logger.warning("%s is damaged: %s", path, then)
    with suppress(OSError):
        path.unlink()
    return None


def keep_json(path: Path | None, value: Any) -> None:
    """Write a JSON value as ``keep`` does; None: nothing is kept."""
    if path is not None:
        keep(path, json.dumps(value, indent=1))


def find_json(path: Path | None, then: str) -> Any:
    """Return the JSON value of a file, or None as ``find`` does, and where nothing is kept."""
    text = None if path is None else find(path, then)
    return None if text is None else json.loads(text)


def named_by(key: Any, digits: int = 20) -> str:
    """Return the name of the file of a key, a JSON value: the first digits of SHA-256 over its text."""
    return f"{hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:digits]}.json"


def make_room(folder: Path, size: int, most: int) -> None:
    """Remove the files used least recently until ``size`` more bytes are no more than ``most``. Raises OSError.

    Files that other processes are writing count, and stay. What killed processes left goes.
    """
    _remove_abandoned(folder)
    files: list[tuple[bool, float, int, Path]] = []
    for path in folder.iterdir():
        with suppress(FileNotFoundError):  # another process has renamed or removed it
            status = path.stat()
            files.append((path.name.endswith(_PART), status.st_mtime, status.st_size, path))
    for is_written, _, used, path in sorted(files, reverse=True):
        size += used
        if size > most and not is_written:
            path.unlink(missing_ok=True)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _open_part(path: Path) -> tuple[BinaryIO, Path]:
    """Make, open and lock the file that will be ``path``; the system unlocks it when this process ends, even if killed.

    Without locks in the file system, it has none.
    """
    while True:
        number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=_PART)
        file = os.fdopen(number, "wb")
        with suppress(OSError):
            fcntl.flock(number, fcntl.LOCK_EX)
        if os.fstat(number).st_nlink:
            return file, Path(name)
        file.close()  # another process took it for abandoned before it was locked


def _remove_abandoned(folder: Path) -> None:
    """Remove what processes left that were killed while they wrote."""
    for path in folder.glob(f".*{_PART}"):
        with suppress(OSError), path.open("r+b") as file:  # NFS locks only what is open for writing
            if _is_abandoned(file.fileno()):
                path.unlink()


def _is_abandoned(file: int) -> bool:
    """Whether no process writes the file any more; if so, it is locked."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # the file system has no locks
        return time.time() - os.fstat(file).st_mtime > _ABANDONED_SECONDS
    return True
