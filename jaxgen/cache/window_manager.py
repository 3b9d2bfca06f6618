"""Give sequences the blocks of layers that look back a window of tokens, and free them behind it. Host only, no jax."""

from collections.abc import Iterable

from jaxgen.cache.block_pool import BlockPool
from jaxgen.cache.host_tier import ComingWindow, PartTier, window_key
from jaxgen.cache.prefix_cache import KEY_BYTES
from jaxgen.core.config import CacheConfig, SchedulerConfig
from jaxgen.core.sequence import Chunk, Sequence, WindowBlocks, WindowRestore

NOT_HELD = 0
"""Stands in tables for blocks behind the window that a sequence never had. It is a block's id, so that the device may
gather the block as it may gather freed ones, whose content no token attends to."""


def blocks_of_window(window: int, block_size: int, longest: int) -> int:
    """Return the most blocks that a sequence of at most ``longest`` tokens needs, in addition to those of a long chunk.

    After a plan begins, it holds the blocks of the ``window - 1`` tokens before its next one. They are one more than
    these tokens fill if they begin and end within a block. A chunk then begins one block, and more as it is long.
    """
    return min(-(-(window - 1) // block_size) + 2, -(-longest // block_size))


def blocks_of_chunks(block_size: int, config: SchedulerConfig) -> int:
    """Return the most further blocks that the chunks of a step need, because they are long."""
    return -(-config.token_budget // block_size)


def blocks_for(rows: int, window: int, block_size: int, config: SchedulerConfig) -> int:
    """Return the blocks with which ``rows`` sequences of any length run at once."""
    return rows * blocks_of_window(window, block_size, config.max_model_len) + blocks_of_chunks(block_size, config)


class WindowManager:
    """The ``CachePart`` of a kind of cache with a window: a pool, and the blocks that sequences hold of it.

    A sequence begins only if there are blocks for it at its longest, so the pool has blocks for every plan.

    A token attends to itself and the ``window - 1`` tokens before it. A sequence gets blocks chunk by chunk. Blocks are
    freed when the next plan is made: the chunks planned before attend to them, and steps run in the order planned. So
    the new plan may give them to another sequence. If their content is known, it can be found until then.

    Host memory gets the blocks of prompts that are freed, and the last window of each sequence that gives its row back.
    The others lie within an answer, where few prompts end.
    """

    def __init__(self, number: int, cache: CacheConfig, config: SchedulerConfig, tier: PartTier | None = None) -> None:
        """``number``: of the kind among those with a window. ``tier``: its blocks in host memory.

        Raises ValueError if it has too few blocks for one sequence.
        """
        self._number = number
        self._block_size = cache.block_size
        self._window = cache.windows[number]
        least = blocks_for(1, self._window, cache.block_size, config)
        if cache.window_blocks[number] < least:
            raise ValueError(
                f"window_blocks of window {self._window} must be {least} or more, not {cache.window_blocks[number]}"
            )
        self._num_promised = 0
        """Blocks that running sequences may come to hold."""
        self._capacity = cache.window_blocks[number] - blocks_of_chunks(cache.block_size, config)
        self._tier = tier
        self.pool = BlockPool(cache.window_blocks[number], *([] if tier is None else [tier]))
        self._given: list[Sequence] = []
        """Sequences that got blocks since the last plan began: others hold one block at most behind their window."""

    @property
    def is_all_free(self) -> bool:
        """Whether every block is free, and none is promised."""
        return self.pool.num_free == self.pool.num_blocks and not self._num_promised

    def has_room(self, coming: Iterable[Sequence], leaving: Iterable[Sequence] = ()) -> bool:
        """Whether sequences that wait may begin once those ``leaving``, which run, are preempted."""
        promised = self._num_promised + sum(map(self._most, coming)) - sum(map(self._most, leaving))
        return promised <= self._capacity

    def begin_plan(self) -> None:
        """Free the blocks that no token after the chunks planned so far attends to."""
        given, self._given = self._given, []
        for sequence in given:
            if sequence.row is not None:
                self._free_before(sequence, self._first_seen(sequence.num_computed))

    def agrees(self, sequence: Sequence, first: int, length: int, *, host: bool = False) -> int:
        """Return the most blocks, from ``first`` to ``length``, before whose end a whole window is found."""
        keys, index, tier = sequence.blocks.keys, length, self._tier if host else None
        while index > max(first, self._first_needed(length)):
            index -= 1
            if self.pool.find(keys[index]) is None and (tier is None or not tier.holds(keys[index])):
                length = index
        return length

    def lacking(self, sequence: Sequence, length: int) -> list[bytes]:
        """Return the keys of the blocks, in host memory, that the device lacks to go on after ``length`` blocks."""
        keys = sequence.blocks.keys[self._first_needed(length) : length]
        return [window_key(key, 1 + self._number) for key in keys if self.pool.find(key) is None]

    def hold(self, sequence: Sequence, length: int) -> ComingWindow:
        """Give a sequence that has none the blocks of the window before the end of ``length`` blocks.

        Returns those whose contents come from host memory.
        """
        held, begin = sequence.blocks.windows[self._number], self._first_needed(length)
        keys = self.lacking(sequence, length)
        found = [self.pool.find(key) for key in sequence.blocks.keys[begin:length]]
        self.pool.share([block for block in found if block is not None])
        coming = self.pool.allocate(len(keys))
        new = iter(coming)
        held.table[:] = [NOT_HELD] * begin + [next(new) if block is None else block for block in found]
        held.num_freed, held.num_restored = begin, length
        return ComingWindow(1 + self._number, tuple(coming), tuple(keys))

    def arrived(self, restore: WindowRestore) -> None:
        """Record the contents of blocks that have come from host memory."""
        for block, key in zip(restore.blocks, restore.keys, strict=True):
            self.pool.register(block, key[:KEY_BYTES])

    def share(self, sequence: Sequence, first: int, length: int) -> None:
        """Give a sequence the found blocks of the window before the end of ``length`` blocks, in place of its own."""
        blocks = sequence.blocks
        if len(blocks.windows) == self._number:
            blocks.windows = (*blocks.windows, WindowBlocks())
            self._num_promised += self._most(sequence)
        held, needed = blocks.windows[self._number], self._first_needed(length)
        begin = max(first, needed)
        found = [block for block in map(self.pool.find, blocks.keys[begin:length]) if block is not None]
        assert len(found) == length - begin, "all parts agreed on the length"
        self.pool.share(found)
        self._free_before(sequence, min(first, needed))
        self.pool.release(held.table[first:])
        held.table[first:] = [NOT_HELD] * (begin - first) + found
        held.num_freed = max(held.num_freed, needed)

    def begin_chunk(self, chunk: Chunk) -> None:
        """Give a sequence the blocks that begin in a planned chunk."""
        table = chunk.sequence.blocks.windows[self._number].table
        if chunk.end > len(table) * self._block_size:
            table += self.pool.allocate(-(-chunk.end // self._block_size) - len(table))
            self._given.append(chunk.sequence)

    def register(self, sequence: Sequence, index: int, key: bytes) -> None:
        """Record the content of a sequence's block ``index``, unless it was freed before or came with a restore."""
        held = sequence.blocks.windows[self._number]
        if index >= max(held.num_freed, held.num_restored):
            self.pool.register(held.table[index], key)

    def release(self, sequence: Sequence) -> None:
        """Take back the blocks of a sequence. Its last one is evicted first, as in ``KVCacheManager.release``."""
        if sequence.blocks.windows:
            self._num_promised -= self._most(sequence)
            held = sequence.blocks.windows[self._number]
            own = sequence.blocks.num_shared if sequence.request.background else len(held.table)
            self._give_back(held, len(held.table), own)

    def _most(self, sequence: Sequence) -> int:
        """Return the most blocks that a sequence may come to hold, in addition to those of a long chunk."""
        return blocks_of_window(self._window, self._block_size, sequence.max_cached)

    def _free_before(self, sequence: Sequence, end: int) -> None:
        """Free the blocks before index ``end``. The first is evicted first: the others are nearer to what comes.

        Blocks within an answer are evicted before all others: few prompts end there. Next turns of a chat continue
        after the whole answer, or after the prompt if the client drops what was thought.
        """
        held = sequence.blocks.windows[self._number]
        if end > held.num_freed:
            prompt = 0 if sequence.request.background else sequence.num_prompt // self._block_size
            self._give_back(held, end, max(sequence.blocks.num_shared, prompt), step=-1, told=False)
            held.num_freed = end

    def _give_back(self, held: WindowBlocks, end: int, own: int, step: int = 1, *, told: bool = True) -> None:
        """Release the held blocks before index ``end``; from index ``own`` on they are evicted before all others.

        ``told``: host memory gets these too.
        """
        own = min(end, max(held.num_freed, own))
        if own < end:
            self.pool.release(held.table[own:end][::step], evict_first=True, told=told)
        self.pool.release(held.table[held.num_freed : own][::step])

    def _first_needed(self, length: int) -> int:
        """Return the first block that a sequence needs to go on after ``length`` blocks."""
        return self._first_seen(length * self._block_size)

    def _first_seen(self, start: int) -> int:
        """Return the first block that a token at position ``start`` or after it attends to."""
        return max(0, start - self._window + 1) // self._block_size
