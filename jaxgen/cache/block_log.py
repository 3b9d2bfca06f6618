"""Note down which contents blocks of the device come to hold and give up, for indexes kept elsewhere. Host only, no
jax."""

from collections import abc
from typing import NamedTuple, Protocol, runtime_checkable

from jaxgen.core.stats import KVEventStats


class BlockStored(NamedTuple):
    """A block holds the K and V of ``tokens``, which follow those of the block ``parent``; None: they are the first.

    ``salt``: the cache salt of all sequences that may use it.
    """

    key: bytes
    parent: bytes | None
    tokens: tuple[int, ...]
    salt: str | None


class BlockRemoved(NamedTuple):
    """No block holds the content of this key any more."""

    key: bytes


class AllBlocksCleared(NamedTuple):
    """No block holds anything that is known."""


type BlockEvent = BlockStored | BlockRemoved | AllBlocksCleared


@runtime_checkable
class BlockEventSink(Protocol):
    """Takes events of blocks in their order. ``jaxgen.kv_events`` implements it."""

    def publish(self, events: abc.Sequence[BlockEvent]) -> None:
        """Take events and return at once."""
        ...

    def stats(self) -> KVEventStats: ...

    def close(self, seconds: float) -> None:
        """Send the events that were taken, for at most the given seconds."""
        ...


class BlockLog:
    """Collects the events of a pool and of its prefix cache until they are taken."""

    def __init__(self) -> None:
        self._events: list[BlockEvent] = []

    @property
    def is_empty(self) -> bool:
        return not self._events

    def take(self) -> list[BlockEvent]:
        """Return the events since the last call, in their order."""
        events, self._events = self._events, []
        return events

    def stored(self, event: BlockStored) -> None:
        self._events.append(event)

    def cached(self, block: int, key: bytes) -> None:
        """Note nothing: the content stays."""

    def evicted(self, block: int, key: bytes) -> None:
        del block  # indexes know contents alone
        self._events.append(BlockRemoved(key))

    def forgotten(self) -> None:
        self._events = [AllBlocksCleared()]
