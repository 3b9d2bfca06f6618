"""Memory that this process has freed, and that its C library keeps. Host only."""

from collections.abc import Callable
from ctypes import CDLL
from functools import cache


@cache
def _trim() -> Callable[[int], int] | None:
    """Return the C library's function that gives free memory back; None: it has none (glibc alone has one)."""
    return getattr(CDLL(None), "malloc_trim", None)


def return_free_memory() -> None:
    """Give memory that is free back to the system, which takes some milliseconds."""
    if (trim := _trim()) is not None:
        trim(0)
