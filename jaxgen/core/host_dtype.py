"""In what form, and so in how many bytes, host memory keeps a block. Host only, no jax."""

from typing import Literal

HostDType = Literal["auto", "int8", "int4"]
HOST_DTYPES: tuple[HostDType, ...] = ("auto", "int8", "int4")
"""auto: the cache's own."""
BITS: dict[HostDType, int | None] = {"auto": None, "int8": 8, "int4": 4}
_LARGEST_GROUP = 64
_GROUP_BYTES = 4
"""Scale and least value, float16 each."""


def group_of(head_dim: int) -> int:
    """Elements that are quantised together: as many as divide a head, up to 64."""
    return next(size for size in range(min(_LARGEST_GROUP, head_dim), 0, -1) if head_dim % size == 0)


def host_bytes(block_bytes: int, *, itemsize: int, head_dim: int, host_dtype: HostDType) -> int:
    """Bytes on the host of a block that has ``block_bytes`` on the device."""
    bits = BITS[host_dtype]
    if bits is None:
        return block_bytes
    elements = block_bytes // itemsize
    return elements * bits // 8 + elements // group_of(head_dim) * _GROUP_BYTES
