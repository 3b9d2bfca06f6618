"""The interface of a host memory tier behind the KV cache. Host only, no jax."""

from typing import Protocol

from jaxgen.cache.block_pool import PoolWatcher
from jaxgen.core.sequence import Restore, Sequence
from jaxgen.core.step_plan import Save


class HostTier(PoolWatcher, Protocol):
    """KV blocks in host memory: copies of blocks that the device no longer uses. ``jaxgen.offload`` implements it."""

    def holds(self, key: bytes) -> bool:
        """Whether the host has the block of this key, complete."""
        ...

    def take_saves(self) -> tuple[Save, ...]:
        """Return the blocks to copy to the host before the step that is being planned."""
        ...

    def plan_restore(
        self, sequence: Sequence, first: int, keys: list[bytes], *, free_tokens: int, num_waiting: int
    ) -> Restore | None:
        """Plan the restore of the blocks of ``keys`` into the sequence's blocks from index ``first`` on.

        The host holds all of ``keys``. The restore may recompute some of them: that costs tokens of the ``free_tokens``
        of a step, and time of the ``num_waiting`` other sequences. None: the sequence recomputes all of them.
        """
        ...
