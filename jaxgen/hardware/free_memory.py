"""Memory that this process has from its C library, and that the library keeps after it is freed. Host only."""

from collections.abc import Callable
from ctypes import CDLL, Structure, c_size_t
from functools import cache


@cache
def _trim() -> Callable[[int], int] | None:
    """Return the C library's function that gives free memory back; None: it has none (glibc alone has one)."""
    return getattr(CDLL(None), "malloc_trim", None)


def return_free_memory() -> None:
    """Give memory that is free back to the system, which takes some milliseconds."""
    if (trim := _trim()) is not None:
        trim(0)


class _Mallinfo(Structure):
    """What glibc's ``mallinfo2`` returns."""

    _names = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    _fields_ = tuple((name, c_size_t) for name in _names)


def allocated_bytes() -> int:
    """Return the bytes that the C library has given to this process; 0 where it does not say (glibc alone does)."""
    ask = getattr(CDLL(None), "mallinfo2", None)
    if ask is None:
        return 0
    ask.restype = _Mallinfo
    info = ask()
    return int(info.uordblks + info.hblkhd)
