"""Compute the SHA-256 of files, and keep them. Host only, no jax.

A large file is read once: its SHA-256 is kept in the cache directory while path, inode, size and times are the same.
The time of the last change of an inode cannot be set by programs, so a file that was written to is read again.
"""

import hashlib
from collections.abc import Iterable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from jaxgen.core.kept_files import find_json, keep_json
from jaxgen.hardware.container import num_cores
from jaxgen.terminal.progress import show_progress
from jaxgen.weights.files.model_files import member

_CHUNK = 2**20
LEAST_KEPT = 64 * 2**20
"""Bytes of the smallest file whose checksum is kept: smaller ones are read in less than a tenth of a second."""


class Checksum(NamedTuple):
    """The SHA-256 of a file, and the state that the file was in."""

    state: dict[str, int]
    sha256: str


def file_checksums(
    directory: Path,
    names: Iterable[str],
    kept: Path | None = None,
    *,
    known: MutableMapping[Path, Checksum] | None = None,
    progress: bool = False,
) -> dict[str, str]:
    """Return the SHA-256 of files of a directory by name.

    ``kept``: folder of checksums that were computed before; None: all files are read. ``known``: those of this process,
    to which new ones are added.
    """
    known = {} if known is None else known
    paths = {name: member(directory, name) for name in names}
    before = {name: _state(path) for name, path in paths.items()}
    sums: dict[str, str] = {}
    for name, path in paths.items():
        found = known.get(path) or _kept(path, kept)
        if found is not None and found.state == before[name]:
            sums[name] = found.sha256
    unread = [name for name in paths if name not in sums]
    if unread:
        sums |= checksums_of(directory, unread, "computing checksums of the weights", progress)
        for name in unread:
            if _state(paths[name]) == before[name]:  # else it changed while it was read
                known[paths[name]] = computed = Checksum(before[name], sums[name])
                _keep(paths[name], computed, kept)
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


def _file(path: Path, kept: Path | None) -> Path | None:
    name = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:20]
    return None if kept is None else kept / f"{name}.json"


def _kept(path: Path, kept: Path | None) -> Checksum | None:
    """Return the kept checksum of a file; None: there is none."""
    found = find_json(_file(path, kept), "the checksum of the weights is computed again")
    return None if found is None else Checksum(found["state"], str(found["sha256"]))


def _keep(path: Path, computed: Checksum, kept: Path | None) -> None:
    """Keep the checksum of a large file."""
    if computed.state["size"] >= LEAST_KEPT:
        keep_json(_file(path, kept), computed._asdict())


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
