"""Keep parameters as programs read them, so that the next start neither converts nor packs them again.

A file has the arrays one after the other and, behind them, the SHA-256 of all that. Only for a CPU: the arrays are used
where the file was read to.
"""

import hashlib
import logging
import mmap
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from math import prod
from pathlib import Path

import jax
import numpy as np

from jaxgen.files.cache_files import make_room, new_file
from jaxgen.models.model import PackedParams

logger = logging.getLogger(__name__)

MAX_BYTES = 2 * 2**30
"""Bytes of all files in a folder, of which those used least recently go first; more is not kept."""
_ALIGNMENT = 64
"""Bytes; XLA uses an array that lies so without a copy."""
_PIECE = 1 << 22
"""Bytes that are read and hashed at a time."""
_SEAL = hashlib.sha256().digest_size


def read_prepared(path: Path, shapes: PackedParams) -> PackedParams | None:
    """Return the parameters of a file, or None if there is none that is whole.

    A damaged one is removed, with a warning. ``shapes``: those of the parameters, as of ``abstract_packed_params``.
    """
    leaves, tree = jax.tree.flatten(shapes)
    starts, size = _places(leaves)
    try:
        with path.open("rb") as file:
            whole = os.fstat(file.fileno()).st_size == size + _SEAL
            contents = _read(file.fileno(), size) if whole else None
            if contents is None or file.read(_SEAL) != contents[1]:
                logger.warning("%s is damaged: the weights are loaded from the model's files", path)
                path.unlink(missing_ok=True)
                return None
        os.utime(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        logger.warning("%s cannot be read (%s): the weights are loaded from the model's files", path, error)
        return None
    memory, _ = contents
    arrays = [
        np.frombuffer(memory, leaf.dtype, prod(leaf.shape), start).reshape(leaf.shape)
        for leaf, start in zip(leaves, starts, strict=True)
    ]
    params: PackedParams = jax.tree.unflatten(tree, jax.device_put(arrays))
    return params


def write_prepared(path: Path, params: PackedParams) -> None:
    """Write a file for ``read_prepared``, unless it is too large to keep. If that fails, log a warning."""
    leaves = jax.tree.leaves(params)
    starts, size = _places(leaves)
    try:
        if size > MAX_BYTES or size > shutil.disk_usage(path.parent).free // 2:
            logger.debug("the prepared weights are not kept: they have %d MiB", size >> 20)
            return
        make_room(path.parent, size, MAX_BYTES)
        digest, written = hashlib.sha256(), 0
        with new_file(path) as file:
            for leaf, start in zip(leaves, starts, strict=True):
                data = np.asarray(leaf).reshape(-1).view(np.uint8)
                for part in (bytes(start - written), memoryview(data)):
                    file.write(part)
                    digest.update(part)
                written = start + data.nbytes
            file.write(digest.digest())
    except OSError as error:
        logger.warning("%s cannot be written: %s", path, error)


def _places(leaves: Sequence[jax.Array | jax.ShapeDtypeStruct]) -> tuple[list[int], int]:
    """Return where each array begins, and where the last ends, in bytes."""
    starts, end = [], 0
    for leaf in leaves:
        starts.append(-(-end // _ALIGNMENT) * _ALIGNMENT)
        end = starts[-1] + prod(leaf.shape) * leaf.dtype.itemsize
    return starts, end


def _read(file: int, size: int) -> tuple[mmap.mmap, bytes] | None:
    """Return memory with the first ``size`` bytes of a file, in large pages if there are, and their SHA-256.

    None: the file has fewer. A thread hashes each piece while the next ones are read.
    """
    memory = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    view, done, digest = memoryview(memory), 0, hashlib.sha256()
    with ThreadPoolExecutor(1) as hashing:
        while done < size:
            count = os.preadv(file, [view[done : min(done + _PIECE, size)]], done)
            if count == 0:
                return None
            hashing.submit(digest.update, view[done : done + count])
            done += count
    os.lseek(file, size, os.SEEK_SET)
    return memory, digest.digest()
