"""Name the content of a model's weight files, wherever they lie. Host only, no jax.

A converted directory's manifest has the SHA-256 of each file, which loading verifies. Files of a Hugging Face directory
are read once: their SHA-256 is kept in the cache directory while path, inode, size and times are the same. The time of
the last change of an inode cannot be set by programs, so a file that was written to is read again.
"""

import hashlib
from collections.abc import Iterable, MutableMapping
from pathlib import Path
from typing import NamedTuple

from jaxgen.core.identity import digest_of
from jaxgen.files.cache_files import find_json, keep_json
from jaxgen.weights.files import member
from jaxgen.weights.headers import weight_files
from jaxgen.weights.manifest import checksums_of, is_converted, read_manifest

PARAMS = "params/"
LEAST_KEPT = 64 * 2**20
"""Bytes of the smallest file whose checksum is kept: smaller ones are read in less than a tenth of a second."""


class Checksum(NamedTuple):
    """The SHA-256 of a file, and the state that the file was in."""

    state: dict[str, int]
    sha256: str


def weights_digest(
    directory: Path,
    kept: Path | None = None,
    *,
    known: MutableMapping[Path, Checksum] | None = None,
    progress: bool = False,
) -> str:
    """Return a digest of the names and contents of a model directory's weight files, whatever its path.

    ``kept``: folder of checksums that were computed before; None: all files are read. ``known``: those of this process,
    to which new ones are added. Raises ConfigError for a directory without weights.
    """
    if is_converted(directory):
        files = read_manifest(directory).files
        return digest_of({name: record.sha256 for name, record in files.items() if name.startswith(PARAMS)})
    return digest_of(file_checksums(directory, weight_files(directory), kept, known=known, progress=progress))


def file_checksums(
    directory: Path,
    names: Iterable[str],
    kept: Path | None = None,
    *,
    known: MutableMapping[Path, Checksum] | None = None,
    progress: bool = False,
) -> dict[str, str]:
    """Return the SHA-256 of files of a directory by name; ``kept`` and ``known`` as for ``weights_digest``."""
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
