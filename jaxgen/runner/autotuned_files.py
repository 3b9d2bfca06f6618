"""Check what XLA measured of a GPU's kernels and keeps in files, before it reads them. Host only, no jax.

XLA writes a text for each kernel under another name and renames it, but does not flush it to the disk. A text that it
cannot parse ends the compilation, at every start. So the SHA-256 of each text is kept next to them.
"""

import hashlib
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from jaxgen.files.cache_files import find, keep

logger = logging.getLogger(__name__)

CHECKSUMS = "autotuned.json"
_EMPTY = hashlib.sha256().hexdigest()


@contextmanager
def checked(folder: Path) -> Iterator[None]:
    """Remove damaged files from ``folder``, with one warning, and keep checksums of the new ones afterwards.

    A file without a checksum stays if it is not empty: a process that was killed has written it, or it was copied here.
    """
    path = folder.with_name(CHECKSUMS)
    digests = _digests(folder)
    noted = _read_digests(path) if digests else {}
    damaged = {
        name: digest for name, digest in digests.items() if digest == _EMPTY or digest != noted.get(name, digest)
    }
    for name in damaged:
        with suppress(OSError):
            (folder / name).unlink()
    if damaged:
        logger.warning(
            "%s: %d files of what XLA measured are damaged, the first is %s: it measures again",
            *(folder, len(damaged), min(damaged)),
        )
    try:
        yield
    finally:
        # two processes may have written one file, each with times of its own: the last to come here notes what is there
        now = _digests(folder)
        new = {name: digest for name, digest in now.items() if digest not in (noted.get(name), damaged.get(name))}
        if new:
            keep(
                path, json.dumps({name: digest for name, digest in (_read_digests(path) | new).items() if name in now})
            )


def _read_digests(path: Path) -> dict[str, str]:
    text = find(path, "what XLA measured of a GPU's kernels is used unchecked this time")
    return {} if text is None else dict(json.loads(text))


def _digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file by name; a folder of XLA's own in it has what is being written."""
    result = {}
    for file in sorted(folder.glob("*")):
        with suppress(OSError):  # a folder, or gone meanwhile
            result[file.name] = hashlib.sha256(file.read_bytes()).hexdigest()
    return result
