"""Which blocks go to host memory, and which come back from there, how. Host only, no jax, no clock.

Blocks that nobody uses any more are copied to the host, a few with every step, before the device needs their place;
one that is evicted before its turn has come goes at once, if the copies under way leave room, and is lost if not. A
sequence that is admitted gets the leading part of what the host knows recomputed and the rest restored, split so that
both end together.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from jaxgen.core.sequence import Restore, Sequence
from jaxgen.core.stats import OffloadStats
from jaxgen.core.step_plan import Save
from jaxgen.offload.host_store import HostBlock, HostStore


@dataclass(frozen=True, slots=True)
class Split:
    """How a context that the host knows comes back: so many blocks recomputed, the next ones projected from their layer
    inputs, the others copied as K and V."""

    recompute: int
    seconds: float
    project: int = 0


Planner = Callable[[int, int, int, int, bool], Split]
"""(blocks known to the host, tokens before them, tokens free in a step, sequences that wait, whether the host has the
layer inputs of all blocks) -> how they come back."""


class OffloadTier:
    """The host's half of the KV cache, as the scheduler and the block pool see it: a ``HostTier``."""

    def __init__(self, store: HostStore[HostBlock], *, block_size: int, most_saving: int, planner: Planner) -> None:
        """``most_saving``: blocks that may be on their way to the host at a time."""
        self.store = store
        self.counters = OffloadStats()
        """Of these the tier counts what it sees; the rest is filled in where a snapshot is made."""
        self._block_size = block_size
        self._most_saving = most_saving
        self.planner = planner
        self._candidates: OrderedDict[bytes, int] = OrderedDict()
        self._saves: list[Save] = []
        self._without_inputs: set[int] = set()
        """Blocks that came as K and V alone; for a time also some that were computed since."""
        self._open = True

    @property
    def has_saves(self) -> bool:
        """Whether any block waits to be copied, or is being copied."""
        return bool(self._candidates or self._saves or self.store.num_reserved)

    def holds(self, key: bytes) -> bool:
        """Whether the host has the block of this key, complete."""
        return self.store.holds(key)

    def cached(self, block: int, key: bytes) -> None:
        """Nobody uses the block any more; its content stays until it is evicted."""
        if self._open and not self.store.has_place(key):
            self._candidates[key] = block
            self._candidates.move_to_end(key)

    def evicted(self, block: int, key: bytes) -> None:
        """The next step may overwrite the block."""
        waits = self._candidates.pop(key, None) is not None
        if waits and not self._save(block, key) and not self.store.has_place(key):
            self.counters.lost_blocks += 1
        self._without_inputs.discard(block)

    def take_saves(self) -> tuple[Save, ...]:
        """What is to be copied before the step that is being planned."""
        while self._candidates and self.store.num_reserved < self._most_saving:
            key, block = self._candidates.popitem(last=False)
            if not self._save(block, key) and not self.store.has_place(key):
                break  # every place is reserved or pinned: what is in use now is worth more
        saves, self._saves = tuple(self._saves), []
        return saves

    def saved(self, key: bytes, piece: HostBlock | None) -> None:
        """The copy has ended; ``piece`` None: it failed."""
        if piece is None:
            self.store.give_up(key)
            self.counters.failed_saves += 1
        else:
            self.store.fill(key, piece)
            self.counters.saved_blocks += 1

    def close(self) -> None:
        """Copy nothing more to the host: there is no memory for it."""
        self._open = False
        self._candidates.clear()

    def forgotten(self) -> None:
        """Nothing is known of any block on the device any more."""
        for save in self._saves:
            self.store.give_up(save.key)
        self._saves.clear()
        self._candidates.clear()
        self._without_inputs.clear()

    def plan_restore(
        self, sequence: Sequence, first: int, keys: list[bytes], *, free_tokens: int, num_waiting: int
    ) -> Restore | None:
        """How the blocks of ``keys``, all in the store, become those from ``first`` on of a sequence that has its
        blocks, of which these and all behind them are new; None: it computes them all."""
        self._without_inputs.difference_update(sequence.block_table[first:])
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
        self._without_inputs.update(sequence.block_table[end - copied : end])
        first, keys = first + split.recompute, keys[split.recompute :]
        return Restore(
            sequence,
            first,
            tuple(sequence.block_table[first:end]),
            tuple(keys),
            tuple(self.store.pin(keys)),
            first * size,
            end * size,
            split.seconds,
            split.project,
        )

    def release(self, restore: Restore, *, whole: bool, seconds: float = 0.0) -> None:
        """Nothing is read from its pieces any more. ``whole``: all of it came, in so many seconds."""
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
            self._without_inputs.difference_update(restore.blocks)  # it computes them

    def _save(self, block: int, key: bytes) -> bool:
        if self.store.num_reserved >= self._most_saving or not self.store.reserve(key):
            return False
        self._saves.append(Save(block, key, block not in self._without_inputs))
        return True
