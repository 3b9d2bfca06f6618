"""Snapshots of sequences' states, which the prefix cache finds by key. Host only, no jax.

Layers with a state have it in place of K and V. It depends on all tokens so far, and a row has only the newest one. So
a cached prefix can be used only up to a token where a snapshot of the state was taken. Only full blocks have keys, and
a snapshot is taken after a step. So chunks are cut where one is wanted, and it is taken there:

- at the last end of a block in a prompt that leaves a token to compute. The same prompt begins there.
- where the blocks of a prefix are cached, but no snapshot of its state. Prompts branch off there, and others begin
  there.
- wherever else a chunk ends with a block, mostly while a sequence decodes. The next turn of a chat begins there, and so
  does the sequence itself after a preemption. It is evicted first once its sequence has taken the next one.

Otherwise the least recently used snapshot is evicted. Snapshots of background sequences are evicted first, unless
others have used them. A running sequence never needs one.

Host memory gets the snapshots that others are expected to use, and the last one of each sequence that gave its row
back. The others of an answer lie within it, where few prompts end.
"""

from collections import OrderedDict, abc
from dataclasses import dataclass, field

from jaxgen.cache.host_tier import PartTier
from jaxgen.core.sequence import Chunk, Sequence
from jaxgen.core.stats import SchedulerCounters
from jaxgen.core.step_plan import StateCopy


@dataclass(slots=True, eq=False)
class _Snapshot:
    """A snapshot: its place on the device, and the key by which it is found."""

    number: int
    key: bytes | None = None
    """The key of the block at whose end it was taken; None: some of the tokens are not known yet."""
    lasting: bool = False
    """Whether other sequences are expected to use it: it is not evicted before less recently used ones."""


@dataclass(slots=True, eq=False)
class _Holder:
    """The snapshots of a running sequence: what its row gets, and what was taken of it."""

    load: _Snapshot | None = None
    """The snapshot that its row gets with the plan that is being made."""
    branch: int = 0
    """The token up to which its blocks were cached, but no snapshot."""
    unnamed: tuple[int, _Snapshot] | None = None
    """A snapshot without a key, and the block at whose end it was taken. Its tokens arrive before another is taken."""
    last: _Snapshot | None = None
    """The snapshot that it took last and that has a key."""
    lasting: list[_Snapshot] = field(default_factory=list)
    """The snapshots that it took for others, and that have a key."""


class StateSnapshots:
    """The part of the cache that has snapshots of states: a ``CachePart``."""

    def __init__(
        self, num_snapshots: int, block_size: int, counters: SchedulerCounters, tier: PartTier | None = None
    ) -> None:
        """Begin without snapshots, with ``num_snapshots`` places for them; 0: none is ever found.

        ``tier``: is told which snapshots stay, and which are evicted.
        """
        self._tier = tier
        self._block_size = block_size
        self._num_snapshots = num_snapshots
        self._free = list(range(num_snapshots - 1, -1, -1))
        self._used: OrderedDict[_Snapshot, None] = OrderedDict()  # the first to be evicted first
        self._by_key: dict[bytes, _Snapshot] = {}
        self._holders: dict[Sequence, _Holder] = {}
        self._ends: dict[Sequence, int] = {}
        """Where chunks of the plan that is being made end, if that is the end of a block."""
        self._loading: dict[Sequence, None] = {}
        """Sequences whose rows get a snapshot with the plan that is being made."""
        self._next: dict[Sequence, None] = {}
        """Sequences whose rows get the held snapshot with the plan after it."""
        self._held: dict[Sequence, _Snapshot] = {}
        """The snapshot that a row gets once the blocks before have arrived from the host. It is not evicted before, and
        has no key if it is on its way from the host itself."""
        self._counters = counters

    @property
    def num_held(self) -> int:
        """Snapshots that are in use."""
        return len(self._used)

    @property
    def is_all_free(self) -> bool:
        """Whether no sequence runs that could load or take a snapshot."""
        return not self._holders

    @property
    def _has_place(self) -> bool:
        """Whether a snapshot could come from the host."""
        return bool(self._free) or self._first_to_go() is not None

    def begin_plan(self) -> None:
        """Note that a new plan is made."""
        for sequence in self._next:
            self._holders[sequence].load = self._held.pop(sequence)
            self._loading[sequence] = None
        self._next.clear()

    def agrees(self, sequence: Sequence, first: int, length: int, *, host: bool = False) -> int:
        """Return the most blocks, from ``first`` to ``length``, after which there is a snapshot; ``first``: no more."""
        keys, tier = sequence.blocks.keys, self._tier if host and self._has_place else None
        while length > first and keys[length - 1] not in self._by_key:
            if tier is not None and tier.holds(keys[length - 1]):
                break
            length -= 1
        return length

    def holds(self, sequence: Sequence, length: int) -> bool:
        """Whether the device has the snapshot after ``length`` blocks of a sequence."""
        return sequence.blocks.keys[length - 1] in self._by_key

    def share(self, sequence: Sequence, first: int, length: int) -> None:
        """Give a sequence the state after ``length`` blocks with the plan that is being made; 0: it needs none."""
        holder = self._holders.setdefault(sequence, _Holder())
        if length > first:
            holder.load = self._wanted(sequence, length)
            self._loading[sequence] = None

    def note_known(self, sequence: Sequence, found: int, known: int) -> None:
        """Note how many blocks of a sequence are ``known``: it begins after ``found`` ones, where a snapshot is.

        A snapshot is taken after the known ones.
        """
        if known > found:
            self._holders[sequence].branch = known * self._block_size
            self._counters.state_recomputed_tokens += (known - found) * self._block_size

    def hold(self, sequence: Sequence, length: int) -> int | None:
        """Keep the snapshot after ``length`` blocks of a running sequence until ``load`` or ``drop`` is called.

        Returns the place to which it comes from the host; None: it is on the device.
        """
        if self.holds(sequence, length):
            self._held[sequence] = self._wanted(sequence, length)
            return None
        number = self._allocate()
        assert number is not None, "else it had not been found"
        snapshot = self._held[sequence] = _Snapshot(number, lasting=True)
        self._used[snapshot] = None
        return number

    def arrived(self, sequence: Sequence, length: int) -> None:
        """Note that what comes from the host for a sequence is there: also the snapshot after ``length`` blocks."""
        snapshot, key = self._held[sequence], sequence.blocks.keys[length - 1]
        if snapshot.key is not None:
            return
        if key in self._by_key:  # of another sequence meanwhile
            self._remove(snapshot)
            self._held[sequence] = self._wanted(sequence, length)
            return
        snapshot.key = key
        self._by_key[key] = snapshot

    def load(self, sequence: Sequence) -> None:
        """Give a sequence the held state with the next plan to be made; this one may still compute tokens of it."""
        self._next[sequence] = None

    def drop(self, sequence: Sequence) -> None:
        """Stop keeping a snapshot for a sequence."""
        snapshot = self._held.pop(sequence, None)
        if snapshot is not None and snapshot.key is None:
            self._remove(snapshot)

    def most_tokens(self, sequence: Sequence, start: int, most: int) -> int:
        """Return how many tokens from ``start`` on, ``most`` at most, end before or where a snapshot is to be taken."""
        if not self._num_snapshots:
            return most
        last = self._last_end(len(sequence.tokens))
        return min([end - start for end in (self._holders[sequence].branch, last) if end > start] + [most])

    def begin_chunk(self, chunk: Chunk) -> None:
        """Note where a planned chunk ends."""
        if chunk.end % self._block_size == 0 and self._num_snapshots:
            self._ends[chunk.sequence] = chunk.end
        elif self._ends:
            self._ends.pop(chunk.sequence, None)

    def register(self, sequence: Sequence, index: int, key: bytes) -> None:
        """Note the key of a sequence's block ``index``, at whose end a snapshot may have been taken."""
        holder = self._holders[sequence]
        if holder.unnamed is not None and holder.unnamed[0] == index:
            _, snapshot = holder.unnamed
            holder.unnamed = None
            self._name(holder, snapshot, key)

    def end_plan(self) -> tuple[tuple[StateCopy, ...], tuple[StateCopy, ...]]:
        """Return the copies of the plan that was made: snapshots that rows get, and snapshots to take of rows."""
        loads = tuple([self._loaded(sequence) for sequence in self._loading])
        new: dict[_Snapshot, Sequence] = {}
        for sequence, end in self._ends.items():
            snapshot = self._take(sequence, end, new.keys())
            if snapshot is not None:
                new[snapshot] = sequence
        self._loading.clear()
        self._ends.clear()
        return loads, tuple([StateCopy(_row(sequence), snapshot.number) for snapshot, sequence in new.items()])

    def release(self, sequence: Sequence) -> None:
        """Note that a sequence gives its row back. Its snapshots stay, if their keys are known."""
        holder = self._holders.pop(sequence, None)
        self.drop(sequence)
        for waiting in (self._ends, self._loading, self._next):
            waiting.pop(sequence, None)
        if holder is not None:
            if holder.unnamed is not None:
                self._remove(holder.unnamed[1])
            if holder.last is not None and holder.last in self._used:
                goes_first = sequence.request.background and not holder.last.lasting
                self._used.move_to_end(holder.last, last=not goes_first)
                self._offer(holder.last)
            for snapshot in holder.lasting:
                self._offer(snapshot)

    def _last_end(self, num_tokens: int) -> int:
        """Return the last end of a block that leaves one of ``num_tokens`` to compute."""
        return (num_tokens - 1) // self._block_size * self._block_size

    def _loaded(self, sequence: Sequence) -> StateCopy:
        """Return the copy of a snapshot to a sequence's row; it may be evicted after that."""
        holder = self._holders[sequence]
        assert holder.load is not None, "held until it is loaded"
        copy, holder.load = StateCopy(_row(sequence), holder.load.number), None
        return copy

    def _wanted(self, sequence: Sequence, length: int) -> _Snapshot:
        """Return the snapshot after ``length`` blocks of a sequence, which uses it."""
        snapshot = self._by_key[sequence.blocks.keys[length - 1]]
        snapshot.lasting = True
        self._used.move_to_end(snapshot)
        self._offer(snapshot)
        return snapshot

    def _take(self, sequence: Sequence, end: int, new: abc.Set[_Snapshot]) -> _Snapshot | None:
        """Return a snapshot for the state of a sequence after ``end`` tokens; None: there is one, or no place.

        ``new``: those of the same plan, which are not evicted.
        """
        index, blocks, holder = end // self._block_size - 1, sequence.blocks, self._holders[sequence]
        key = blocks.keys[index] if index < blocks.num_registered else None
        found = None if key is None else self._by_key.get(key)
        if found is not None:
            self._used.move_to_end(found)
            return None
        if holder.last is not None and not holder.last.lasting and holder.last in self._used:
            self._used.move_to_end(holder.last, last=False)
        number = self._allocate(new)
        if number is None:
            return None
        ends_prompt = end == self._last_end(sequence.num_given) and not sequence.request.background
        snapshot = _Snapshot(number, lasting=end == holder.branch or ends_prompt)
        self._used[snapshot] = None
        self._counters.snapshots_taken += 1
        if key is None:
            holder.unnamed = index, snapshot
        else:
            self._name(holder, snapshot, key)
        return snapshot

    def _allocate(self, new: abc.Set[_Snapshot] = frozenset()) -> int | None:
        """Return a free place, or that of the first snapshot that may be evicted; None: there is none."""
        if not self._free:
            first = self._first_to_go(new)
            if first is None:
                return None
            self._evict(first)
        return self._free.pop()

    def _first_to_go(self, new: abc.Set[_Snapshot] = frozenset()) -> _Snapshot | None:
        """Return the snapshot to be evicted next; None: all are wanted."""
        wanted = new | set(self._held.values())
        return next((snapshot for snapshot in self._used if snapshot not in wanted), None)

    def _evict(self, snapshot: _Snapshot) -> None:
        """Give a snapshot up for another. It is copied to the host before, if it is to go there and has not yet."""
        if snapshot.lasting:
            self._offer(snapshot)
        if self._tier is not None and snapshot.key is not None:
            self._tier.evicted(snapshot.number, snapshot.key)
        self._remove(snapshot)
        self._counters.snapshots_evicted += 1

    def _offer(self, snapshot: _Snapshot) -> None:
        """Tell the host of a snapshot that it should have. It was taken by a step that was planned before."""
        if self._tier is not None and snapshot in self._used and snapshot.key is not None:
            self._tier.cached(snapshot.number, snapshot.key)

    def _name(self, holder: _Holder, snapshot: _Snapshot, key: bytes) -> None:
        """Let a snapshot be found by its key."""
        if key in self._by_key:  # of another sequence with the same tokens
            self._remove(snapshot)
            return
        snapshot.key = key
        self._by_key[key] = snapshot
        holder.last = snapshot
        if snapshot.lasting:
            holder.lasting.append(snapshot)

    def _remove(self, snapshot: _Snapshot) -> None:
        del self._used[snapshot]
        self._free.append(snapshot.number)
        if snapshot.key is not None:
            del self._by_key[snapshot.key]


def _row(sequence: Sequence) -> int:
    assert sequence.row is not None, "held by every running sequence"
    return sequence.row
