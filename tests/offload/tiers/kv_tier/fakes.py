"""A store in memory that fails, hangs or lies when a test says so, and blocks of bytes."""

import threading
from collections.abc import Buffer, Callable, Sequence

from jaxgen.offload.tiers.host_store import HostBlock
from jaxgen.offload.tiers.kv_tier.kv_tier import KVTier
from jaxgen.offload.tiers.kv_tier.store import MOST_BYTES
from jaxgen.offload.tiers.kv_tier.value import DamagedError

SIZE = 8


class MemoryStore:
    """A ``ByteStore``. ``gate``: calls wait until it is set; ``error``: what they raise.

    ``latency``, ``bytes_per_second``: what calls take by ``clock``.
    """

    name = "memory"

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.gate = threading.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.write_error: Exception | None = None
        self.clock: Clock | None = None
        self.latency, self.bytes_per_second = 0.0, float("inf")

    def _call(self, error: Exception | None = None, num_bytes: int = 0) -> None:
        assert self.gate.wait(60)
        if self.clock is not None:
            self.clock.now += self.latency + num_bytes / self.bytes_per_second
        if error or self.error:
            raise error or self.error or AssertionError

    def count(self, keys: Sequence[bytes]) -> int:
        self._call()
        return next((index for index, key in enumerate(keys) if key not in self.values), len(keys))

    def last(self, keys: Sequence[bytes]) -> int:
        self._call()
        return max([number for number, key in enumerate(keys, 1) if key in self.values], default=0)

    def get(self, keys: Sequence[bytes], longest: int = MOST_BYTES) -> list[bytes | None]:
        found = [self.values.get(key) for key in keys]
        values = [None if value is None else value[: longest + 1] for value in found]
        self._call(num_bytes=sum(len(value) for value in values if value is not None))
        return values

    def put(self, key: bytes, parts: Sequence[Buffer]) -> bool:
        self._call(self.write_error)
        new = key not in self.values
        self.values.setdefault(key, b"".join(parts))
        return new

    def remove(self, key: bytes) -> None:
        self._call()
        self.values.pop(key, None)


class Bytes:
    """A ``BlockFormat`` of blocks whose K and V are SIZE bytes."""

    num_bytes = most_bytes = SIZE

    def parts(self, block: HostBlock) -> Sequence[Buffer]:
        return [block.kv]

    def block(self, content: memoryview) -> HostBlock:
        if len(content) != SIZE:
            raise DamagedError(f"{len(content)} bytes")
        return HostBlock(bytes(content))


class States(Bytes):
    """A ``BlockFormat`` of snapshots, which have twice the bytes."""

    num_bytes = most_bytes = 2 * SIZE

    def block(self, content: memoryview) -> HostBlock:
        if len(content) != 2 * SIZE:
            raise DamagedError(f"{len(content)} bytes")
        return HostBlock(bytes(content))


class Clock:
    """A clock that a test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def key(n: int) -> bytes:
    return bytes([n])


def block(n: int) -> HostBlock:
    return HostBlock(bytes([n]) * SIZE)


def state(n: int) -> HostBlock:
    return HostBlock(bytes([n]) * 2 * SIZE)


def tier_of(
    store: MemoryStore, namespace: bytes = b"model", clock: Callable[[], float] | None = None, secret: bytes = b""
) -> KVTier:
    return KVTier(store, [Bytes(), Bytes()], namespace, secret=secret, state_form=States(), clock=clock or Clock())


def written(tier: KVTier, *numbers: int) -> None:
    """Keep these blocks, and wait until what is queued is written."""
    for n in numbers:
        tier.keep(key(n), block(n))
    done = threading.Event()
    tier._writer.submit(done.set)
    assert done.wait(60)


def answered(tier: KVTier) -> None:
    """Pass on the answers to all that was asked so far."""
    done = threading.Event()
    tier._reader.submit(done.set)
    assert done.wait(60)
    tier.poll()
