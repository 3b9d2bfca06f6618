"""Compute the SHA-256 of files, and keep them. Host only, no jax.

A large file is read once: its SHA-256 is kept in the cache directory while path, inode, size and times are the same.
The time of the last change of an inode cannot be set by programs, so a file that was written to is read again.
"""

import hashlib
from collections.abc import Iterable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from jaxgen.files.cache_files import find_json, keep_json
from jaxgen.hardware.container import num_cores
from jaxgen.terminal.progress import show_progress
from jaxgen.weights.files.members import member

_CHUNK = 2**20
LEAST_KEPT = 64 * 2**20
"""Bytes of the smallest file whose checksum is kept: smaller ones are read in less than a tenth of a second."""


class Checksum(NamedTuple):
    """The SHA-256 of a file, and the state that the file was in; see ``known`` of ``file_checksums``."""

    state: dict[str, int]
    sha256: str


def file_checksums(
    directory: Path,
    names: Iterable[str],
    folder: Path | None = None,
    *,
    known: MutableMapping[Path, Checksum] | None = None,
    progress: bool = False,
) -> dict[str, str]:
    """Return the SHA-256 of files of a directory by name.

    ``folder``: of checksums that were computed before; None: all files are read. ``known``: those of this process,
    to which new ones are added.
    """
    known = {} if known is None else known
    paths = {name: member(directory, name) for name in names}
    before = {name: _state(path) for name, path in paths.items()}
    sums: dict[str, str] = {}
    for name, path in paths.items():
        earlier = known.get(path) or _cached(path, folder)
        if earlier is not None and earlier.state == before[name]:
            sums[name] = earlier.sha256
    unread = [name for name in paths if name not in sums]
    if unread:
        sums |= checksums_of(directory, unread, "computing checksums of the weights", progress)
        for name in unread:
            if _state(paths[name]) == before[name]:  # else it changed while it was read
                known[paths[name]] = computed = Checksum(before[name], sums[name])
                _store(paths[name], computed, folder)
    return sums


def _state(path: Path) -> dict[str, int]:
    """Return what changes whenever a file is written to, replaced or copied."""
    status = path.stat()
    return {
        "inode": status.st_ino,
        "size": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "ctime_ns": status.st_ctime_ns,
    }


def _file(path: Path, folder: Path | None) -> Path | None:
    name = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:20]
    return None if folder is None else folder / f"{name}.json"


def _cached(path: Path, folder: Path | None) -> Checksum | None:
    """Return the checksum of a file that was computed before; None: there is none."""
    stored = find_json(_file(path, folder), "the checksum of the weights is computed again")
    return None if stored is None else Checksum(stored["state"], str(stored["sha256"]))


def _store(path: Path, computed: Checksum, folder: Path | None) -> None:
    """Store the checksum of a large file."""
    if computed.state["size"] >= LEAST_KEPT:
        keep_json(_file(path, folder), computed._asdict())


def checksums_of(directory: Path, names: Iterable[str], label: str, progress: bool) -> dict[str, str]:
    """Return the SHA-256 of files by name, computed in threads: hashlib releases the interpreter lock meanwhile."""
    names = list(names)
    total = sum((directory / name).stat().st_size for name in names)
    with (
        show_progress(label, total, "B", bar=progress) as advance,
        ThreadPoolExecutor(max_workers=min(8, num_cores())) as pool,
    ):

        def checksum(name: str) -> str:
            digest = hashlib.sha256()
            with (directory / name).open("rb") as file:
                while chunk := file.read(_CHUNK):
                    digest.update(chunk)
                    advance(len(chunk))
            return digest.hexdigest()

        return dict(zip(names, pool.map(checksum, names), strict=True))
