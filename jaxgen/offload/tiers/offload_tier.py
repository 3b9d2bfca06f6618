"""Decide which blocks are saved to host memory, and how they are restored. Host only, no jax, no clock.

Cached blocks, which have no owner, are copied to the host, and so are snapshots of states (``saver``). For an admitted
sequence, the first of its blocks in host memory are recomputed and the others copied, split so that both end at the
same time. A snapshot comes with the blocks before it. With blocks of windows all are copied.
"""

from collections import abc
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from jaxgen.cache.host_tier import ComingWindow, is_state_key, kind_of, state_key, window_key
from jaxgen.core.sequence import Restore, Sequence, StateRestore, WindowRestore
from jaxgen.core.stats import OffloadStats
from jaxgen.core.step_plan import Save
from jaxgen.offload.planning.staging import STATES_EACH_WAY
from jaxgen.offload.tiers.host_store import HostBlock, HostStore
from jaxgen.offload.tiers.kv_tier.prefetcher import Prefetcher
from jaxgen.offload.tiers.saver import Saver


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

Pays = Callable[[int, int, tuple[int, ...], bool], bool]
"""(blocks that are computed otherwise, tokens before them, blocks of each kind of cache to copy, whether a snapshot
comes too) -> whether the copies are sooner."""


@dataclass(frozen=True, slots=True)
class StatePlan:
    """How snapshots of states are kept: each takes ``places`` of the store.

    ``planner``: of blocks that a snapshot comes with.
    """

    places: int
    planner: Planner


@dataclass(frozen=True, slots=True)
class KindPlan:
    """How blocks of a kind of cache are kept: each takes ``places`` of the store.

    ``most_saving``: most of them that may be copied to the host at a time.
    """

    places: int
    most_saving: int


class OffloadTier:
    """The host's part of the KV cache, for the scheduler and the block pool: a ``HostTier``."""

    def __init__(
        self,
        store: HostStore[HostBlock],
        *,
        block_size: int,
        kinds: abc.Sequence[KindPlan],
        planner: Planner,
        fetcher: Prefetcher | None = None,
        states: StatePlan | None = None,
        pays: Pays | None = None,
    ) -> None:
        """``kinds``: of the cache, those with a window after the first. ``fetcher``: of a KV tier.

        ``states``: None: the model has none. ``pays``: decides where all blocks are copied, or none is: where the model
        has states or several kinds.
        """
        self.store = store
        self._counters = OffloadStats()
        self._block_size = block_size
        self.planner = planner
        self._state_plan = states
        self._pays = pays
        self.fetcher = fetcher
        self._without_inputs: set[int] = set()
        """Blocks restored as K and V only; for a time also some blocks that were computed again since."""
        first, *others = kinds
        self._blocks = Saver(
            *(store, first.most_saving),
            places=first.places,
            has_inputs=lambda block: block not in self._without_inputs,
        )
        self.windows = [
            Saver(store, one.most_saving, places=one.places, kind=kind, name=partial(window_key, kind=kind))
            for kind, one in enumerate(others, 1)
        ]
        self.states: Saver | None = None
        """Of snapshots; None: the model has no states, or the store does not hold one."""
        if states is not None and states.places <= store.num_blocks:
            self.states = Saver(store, STATES_EACH_WAY, places=states.places, name=state_key)
        self._of_blocks = [self._blocks, *self.windows]
        self._savers = self._of_blocks if self.states is None else [*self._of_blocks, self.states]

    @property
    def counters(self) -> OffloadStats:
        """The counters of the tier; the other fields are filled in where a snapshot is made."""
        blocks, states = self._of_blocks, self.states
        saved, lost = sum([saver.saved for saver in blocks]), sum([saver.lost for saver in blocks])
        counters = replace(self._counters, saved_blocks=saved, lost_blocks=lost)
        counters.failed_saves = sum([saver.failed for saver in self._savers])
        if states is not None:
            counters.saved_snapshots, counters.lost_snapshots = states.saved, states.lost
            counters.host_snapshots = self.store.num_snapshots
        return counters

    @property
    def is_open(self) -> bool:
        """Whether anything is copied to the host; see ``close``."""
        return self._blocks.is_open

    @property
    def has_saves(self) -> bool:
        """Whether any block or snapshot waits to be copied, or is being copied."""
        return any(saver.has_saves for saver in self._savers)

    def holds(self, key: bytes) -> bool:
        """Whether the host has the block of this key, complete."""
        return self.store.holds(key)

    def cached(self, block: int, key: bytes) -> None:
        """Note that the block has no owner any more; its content stays until it is evicted."""
        self._blocks.cached(block, key)

    def evicted(self, block: int, key: bytes) -> None:
        """Save the block now if it waits to be saved, because the next step may overwrite it."""
        self._blocks.evicted(block, key)
        self._without_inputs.discard(block)

    def copied(self, source: int, target: int) -> None:
        """Note that the target has layer inputs only if its source has."""
        if source in self._without_inputs:
            self._without_inputs.add(target)

    def take_saves(self) -> tuple[Save, ...]:
        """Return the blocks to copy before the step that is being planned."""
        return tuple([save for saver in self._of_blocks for save in saver.take()])

    def take_state_saves(self) -> tuple[Save, ...]:
        """Return the snapshots to copy before the step that is being planned."""
        return () if self.states is None else self.states.take()

    def saved(self, key: bytes, piece: HostBlock | None) -> None:
        """Note that a copy to the host has ended; ``piece`` None: it failed."""
        saver = self.states if self.states is not None and is_state_key(key) else self._of_blocks[kind_of(key)]
        saver.end(key, piece)
        if piece is not None and self.fetcher is not None:
            self.fetcher.keep(key, piece)

    def close(self) -> None:
        """Stop copying to the host: there is no memory for it."""
        for saver in self._savers:
            saver.close()

    def forgotten(self) -> None:
        """Drop all that waits to be saved, since the content of the device's blocks is unknown now."""
        for saver in self._savers:
            saver.forgotten()
        self._without_inputs.clear()

    def fail(self) -> None:
        """Free the places of all saves under way, and unpin all pieces: no copy or fetch that was begun will end."""
        for saver in self._savers:
            saver.fail()
        self.store.end_copies()
        if self.fetcher is not None:
            self.fetcher.fail()

    def pin(self, keys: abc.Sequence[bytes]) -> object:
        """See HostTier."""
        return self.store.pin(keys)

    def unpin(self, keys: abc.Sequence[bytes]) -> None:
        """See HostTier."""
        self.store.unpin(keys)

    def pays(self, again: int, start: int, copied: tuple[int, ...], *, with_state: bool) -> bool:
        """See HostTier."""
        assert self._pays is not None, "it is asked where a state or a window decides"
        return self._pays(again, start, copied, with_state)

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
        """Plan the restore of the blocks of ``keys``, all in the store, into a sequence's blocks from ``first`` on.

        The sequence's blocks from ``first`` on are newly allocated. None: it recomputes all of them. ``state``,
        ``windows``, ``can_compute``: see HostTier.
        """
        self._without_inputs.difference_update(sequence.blocks.ids(first))
        if not keys and can_compute:
            return None
        size, counters = self._block_size, self._counters
        if can_compute:
            inputs_known = all(self.store[key].inputs is not None for key in keys)
            planner = self.planner if state is None or self._state_plan is None else self._state_plan.planner
            split = planner(len(keys), first * size, free_tokens, num_waiting, inputs_known)
        else:
            split = Split(0, 0.0)
        end, copied = first + len(keys), len(keys) - split.recompute - split.project
        counters.host_hit_tokens += len(keys) * size
        counters.planned_recompute_tokens += split.recompute * size
        counters.planned_project_tokens += split.project * size
        counters.planned_restore_tokens += copied * size
        if can_compute and split.recompute == len(keys):
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
            None if state is None else StateRestore(state[0], self.store.pin([state[0]])[0], state[1]),
            tuple([WindowRestore(w.kind, w.blocks, w.keys, tuple(self.store.pin(w.keys))) for w in windows]),
            can_compute,
        )

    def release(self, restore: Restore, *, whole: bool, seconds: float = 0.0) -> None:
        """Unpin the pieces of a restore that has ended. ``whole``: all of them arrived, in ``seconds``.

        A snapshot that did not arrive is given up, lest its sequence wait for it again, and so are blocks of windows.
        If the device has these, blocks before them are given up that the sequence cannot compute.
        """
        parts = [] if restore.state is None else [restore.state.key]
        parts += [key for window in restore.windows for key in window.keys]
        self.store.unpin([*restore.keys, *parts])
        if restore.cancelled:
            return
        counters = self._counters
        if whole:
            projected = restore.num_projected * self._block_size
            counters.projected_tokens += projected
            counters.restored_tokens += restore.end - restore.start - projected
            counters.restored_snapshots += restore.state is not None
            counters.predicted_seconds += restore.seconds
            counters.restore_seconds += seconds
        else:
            counters.failed_restores += 1
            self._without_inputs.difference_update(restore.blocks)  # its sequence recomputes them
            for key in parts or (() if restore.can_compute else restore.keys):
                self.store.discard(key)
