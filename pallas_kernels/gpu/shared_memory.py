"""Say how much shared memory a thread block (CTA) has, and what takes how much of it. Imports no jax."""

import math
from collections.abc import Iterable

HOPPER = 227 * 1024
"""Bytes that a CTA may have on Hopper, and on data-centre Blackwell."""
BLACKWELL_RTX = 99 * 1024
"""The same on Blackwell of compute capability 12."""
COPY_ALIGNMENT = 128
"""Bytes that an address in shared memory is a multiple of where a bulk copy begins. Neither Mosaic nor the interpreter
checks it; an H200 ends a process that breaks it."""
_ARRAY_ALIGNMENT = 1024
_BARRIER_BYTES = 8


def aligned_rows(rows: int, row_bytes: int) -> int:
    """Return the fewest rows, at least ``rows``, behind which a bulk copy may begin."""
    step = COPY_ALIGNMENT // math.gcd(COPY_ALIGNMENT, row_bytes)
    return -(-rows // step) * step


def taken(arrays: Iterable[int], barriers: int) -> int:
    """Return the bytes that Mosaic takes for arrays of these sizes in bytes, and for barriers."""
    return sum(-(-size // _ARRAY_ALIGNMENT) * _ARRAY_ALIGNMENT for size in arrays) + barriers * _BARRIER_BYTES
