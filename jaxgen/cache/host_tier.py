"""The interfaces of a host memory tier behind the KV cache, and of what fetches blocks into it. Host only, no jax."""

from collections import abc
from dataclasses import dataclass
from typing import Protocol

from jaxgen.cache.block_pool import PoolWatcher
from jaxgen.cache.prefix_cache import KEY_BYTES
from jaxgen.core.sequence import Fetch, Restore, Sequence
from jaxgen.core.step_plan import Save

_OF_STATE = b"state"


def state_key(key: bytes) -> bytes:
    """Return the key in host memory of the snapshot at the end of the block of this key."""
    return key + _OF_STATE


def is_state_key(key: bytes) -> bool:
    """Whether a key in host memory is that of a snapshot, not of a block."""
    return len(key) != KEY_BYTES and key.endswith(_OF_STATE)  # a block's key may end with anything


def window_key(key: bytes, kind: int) -> bytes:
    """Return the key in host memory of the block of this key in a kind of cache with a window, by the kind's number."""
    return key + bytes([kind])


def kind_of(key: bytes) -> int:
    """Return the number of the kind of cache whose block has this key in host memory."""
    return key[-1] if len(key) == KEY_BYTES + 1 else 0


@dataclass(frozen=True, slots=True)
class ComingWindow:
    """Blocks of a kind of cache with a window that a sequence has, and whose contents come from host memory.

    ``kind``: the number of the kind among all of the cache. ``keys``: of the contents in host memory.
    """

    kind: int
    blocks: tuple[int, ...]
    keys: tuple[bytes, ...]


class Fetcher(Protocol):
    """Fetches KV blocks into host memory from a KV tier behind it. ``jaxgen.offload.tiers.kv_tier`` implements it."""

    def fetch(
        self,
        sequence: Sequence,
        start: int,
        keys: abc.Sequence[bytes],
        num_waiting: int,
        states: abc.Sequence[bytes] = (),
        windows: abc.Callable[[int], list[bytes]] | None = None,
    ) -> Fetch | None:
        """Begin to fetch the blocks of ``keys`` for a waiting sequence, if that pays.

        ``states``: as of a ``Fetch``; ``windows``: its ``at_end``.
        They follow its first ``start`` tokens. Returns another sequence's fetch that brings the first of them, and
        None if there is no room for blocks now.
        """
        ...

    def may_wait(self, fetch: Fetch) -> bool:
        """Whether a sequence that could begin now should wait for a fetch: it is under way and not late."""
        ...


class PartTier(PoolWatcher, Protocol):
    """What host memory has of a part of the cache: blocks of a window, or snapshots of states.

    Snapshots go by the keys of the blocks at whose ends they were taken. A watcher of them is told their places in
    place of blocks.
    """

    def holds(self, key: bytes) -> bool:
        """Whether the host has the block, or the snapshot, of this key, complete."""
        ...


class HostTier(PoolWatcher, Protocol):
    """KV blocks in host memory: copies of blocks that the device no longer uses. ``jaxgen.offload`` implements it."""

    @property
    def fetcher(self) -> Fetcher | None:
        """The fetcher of blocks behind host memory; None: there is none."""
        ...

    def holds(self, key: bytes) -> bool:
        """Whether the host has the block of this key, complete."""
        ...

    @property
    def states(self) -> PartTier | None:
        """Snapshots of states; None: the model has no states, or host memory does not hold one."""
        ...

    @property
    def windows(self) -> abc.Sequence[PartTier]:
        """Blocks of each kind of cache with a window."""
        ...

    def take_saves(self) -> tuple[Save, ...]:
        """Return the blocks to copy to the host before the step that is being planned."""
        ...

    def take_state_saves(self) -> tuple[Save, ...]:
        """Return the snapshots to copy to the host before the step that is being planned."""
        ...

    def copied(self, source: int, target: int) -> None:
        """Note that a block of the device gets the content of another one before the step that is being planned."""
        ...

    def pin(self, keys: abc.Sequence[bytes]) -> object:
        """Keep what the host has by these keys of its own until ``unpin``. Raises KeyError if it lacks one."""
        ...

    def unpin(self, keys: abc.Sequence[bytes]) -> None:
        """Allow eviction of these keys again."""
        ...

    def pays(self, again: int, start: int, copied: tuple[int, ...], *, with_state: bool) -> bool:
        """Whether ``copied`` blocks of each kind of cache, and a state, come sooner than ``again`` ones are computed.

        ``start``: tokens before these.
        """
        ...

    def plan_restore(
        self,
        sequence: Sequence,
        first: int,
        keys: list[bytes],
        *,
        free_tokens: int,
        num_waiting: int,
        state: tuple[bytes, int] | None = None,
        windows: tuple[ComingWindow, ...] = (),
        can_compute: bool = True,
    ) -> Restore | None:
        """Plan the restore of the blocks of ``keys`` into the sequence's blocks from index ``first`` on.

        The host holds all of ``keys``. The restore may recompute some of them: that costs tokens of the ``free_tokens``
        of a step, and time of the ``num_waiting`` other sequences. None: the sequence recomputes all of them.
        ``state``: the key of a snapshot that comes with them, and its place on the device. ``windows``: blocks of
        windows that come with them. ``can_compute`` False: none is recomputed, since the sequence lacks the state, or
        the windows, before them.
        """
        ...
