"""Large pages under memory that every step reads, so that fewer addresses are looked up. Host only, no jax.

Linux gives an allocation pages of 4 KiB unless it is told otherwise. A step reads all weights once, so that each page
is looked up again in every step. docs/performance.md has the times.
"""

import ctypes
import functools
import sys
from collections.abc import Callable

LARGE_PAGE = 2 << 20  # bytes, of x86-64 and of Arm with pages of 4 KiB
_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25  # linux/mman.h; the second since Linux 6.1


@functools.cache
def _madvise() -> Callable[[int, int, int], int] | None:
    """Return madvise(2) of (address, bytes, advice), which gives 0 or -1; None where there is none."""
    if sys.platform != "linux":
        return None
    function = ctypes.CDLL(None, use_errno=True).madvise
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    function.restype = ctypes.c_int
    return function


def use_large_pages(address: int, num_bytes: int) -> int:
    """Move the whole large pages of [address, address + num_bytes) into such pages; what they hold stays the same.

    Returns the bytes moved: 0 where the system has no such pages or none is free. Takes about as long as a copy, and
    one page of extra memory.
    """
    madvise = _madvise()
    begin = -(-address // LARGE_PAGE) * LARGE_PAGE
    size = (address + num_bytes) // LARGE_PAGE * LARGE_PAGE - begin
    if madvise is None or size <= 0 or madvise(begin, size, _MADV_HUGEPAGE):
        return 0
    return 0 if madvise(begin, size, _MADV_COLLAPSE) else size
