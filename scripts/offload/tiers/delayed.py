"""A store of bytes behind a link that is as slow as a measurement asks for."""

import time
from collections.abc import Buffer, Sequence

from jaxgen.offload.kv_tier.store import ByteStore


class DelayedStore:
    """A ``ByteStore`` whose calls end when a link would have carried them, or when the store has, if that is later.

    ``latency``: seconds of a call. ``bytes_per_second``: of the values that it brings or takes.
    """

    def __init__(self, store: ByteStore, latency: float = 0.0, bytes_per_second: float = float("inf")) -> None:
        self._store = store
        self.latency, self.bytes_per_second = latency, bytes_per_second

    @property
    def name(self) -> str:
        return f"{self._store.name} behind a delayed link"

    def count(self, keys: Sequence[bytes]) -> int:
        """See ByteStore."""
        started = time.perf_counter()
        found = self._store.count(keys)
        self._until(started, 0)
        return found

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See ByteStore."""
        started = time.perf_counter()
        values = self._store.get(keys)
        self._until(started, sum(len(value) for value in values if value is not None))
        return values

    def put(self, key: bytes, parts: Sequence[Buffer]) -> bool:
        """See ByteStore."""
        started = time.perf_counter()
        stored = self._store.put(key, parts)
        self._until(started, sum(memoryview(part).nbytes for part in parts) if stored else 0)
        return stored

    def remove(self, key: bytes) -> None:
        """See ByteStore."""
        started = time.perf_counter()
        self._store.remove(key)
        self._until(started, 0)

    def _until(self, started: float, num_bytes: int) -> None:
        due = started + self.latency + num_bytes / self.bytes_per_second
        time.sleep(max(0.0, due - time.perf_counter()))
