"""The format of a block in a KV tier: a header with lengths and checksum, then the content. Host only, no jax.

    magic "jaxgenkv", version (uint16), the store's key (16 bytes), content's length (uint64), CRC-32 of key and content

all little-endian. The checksum finds what disks, networks and killed writers do to a value; it does not stop a person
who may write to the store. With a secret the version is 2, and an HMAC-SHA256 (RFC 2104) of header and content follows
the header: only who knows the secret can make such a value.
"""

from collections.abc import Buffer, Sequence
from hashlib import sha256
from hmac import compare_digest
from hmac import new as new_hmac
from struct import Struct
from zlib import crc32

MAGIC, VERSION, SEALED_VERSION = b"jaxgenkv", 1, 2
_HEADER = Struct("<8sH16sQI")
OVERHEAD_BYTES = _HEADER.size + sha256().digest_size
"""Most bytes of a value beyond its content."""


class DamagedError(Exception):
    """A value is not what was written."""


def frame(key: bytes, parts: Sequence[Buffer], secret: bytes = b"") -> list[Buffer]:
    """Return the parts of the value that holds this content under this key. ``secret``: empty: it is not sealed."""
    length, checksum = 0, crc32(key)
    for part in parts:
        length += memoryview(part).nbytes
        checksum = crc32(part, checksum)
    header = _HEADER.pack(MAGIC, SEALED_VERSION if secret else VERSION, key, length, checksum)
    return [header, *([_seal(secret, [header, *parts])] if secret else []), *parts]


def _seal(secret: bytes, parts: Sequence[Buffer]) -> bytes:
    mac = new_hmac(secret, digestmod=sha256)
    for part in parts:
        mac.update(memoryview(part))
    return mac.digest()


def content_of(key: bytes, value: bytes, secret: bytes = b"") -> memoryview:
    """Return the content of a value. Raises DamagedError, which says what differs. ``secret``: as for ``frame``."""
    head, expected = _HEADER.size, SEALED_VERSION if secret else VERSION
    begin = head + (sha256().digest_size if secret else 0)
    if len(value) < begin:
        raise DamagedError(f"it has {len(value)} bytes, less than a header")
    magic, version, written_for, length, checksum = _HEADER.unpack_from(value)
    content = memoryview(value)[begin:]
    if magic != MAGIC:
        raise DamagedError("it does not begin as values do")
    if version != expected:
        raise DamagedError(f"its version is {version}, not {expected}")
    if written_for != key:
        raise DamagedError("it was written for another key")
    if length != len(content):
        raise DamagedError(f"it holds {len(content)} bytes of {length}")
    if crc32(content, crc32(key)) != checksum:
        raise DamagedError("its checksum is wrong")
    if secret and not compare_digest(value[head:begin], _seal(secret, [value[:head], content])):
        raise DamagedError("it was not made with the key of --kv-tier-key")
    return content
