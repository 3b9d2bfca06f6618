"""The number formats of KV blocks in host memory, and their bytes. Host only, no jax."""

from typing import Literal

HostDType = Literal["auto", "int8", "int4"]
HOST_DTYPES: tuple[HostDType, ...] = ("auto", "int8", "int4")
"""auto: the cache's own dtype."""
BITS: dict[HostDType, int | None] = {"auto": None, "int8": 8, "int4": 4}
_LARGEST_GROUP = 64
GROUP_BYTES = 4
"""Bytes of a group's scale and least value, float16 each."""


def group_of(head_dim: int) -> int:
    """Return how many elements are quantised together: the largest divisor of ``head_dim`` up to 64."""
    return next(size for size in range(min(_LARGEST_GROUP, head_dim), 0, -1) if head_dim % size == 0)
