"""Give sequences rows and blocks of the device, and take them back. Host only, no jax."""

from collections import Counter, abc

from jaxgen.cache.beginnings import BlockBeginnings
from jaxgen.cache.block_log import BlockLog
from jaxgen.cache.block_pool import BlockPool
from jaxgen.cache.cache_part import CachePart
from jaxgen.cache.host_tier import HostTier
from jaxgen.cache.prefix_cache import PrefixCache
from jaxgen.cache.restorer import Hit, Restorer
from jaxgen.cache.state_snapshots import StateSnapshots
from jaxgen.cache.window_manager import WindowManager
from jaxgen.core.config import CacheConfig, SchedulerConfig
from jaxgen.core.sequence import Chunk, Restore, Sequence, SequenceStatus
from jaxgen.core.stats import SchedulerCounters
from jaxgen.core.step_plan import Copy, StateCopy


class KVCacheManager:
    """Gives rows and blocks to sequences that begin to run, more blocks while they run, and takes all back.

    A sequence begins with blocks for all its tokens. Blocks that the prefix cache finds are shared. Of the blocks
    after these, a restore brings back those in host memory. Without a restore the beginning of the next block is
    copied if another block has it. ``parts`` give what a sequence needs in addition to these blocks, chunk by chunk.
    A sequence begins only if they have that for all its chunks.

    The slots of a running sequence, and its tokens. Each part ends at the count below it, slots at blocks held::

        [shared]      [registered]      [computed]      [not computed]
        num_shared    num_registered    num_computed    num_held

        [known]                       [forced]       [pending]     [to come]
        len(tokens) - num_forced      len(tokens)    num_tokens    max_length

    Shared blocks are those at the front that came from the prefix cache; they may have other owners. Others can find
    the content of registered blocks. No step samples a forced token, and a pending one has not arrived. Computed slots
    may reach into the pending tokens, because a planned step counts as run.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        cache: CacheConfig,
        tier: HostTier | None,
        log: BlockLog | None,
        counters: SchedulerCounters,
        *,
        copies_blocks: bool,
    ) -> None:
        """``copies_blocks``: the device can copy a block. With windows none is copied, so only full blocks are found.

        Raises ValueError if a kind of cache has too few blocks, or if host memory keeps other kinds.
        """
        if tier is not None and len(tier.windows) != len(cache.windows):
            raise ValueError(f"host memory must keep blocks of windows {cache.windows}, not of {len(tier.windows)}")
        self.states: StateSnapshots | None = None
        """None: the model has no states."""
        if cache.num_snapshots is not None:
            number = cache.num_snapshots if config.prefix_caching else 0
            self.states = StateSnapshots(number, cache.block_size, counters, None if tier is None else tier.states)
        # There is never a snapshot of a state within a block.
        beginnings = BlockBeginnings() if copies_blocks and not cache.windows and self.states is None else None
        watchers = [watcher for watcher in (tier, log) if watcher is not None]
        self.pool = BlockPool(cache.num_blocks, *watchers, index=beginnings)
        tiers = [None] * len(cache.windows) if tier is None else tier.windows
        self.windows = tuple([WindowManager(number, cache, config, behind) for number, behind in enumerate(tiers)])
        self.parts: tuple[CachePart, ...] = self.windows if self.states is None else (*self.windows, self.states)
        self.prefixes = PrefixCache(
            self.pool,
            cache.block_size,
            enabled=config.prefix_caching,
            log=log,
            beginnings=beginnings,
            parts=self.parts,
        )
        self._tier = tier
        self._copies: list[Copy] = []
        self.restorer = None if tier is None else Restorer(tier, self.prefixes, self.states, self.windows)
        self._counters = counters
        self.block_size = cache.block_size
        self.num_rows = config.max_num_seqs
        self._free_rows = list(range(config.max_num_seqs - 1, -1, -1))

    @property
    def has_row(self) -> bool:
        """Whether a row is free."""
        return bool(self._free_rows)

    @property
    def num_free_rows(self) -> int:
        return len(self._free_rows)

    @property
    def is_all_free(self) -> bool:
        """Whether every row and every block is free."""
        blocks_are = self.pool.num_free == self.pool.num_blocks and all(part.is_all_free for part in self.parts)
        return blocks_are and len(self._free_rows) == self.num_rows

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def num_growing(self, running: abc.Sequence[Sequence]) -> int:
        """Return how many running sequences may still need more blocks."""
        return sum([s.max_cached > len(s.blocks.table) * self.block_size for s in running])

    def may_grow(self, sequence: Sequence) -> bool:
        """Whether a sequence may need more blocks than it is admitted with."""
        return self.blocks_for(sequence.max_cached) > self.blocks_for(len(sequence.tokens))

    def blocks_taken(self, coming: abc.Sequence[Sequence], freed: abc.Set[int] = frozenset()) -> int:
        """Return how many free blocks these waiting sequences take together if they begin now.

        A block that the prefix cache has costs nothing if a running sequence owns it. If nobody does, it is taken once,
        however many of them share it. ``freed``: blocks in use that count as free.
        """
        new, unowned = 0, set[int]()
        for sequence in coming:
            hits = self._look_up(sequence).blocks if self.parts else self.prefixes.look_up(sequence)
            new += self.blocks_for(len(sequence.tokens)) - len(hits)
            unowned.update([block for block in hits if block in freed or self.pool.num_owners(block) == 0])
        return new + len(unowned)

    def has_room(
        self, coming: abc.Sequence[Sequence], running: abc.Sequence[Sequence], leaving: abc.Sequence[Sequence] = ()
    ) -> bool:
        """Whether waiting sequences would find rows and blocks after the next step.

        Running sequences first get the blocks of their next token. Each sequence that may grow after that gets one
        more. ``leaving``: running sequences that are preempted.
        """
        free_rows, freed = len(self._free_rows) + len(leaving), frozenset[int]()
        if leaving:
            running = [s for s in running if s not in leaving]
            owners = Counter(block for s in leaving for block in s.blocks.table)
            freed = frozenset([block for block, count in owners.items() if self.pool.num_owners(block) == count])
        due = [s for s in running if s.num_computed == len(s.blocks.table) * self.block_size]
        ending = sum([s.max_cached <= (len(s.blocks.table) + 1) * self.block_size for s in due])
        spare = self.num_growing(running) + len(due) - ending + sum([self.may_grow(s) for s in coming])
        free = self.pool.num_free + len(freed)
        if len(coming) > free_rows or not all(window.has_room(coming, leaving) for window in self.windows):
            return False
        return self.blocks_taken(coming, freed) + spare <= free

    def begin(self, sequence: Sequence, spare: int, *, free_tokens: int, num_waiting: int) -> bool:
        """Let a waiting sequence run: give it a free row and blocks for all its tokens, found ones first.

        Returns False and gives nothing unless ``spare`` blocks stay free and windows have room. ``free_tokens`` of a
        step and the number of other waiting sequences, ``num_waiting``, limit the seconds that a restore may take.
        """
        assert sequence.num_pending == 0, "a sequence waits until what was in flight when it was preempted is completed"
        if not all(window.has_room([sequence]) for window in self.windows):
            return False
        hit = self._look_up(sequence)
        hits = hit.blocks
        new = self.blocks_for(len(sequence.tokens)) - len(hits)
        unowned = sum([self.pool.num_owners(block) == 0 for block in hits])
        if new + unowned + spare > self.pool.num_free:
            return False
        if self.restorer is not None:
            self.restorer.keep(sequence, hit)
        sequence.status, sequence.row = SequenceStatus.RUNNING, self._free_rows.pop()
        self.pool.share(hits)
        for part in self.parts:
            part.share(sequence, 0, len(hits) if hit.is_ready else 0)
        blocks = sequence.blocks
        blocks.table += hits + self.pool.allocate(new)
        sequence.num_computed = len(hits) * self.block_size
        blocks.num_registered = blocks.num_shared = len(hits)
        if self.restorer is not None:
            self.restorer.begin(sequence, hit, free_tokens=free_tokens, num_waiting=num_waiting)
        if self.states is not None:
            self.states.note_known(sequence, hit.length if blocks.restore else len(hits), hit.num_known)
        if blocks.restore is None:
            self._copy_beginning(sequence)
        if sequence.standing.num_preemptions == 0:
            blocks.num_cached = sequence.num_computed
        if self.prefixes.may_look_up(sequence):
            self._counters.prefix_queries += len(sequence.tokens)
            self._counters.prefix_hits += sequence.num_computed
        self.stop_waiting(sequence)
        return True

    def _look_up(self, sequence: Sequence) -> Hit:
        """Return what a waiting sequence finds."""
        if self.restorer is not None:
            return self.restorer.look_up(sequence)
        known = self.prefixes.look_up_blocks(sequence)
        found = self.prefixes.agreed(sequence, 0, len(known))
        return Hit(known[:found], [], found, len(known))

    def begin_plan(self) -> None:
        """Note that a new plan is made."""
        self.prefixes.begin_plan()
        for part in self.parts:
            part.begin_plan()

    def take_copies(self) -> tuple[Copy, ...]:
        """Return the copies of blocks that sequences need which began to run since the last call."""
        copies, self._copies = tuple(self._copies), []
        return copies

    def end_plan(self) -> tuple[tuple[StateCopy, ...], tuple[StateCopy, ...]]:
        """Return the copies of states of the plan that was made: those to rows, and those of rows to snapshots."""
        return ((), ()) if self.states is None else self.states.end_plan()

    def cut(self, sequence: Sequence, start: int, most: int) -> int:
        """Return how many tokens from ``start`` on, ``most`` at most, a chunk may have: a snapshot may follow them."""
        return most if self.states is None else self.states.most_tokens(sequence, start, most)

    def search_again(self, sequence: Sequence) -> bool:
        """Give a partly computed sequence blocks that others have computed since it began. Returns False without any.

        They replace the sequence's own next blocks, so its tokens are not computed twice.
        """
        first, blocks = sequence.num_computed // self.block_size, sequence.blocks
        hits = [] if blocks.restore is not None else self.prefixes.look_up(sequence, first)
        if not hits:
            return False
        end, before = first + len(hits), sequence.num_computed
        self.pool.share(hits)
        for part in self.parts:
            part.share(sequence, first, end)
        self.pool.release(blocks.table[first:end])
        blocks.table[first:end] = hits
        sequence.num_computed, blocks.num_registered = end * self.block_size, end
        if blocks.num_shared == first:
            blocks.num_shared = end
        self._counters.prefix_hits += sequence.num_computed - before
        if sequence.standing.num_preemptions == 0:
            blocks.num_cached += sequence.num_computed - before
        return True

    def _copy_beginning(self, sequence: Sequence) -> None:
        """Copy the beginning of another block into the first block that the prefix cache did not find."""
        first = sequence.blocks.num_registered
        source, common = self.prefixes.look_up_beginning(sequence, first)
        if source is None or source == sequence.blocks.table[first]:
            return
        target = sequence.blocks.table[first]
        self._copies.append(Copy(source, target))
        self.pool.use(source)
        sequence.num_computed += common
        if self._tier is not None:
            self._tier.copied(source, target)

    def has_slot(self, sequence: Sequence) -> bool:
        """Whether the blocks of a sequence have a slot for its next token."""
        return sequence.num_computed < len(sequence.blocks.table) * self.block_size

    def grow(self, sequence: Sequence) -> None:
        """Give a sequence one more block. Raises OutOfBlocksError when none is free."""
        sequence.blocks.table += self.pool.allocate(1)

    def advance(self, chunk: Chunk) -> None:
        """Count a planned chunk as computed, and the token that it samples as pending."""
        sequence, end = chunk.sequence, chunk.end
        in_last = end % self.block_size  # tokens
        if in_last <= chunk.length:  # it begins a block or reaches the end of one
            for part in self.parts:
                part.begin_chunk(chunk)
        sequence.num_computed = end
        if chunk.samples:
            sequence.num_pending += 1
        if in_last < chunk.length:  # it reaches the end of a block
            self.prefixes.register(sequence)

    def slots_after(self, chunk: Chunk, most: int) -> int:
        """Return how many tokens after those of a chunk, ``most`` at most, may be computed with it.

        The chunk then reaches into one block at most that its sequence had no token in before; that one is allocated
        here, if one is free.
        """
        size, table = self.block_size, chunk.sequence.blocks.table
        most = min(most, (self.blocks_for(chunk.start) + 1) * size - chunk.end)
        most = self.cut(chunk.sequence, chunk.end, most)
        if chunk.end + most > len(table) * size and self.pool.num_free:
            self.grow(chunk.sequence)
        return min(most, len(table) * size - chunk.end)

    def accept(self, chunk: Chunk, count: int) -> None:
        """Count the first ``count`` drafts of a chunk as computed, and the tokens sampled after them as pending."""
        chunk.sequence.num_computed += count
        chunk.sequence.num_pending += count

    def take_token(self, sequence: Sequence, token: int, *, forced: bool = False) -> None:
        """Append a token that a step sampled, or with ``forced`` one that no step samples: no other may come."""
        if forced:
            sequence.num_forced += 1
        else:
            sequence.num_pending -= 1
            sequence.num_forced = 0
        tokens = sequence.tokens
        tokens.append(token)
        if len(tokens) % self.block_size == 0:
            self.prefixes.register(sequence)

    def end_restore(self, restore: Restore, *, whole: bool) -> None:
        """Note that the restore under way of a sequence is in the cache; if not ``whole``, its tokens are computed.

        Of one that cannot compute them, the caller takes everything back.
        """
        sequence, blocks = restore.sequence, restore.sequence.blocks
        if not whole:
            blocks.restore = None
            if self.states is not None:
                self.states.drop(sequence)
            return
        restore.arrived = True
        for window in restore.windows:
            self.windows[window.kind - 1].arrived(window)
        if self.states is not None:
            self.states.arrived(sequence, restore.end // self.block_size)
        if sequence.standing.num_preemptions == 0:
            blocks.num_cached += restore.end - restore.start
        self.skip_restored(sequence)

    def skip_restored(self, sequence: Sequence) -> None:
        """Count restored tokens as computed once everything before them is."""
        restore = sequence.blocks.restore
        if restore is None or not restore.arrived or not sequence.waits_for_host:
            return
        sequence.num_computed, sequence.blocks.restore = restore.end, None
        if self.states is not None:
            self.states.load(sequence)
        self.prefixes.register(sequence)

    def release(self, sequence: Sequence, status: SequenceStatus) -> None:
        """Take back the row and blocks of a sequence, and set its status."""
        table = sequence.blocks.table
        if table:
            self.prefixes.register_rest(sequence)
        # Blocks freed by background sequences are evicted first, except blocks that they shared with others.
        own = sequence.blocks.num_shared if sequence.request.background else len(table)
        self.pool.release(table[own:], evict_first=True)
        self.pool.release(table[:own])
        for part in self.parts:
            part.release(sequence)
        if sequence.row is not None:
            self._free_rows.append(sequence.row)
        self.clear(sequence, status)

    @staticmethod
    def clear(sequence: Sequence, status: SequenceStatus) -> None:
        """Take everything of the cache from a sequence, without giving it to anybody, and set its status."""
        blocks = sequence.blocks
        if blocks.restore is not None:
            blocks.restore.cancelled, blocks.restore = True, None
        blocks.table.clear()
        blocks.windows = ()
        sequence.num_computed = blocks.num_registered = 0
        sequence.row, sequence.status = None, status
        if status is SequenceStatus.FINISHED:
            sequence.num_pending = 0  # what is on the way is dropped

    @staticmethod
    def stop_waiting(sequence: Sequence) -> None:
        """Note that a sequence waits for nothing that is on its way to the host or from it."""
        sequence.blocks.awaited = sequence.blocks.fetch = None
