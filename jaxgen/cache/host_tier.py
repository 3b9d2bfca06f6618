"""The interfaces of a host memory tier behind the KV cache, and of what fetches blocks into it. Host only, no jax."""

from collections import abc
from typing import Protocol

from jaxgen.cache.block_pool import PoolWatcher
from jaxgen.core.sequence import Fetch, Restore, Sequence
from jaxgen.core.step_plan import Save


class Fetcher(Protocol):
    """Fetches KV blocks into host memory from a KV tier behind it. ``jaxgen.offload.tiers.kv_tier`` implements it."""

    def fetch(self, sequence: Sequence, start: int, keys: abc.Sequence[bytes], num_waiting: int) -> Fetch | None:
        """Begin to fetch the blocks of ``keys``, at least one, for a waiting sequence, if that pays.

        They follow its first ``start`` tokens. Returns another sequence's fetch that brings the first of them, and
        None if there is no room for blocks now.
        """
        ...

    def may_wait(self, fetch: Fetch) -> bool:
        """Whether a sequence that could begin now should wait for a fetch: it is under way and not late."""
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

    def take_saves(self) -> tuple[Save, ...]:
        """Return the blocks to copy to the host before the step that is being planned."""
        ...

    def copied(self, source: int, target: int) -> None:
        """Note that a block of the device gets the content of another one before the step that is being planned."""
        ...

    def plan_restore(
        self, sequence: Sequence, first: int, keys: list[bytes], *, free_tokens: int, num_waiting: int
    ) -> Restore | None:
        """Plan the restore of the blocks of ``keys`` into the sequence's blocks from index ``first`` on.

        The host holds all of ``keys``. The restore may recompute some of them: that costs tokens of the ``free_tokens``
        of a step, and time of the ``num_waiting`` other sequences. None: the sequence recomputes all of them.
        """
        ...
