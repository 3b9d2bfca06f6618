"""A store of files in a directory, on a disk, a volume or NFS, of bounded size. Host only, no jax.

Each value is a file, whose name is its key: DIRECTORY/v1/ab/cdef... It is written under a temporary name and renamed,
so that readers, also in other processes, see all of it or nothing. Only the user may enter the folders and read the
files. A file's time of modification is when it was used last, by the clock of whoever holds the files: the files used
longest ago are removed first. Nothing is flushed to the disk: what a crash leaves half written has a wrong checksum.
"""

import os
import secrets
import time
from collections.abc import Buffer, Sequence
from contextlib import suppress
from pathlib import Path

from jaxgen.offload.kv_tier.room import Room, StoredValue

PARTIAL_SECONDS = 3600.0
"""Age of a temporary file that nobody writes any more."""
PARTIAL = ".part"


class DirectoryStore:
    """A ``ByteStore`` of at most ``most_bytes``. It makes its folders when something is written."""

    def __init__(self, directory: Path, most_bytes: int) -> None:
        self._directory, self._folder = directory, directory / "v1"
        self._room = Room(most_bytes, self._files, self._remove_files)

    @property
    def name(self) -> str:
        return str(self._directory)

    def count(self, keys: Sequence[bytes]) -> int:
        """See ByteStore."""
        for index, key in enumerate(keys):
            try:
                self._path(key).stat()
            except (FileNotFoundError, NotADirectoryError):
                return index
        return len(keys)

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See ByteStore."""
        values: list[bytes | None] = []
        for key in keys:
            try:
                values.append(self._path(key).read_bytes())
            except (FileNotFoundError, NotADirectoryError):
                values.append(None)
        for key, value in reversed(list(zip(keys, values, strict=True))):  # a block is useful only with those before it
            if value is not None:
                with suppress(OSError):  # removed meanwhile, or read-only
                    os.utime(self._path(key))
        return values

    def put(self, key: bytes, parts: Sequence[Buffer]) -> bool:
        """See ByteStore."""
        with suppress(FileNotFoundError, NotADirectoryError):
            os.utime(self._path(key))
            return False
        size = sum(memoryview(part).nbytes for part in parts)
        self._room.make(size)
        try:
            self._write(self._path(key), parts)
        except FileNotFoundError:  # the first in its folder, or the folder was removed
            self._make_folders(self._path(key).parent)
            self._write(self._path(key), parts)
        self._room.taken(size)
        return True

    def remove(self, key: bytes) -> None:
        """See ByteStore."""
        self._path(key).unlink(missing_ok=True)

    def _path(self, key: bytes) -> Path:
        name = key.hex()
        return self._folder / name[:2] / name[2:]

    def _make_folders(self, last: Path) -> None:
        self._directory.parent.mkdir(parents=True, exist_ok=True)
        for folder in (self._directory, self._folder, last):
            folder.mkdir(mode=0o700, exist_ok=True)

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
        found: list[StoredValue] = []
        if not self._folder.is_dir():
            return found
        for folder in self._folder.iterdir():
            with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):  # removed by another process
                        state = entry.stat()
                        if entry.name.endswith(PARTIAL):
                            if time.time() - state.st_mtime > PARTIAL_SECONDS:
                                Path(entry.path).unlink()
                        else:
                            found.append(StoredValue(state.st_mtime, state.st_size, entry.path))
        return found
