"""A store of files in a directory, on a disk, a volume or NFS, of bounded size. Host only, no jax.

Each value is a file, whose name is its key: DIRECTORY/jaxgen-kv-v1/ab/cdef... What has another form of name, or is a
link, is not counted and never removed. A value is written under a temporary name and renamed,
so that readers, also in other processes, see all of it or nothing. Only the user may enter the folders and read the
files. A file's time of modification is when it was used last, by the clock of the file system. The files used
longest ago are removed first. Nothing is flushed to the disk: what a crash leaves half written has a wrong checksum.
"""

import errno
import logging
import os
import re
import secrets
import stat
import time
from collections.abc import Buffer, Sequence
from contextlib import suppress
from pathlib import Path

from jaxgen.core.errors import ConfigError
from jaxgen.files.private_folders import open_to_others
from jaxgen.offload.tiers.kv_tier.byte_quota import ByteQuota, StoredValue
from jaxgen.offload.tiers.kv_tier.store import MOST_BYTES

logger = logging.getLogger(__name__)

FOLDER = "jaxgen-kv-v1"
_NAMED = "--kv-tier"
_BESIDE = {FOLDER, "v1", "lost+found"}
"""What may be in the directory: ``v1`` is an older version's."""
_FOLDER_NAME = re.compile(r"[0-9a-f]{2}")
_FILE_NAME = re.compile(r"[0-9a-f]{30}")
_PARTIAL_NAME = re.compile(r"[0-9a-f]{16}\.part")

_TIMES_REMOVED = 10
"""How often the folders are made again while a value is written."""
PARTIAL_SECONDS = 3600.0
"""Age of a temporary file that nobody writes any more."""
PARTIAL = ".part"


def check_directory(directory: Path, *, keyed: bool) -> None:
    """Raise ConfigError for a directory that has other things in it than a KV tier's; names with a dot first may be.

    Warn where others could put values into it, unless these are authenticated (``keyed``).
    """
    try:
        folder = directory / FOLDER
        if folder.is_symlink():
            raise ConfigError(f"{_NAMED} {folder} is a link: name the directory itself")
        _refuse_others(directory, {entry.name for entry in _entries(directory)} - _BESIDE)
        for place in (folder, directory / "v1"):
            _refuse_others(place, {entry.name for entry in _entries(place) if not _is_ours(entry)})
        reason = open_to_others(folder if folder.exists() else directory) if directory.exists() else None
    except OSError as error:
        raise ConfigError(f"{_NAMED} {directory} cannot be used: {error}") from error
    if (directory / "v1").exists():
        logger.info("%s is of an older version and is not used: remove it", directory / "v1")
    if reason is not None and not keyed:
        logger.warning(
            "%s %s: %s, and who can write it can change answers; make it this user's alone, or set --kv-tier-key",
            _NAMED,
            directory,
            reason,
        )


class DirectoryStore:
    """A ``ByteStore`` of at most ``most_bytes``. It makes its folders when something is written."""

    def __init__(self, directory: Path, most_bytes: int) -> None:
        self._directory, self._folder = directory, directory / FOLDER
        self._quota = ByteQuota(most_bytes, self._files, self._remove_files)

    @property
    def name(self) -> str:
        return str(self._directory)

    def count(self, keys: Sequence[bytes]) -> int:
        """See ByteStore."""
        return next((index for index, key in enumerate(keys) if not self._holds(key)), len(keys))

    def last(self, keys: Sequence[bytes]) -> int:
        """See ByteStore."""
        return next((number for number in range(len(keys), 0, -1) if self._holds(keys[number - 1])), 0)

    def get(self, keys: Sequence[bytes], longest: int = MOST_BYTES) -> list[bytes | None]:
        """See ByteStore."""
        values: list[bytes | None] = []
        for key in keys:
            try:
                values.append(_read(self._path(key), longest))
            except (FileNotFoundError, NotADirectoryError):
                values.append(None)
        for key, value in reversed(list(zip(keys, values, strict=True))):  # a block is useful only with those before it
            if value is not None:
                with suppress(OSError):  # removed meanwhile, or read-only
                    os.utime(self._path(key), follow_symlinks=False)
        return values

    def put(self, key: bytes, parts: Sequence[Buffer]) -> bool:
        """See ByteStore."""
        with suppress(FileNotFoundError, NotADirectoryError):
            os.utime(self._path(key), follow_symlinks=False)
            return False
        size = sum(memoryview(part).nbytes for part in parts)
        self._quota.make(size)
        self._write_in_folder(self._path(key), parts)
        self._quota.taken(size)
        return True

    def remove(self, key: bytes) -> None:
        """See ByteStore."""
        self._path(key).unlink(missing_ok=True)

    def _holds(self, key: bytes) -> bool:
        try:
            self._path(key).lstat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def _path(self, key: bytes) -> Path:
        name = key.hex()
        return self._folder / name[:2] / name[2:]

    def _make_folders(self, last: Path) -> None:
        self._directory.parent.mkdir(parents=True, exist_ok=True)
        for folder in (self._directory, self._folder, last):
            folder.mkdir(mode=0o700, exist_ok=True)

    def _write_in_folder(self, path: Path, parts: Sequence[Buffer]) -> None:
        for _ in range(_TIMES_REMOVED):
            try:
                self._write(path, parts)
                return
            except FileNotFoundError:  # the first in its folder, or the folder was removed, perhaps again and again
                with suppress(FileNotFoundError):
                    self._make_folders(path.parent)
        self._write(path, parts)

    def _write(self, path: Path, parts: Sequence[Buffer]) -> None:
        partial = path.with_name(f"{secrets.token_hex(8)}{PARTIAL}")
        handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                for part in parts:
                    file.write(part)
            partial.replace(path)
        except BaseException:
            with suppress(OSError):
                partial.unlink()
            raise

    def _remove_files(self, files: Sequence[StoredValue]) -> None:
        for file in files:
            Path(file.name).unlink(missing_ok=True)

    def _files(self) -> list[StoredValue]:
        """Return all values, and remove temporary files that were left behind."""
        result: list[StoredValue] = []
        for folder in filter(_is_ours, _entries(self._folder)):
            for entry in _entries(Path(folder.path)):
                with suppress(FileNotFoundError):  # removed by another process
                    if not entry.is_file(follow_symlinks=False):
                        continue
                    state = entry.stat(follow_symlinks=False)
                    if _FILE_NAME.fullmatch(entry.name):
                        result.append(StoredValue(state.st_mtime, state.st_size, entry.path))
                    elif _PARTIAL_NAME.fullmatch(entry.name) and time.time() - state.st_mtime > PARTIAL_SECONDS:
                        Path(entry.path).unlink()
        return result


def _read(path: Path, longest: int) -> bytes:
    """Return the bytes of a file, one more than ``longest`` at most; none of a link, a pipe or the like.

    Raises OSError.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a socket
            return b""
        raise
    try:
        state = os.fstat(handle)
        if not stat.S_ISREG(state.st_mode):
            return b""
        with os.fdopen(handle, "rb", closefd=False) as file:
            return file.read(min(state.st_size, longest + 1))
    finally:
        os.close(handle)


def _is_ours(folder: os.DirEntry[str]) -> bool:
    """Whether an entry of the tier's own folder is one of its folders of values."""
    return _FOLDER_NAME.fullmatch(folder.name) is not None and folder.is_dir(follow_symlinks=False)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return what is in a folder but names that begin with a dot; none of a folder that is not there."""
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _refuse_others(folder: Path, others: set[str]) -> None:
    if others:
        raise ConfigError(
            f"{_NAMED} {folder} has other things in it, as {min(others)!a}: name a directory for the KV tier alone"
        )
