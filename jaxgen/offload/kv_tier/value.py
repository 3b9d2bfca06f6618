"""The format of a block in a KV tier: a header with lengths and checksum, then the content. Host only, no jax.

    magic "jaxgenkv", version (uint16), the store's key (16 bytes), content's length (uint64), CRC-32 of key and content

all little-endian. The checksum finds what disks, networks and killed writers do to a value; it does not stop a person
who may write to the store.
"""

from collections.abc import Buffer, Sequence
from struct import Struct
from zlib import crc32

MAGIC, VERSION = b"jaxgenkv", 1
_HEADER = Struct("<8sH16sQI")


class DamagedError(Exception):
    """A value is not what was written."""


def frame(key: bytes, parts: Sequence[Buffer]) -> list[Buffer]:
    """Return the parts of the value that holds this content under this key."""
    length, checksum = 0, crc32(key)
    for part in parts:
        length += memoryview(part).nbytes
        checksum = crc32(part, checksum)
    return [_HEADER.pack(MAGIC, VERSION, key, length, checksum), *parts]


def content_of(key: bytes, value: bytes) -> memoryview:
    """Return the content of a value. Raises DamagedError, which says what differs."""
    if len(value) < _HEADER.size:
        raise DamagedError(f"it has {len(value)} bytes, less than a header")
    magic, version, written_for, length, checksum = _HEADER.unpack_from(value)
    content = memoryview(value)[_HEADER.size :]
    if magic != MAGIC:
        raise DamagedError("it does not begin as values do")
    if version != VERSION:
        raise DamagedError(f"its version is {version}, not {VERSION}")
    if written_for != key:
        raise DamagedError("it was written for another key")
    if length != len(content):
        raise DamagedError(f"it holds {len(content)} bytes of {length}")
    if crc32(content, crc32(key)) != checksum:
        raise DamagedError("its checksum is wrong")
    return content
