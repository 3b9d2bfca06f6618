"""Decide which blocks are saved to host memory, and how they are restored. Host only, no jax, no clock.

Cached blocks, which have no owner, are copied to the host, a few with every step, before the device needs their place.
A block that is evicted before that is copied at once if the copies under way leave room; otherwise it is lost. For an
admitted sequence, the first of its blocks in host memory are recomputed and the others copied, split so that both end
at the same time.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from jaxgen.core.sequence import Restore, Sequence
from jaxgen.core.stats import OffloadStats
from jaxgen.core.step_plan import Save
from jaxgen.offload.tiers.host_store import HostBlock, HostStore
from jaxgen.offload.tiers.kv_tier.prefetcher import Prefetcher


@dataclass(frozen=True, slots=True)
class Split:
    """Split of a context in host memory: the first ``recompute`` blocks are recomputed, the next ``project`` blocks
    projected from their layer inputs, the others copied as K and V. ``seconds``: predicted time."""

    recompute: int
    seconds: float
    project: int = 0


Planner = Callable[[int, int, int, int, bool], Split]
"""(blocks in host memory, tokens before them, tokens free in a step, waiting sequences, whether the host has the layer
inputs of all blocks) -> their Split."""


class OffloadTier:
    """The host's part of the KV cache, for the scheduler and the block pool: a ``HostTier``."""

    def __init__(
        self,
        store: HostStore[HostBlock],
        *,
        block_size: int,
        most_saving: int,
        planner: Planner,
        fetcher: Prefetcher | None = None,
    ) -> None:
        """``most_saving``: most blocks that may be copied to the host at a time. ``fetcher``: of a KV tier.

        Raises ValueError if ``most_saving`` is below 1: blocks would wait for ever.
        """
        if most_saving < 1:
            raise ValueError(f"most_saving must be 1 or more, not {most_saving}")
        self.store = store
        self.counters = OffloadStats()
        """Counters of the tier; the other fields are filled in where a snapshot is made."""
        self._block_size = block_size
        self._most_saving = most_saving
        self.planner = planner
        self.fetcher = fetcher
        self._candidates: OrderedDict[bytes, int] = OrderedDict()
        self._saves: list[Save] = []
        self._without_inputs: set[int] = set()
        """Blocks restored as K and V only; for a time also some blocks that were computed again since."""
        self.is_open = True
        """Whether blocks are copied to the host; see ``close``."""

    @property
    def has_saves(self) -> bool:
        """Whether any block waits to be copied, or is being copied."""
        return bool((self.is_open and self._candidates) or self._saves or self.store.num_reserved)

    def holds(self, key: bytes) -> bool:
        """Whether the host has the block of this key, complete."""
        return self.store.holds(key)

    def cached(self, block: int, key: bytes) -> None:
        """Note that the block has no owner any more; its content stays until it is evicted."""
        if not self.store.has_place(key):
            self._candidates[key] = block
            self._candidates.move_to_end(key)

    def evicted(self, block: int, key: bytes) -> None:
        """Save the block now if it waits to be saved, because the next step may overwrite it."""
        waits = self._candidates.pop(key, None) is not None
        if waits and not self._save(block, key) and not self.store.has_place(key):
            self.counters.lost_blocks += 1
        self._without_inputs.discard(block)

    def copied(self, source: int, target: int) -> None:
        """Note that the target has layer inputs only if its source has."""
        if source in self._without_inputs:
            self._without_inputs.add(target)

    def take_saves(self) -> tuple[Save, ...]:
        """Return the blocks to copy before the step that is being planned."""
        while self.is_open and self._candidates and self.store.num_reserved < self._most_saving:
            key, block = next(iter(self._candidates.items()))
            if not self._save(block, key) and not self.store.has_place(key):
                break  # all places are reserved or pinned: it waits for one
            del self._candidates[key]
        saves, self._saves = tuple(self._saves), []
        return saves

    def saved(self, key: bytes, piece: HostBlock | None) -> None:
        """Note that a copy to the host has ended; ``piece`` None: it failed."""
        if piece is None:
            self.store.cancel_reservation(key)
            self.counters.failed_saves += 1
        else:
            self.store.put(key, piece)
            self.counters.saved_blocks += 1
            if self.fetcher is not None:
                self.fetcher.keep(key, piece)

    def close(self) -> None:
        """Stop copying blocks to the host: there is no memory for them."""
        self.is_open = False

    def forgotten(self) -> None:
        """Drop all blocks that wait to be saved, since the content of the device's blocks is unknown now."""
        for save in self._saves:
            self.store.cancel_reservation(save.key)
        self._saves.clear()
        self._candidates.clear()
        self._without_inputs.clear()

    def fail(self) -> None:
        """Free the places of all saves under way, and unpin all pieces: no copy or fetch that was begun will end."""
        self.counters.failed_saves += self.store.num_reserved
        self.store.end_copies()
        if self.fetcher is not None:
            self.fetcher.fail()

    def plan_restore(
        self, sequence: Sequence, first: int, keys: list[bytes], *, free_tokens: int, num_waiting: int
    ) -> Restore | None:
        """Plan the restore of the blocks of ``keys``, all in the store, into a sequence's blocks from ``first`` on.

        The sequence's blocks from ``first`` on are newly allocated. None: it recomputes all of them.
        """
        self._without_inputs.difference_update(sequence.blocks.ids(first))
        if not keys:
            return None
        size, counters = self._block_size, self.counters
        inputs_known = all(self.store[key].inputs is not None for key in keys)
        split = self.planner(len(keys), first * size, free_tokens, num_waiting, inputs_known)
        end, copied = first + len(keys), len(keys) - split.recompute - split.project
        counters.host_hit_tokens += len(keys) * size
        counters.planned_recompute_tokens += split.recompute * size
        counters.planned_project_tokens += split.project * size
        counters.planned_restore_tokens += copied * size
        if split.recompute == len(keys):
            counters.recomputes += 1
            return None
        counters.restores += 1
        self._without_inputs.update(sequence.blocks.ids(end - copied, end))
        first, keys = first + split.recompute, keys[split.recompute :]
        return Restore(
            sequence,
            first,
            sequence.blocks.ids(first, end),
            tuple(keys),
            tuple(self.store.pin(keys)),
            first * size,
            end * size,
            split.seconds,
            split.project,
        )

    def release(self, restore: Restore, *, whole: bool, seconds: float = 0.0) -> None:
        """Unpin the pieces of a restore that has ended. ``whole``: all of them arrived, in ``seconds``."""
        self.store.unpin(restore.keys)
        if restore.cancelled:
            return
        counters = self.counters
        if whole:
            projected = restore.num_projected * self._block_size
            counters.projected_tokens += projected
            counters.restored_tokens += restore.end - restore.start - projected
            counters.predicted_seconds += restore.seconds
            counters.restore_seconds += seconds
        else:
            counters.failed_restores += 1
            self._without_inputs.difference_update(restore.blocks)  # its sequence recomputes them

    def _save(self, block: int, key: bytes) -> bool:
        if not self.is_open or self.store.num_reserved >= self._most_saving or not self.store.reserve(key):
            return False
        self._saves.append(Save(block, key, block not in self._without_inputs))
        return True
