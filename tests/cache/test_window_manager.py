"""The blocks of a kind of cache with a window, asked alone."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxgen.cache.block_pool import BlockPool
from jaxgen.cache.host_tier import PartTier, window_key
from jaxgen.cache.prefix_cache import PrefixCache
from jaxgen.cache.window_manager import NOT_HELD, WindowManager, blocks_for
from jaxgen.core.config import CacheConfig, SchedulerConfig
from jaxgen.core.request import Request
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.core.sequence import Chunk, Sequence, WindowRestore

CONFIG = SchedulerConfig(token_budget=8, max_num_seqs=2, max_model_len=64)


def manager(window: int, block_size: int = 4, num_blocks: int = 64, tier: PartTier | None = None) -> WindowManager:
    cache = CacheConfig(block_size, 64, window_blocks=(num_blocks,), windows=(window,))
    return WindowManager(0, cache, CONFIG, tier)


def keys(count: int) -> list[bytes]:
    return [bytes([index]) * 16 for index in range(count)]


def waiting(num_blocks: int, *, background: bool = False, prompt: int = 60, answer: int = 64) -> Sequence:
    """A sequence whose first keys are known; one of the background has others."""
    request = Request("a", tuple(range(prompt)), SamplingParams(max_tokens=answer), background=background)
    sequence = Sequence(request, eos_token_ids=frozenset(), arrival=0, seed=0)
    sequence.blocks.keys = [key[background:] for key in keys(num_blocks)]
    return sequence


def cache(pool: BlockPool, found: Iterable[int]) -> dict[int, int]:
    """Leave blocks of these indices in a pool; return their ids."""
    ids = {}
    for index in found:
        (ids[index],) = pool.allocate(1)
        pool.register(ids[index], keys(index + 1)[index])
    pool.release([*ids.values()])
    return ids


def longest(window: int, block_size: int, first: int, length: int, found: set[int]) -> int:
    """Token by token: the next token attends to ``window - 1`` before it; those of the first blocks are its own."""
    return max(
        end
        for end in range(first, length + 1)
        if end == first
        or all(
            position // block_size in found or position < first * block_size
            for position in range(max(0, end * block_size - window + 1), end * block_size)
        )
    )


@given(
    window=st.integers(1, 14),
    block_size=st.integers(1, 4),
    first=st.integers(0, 3),
    more=st.integers(0, 6),
    found=st.sets(st.integers(0, 8)) | st.sets(st.integers(0, 8), min_size=6),
)
def test_a_prefix_is_found_as_far_as_its_last_window_is(
    window: int, block_size: int, first: int, more: int, found: set[int]
) -> None:
    windows, length = manager(window, block_size, 200), first + more
    ids = cache(windows.pool, found)
    sequence = waiting(length)
    expected = longest(window, block_size, first, length, found)
    assert windows.agrees(sequence, first, length) == expected
    if first == 0:
        windows.share(sequence, 0, expected)
        held = sequence.blocks.windows[0]
        assert len(held.table) == expected
        assert held.table[: held.num_freed] == [NOT_HELD] * held.num_freed
        assert held.table[held.num_freed :] == [ids[index] for index in range(held.num_freed, expected)]
        assert held.num_freed == max(0, expected * block_size - window + 1) // block_size


@pytest.mark.parametrize("turned", [False, True])
def test_kinds_agree_only_where_each_has_its_window(turned: bool) -> None:
    """After 6 blocks the first lacks nothing and the second its last; after 5, what the second has, the first lacks."""
    pool, first, second = BlockPool(64), manager(6), manager(9)
    cache(pool, range(6))
    cache(first.pool, (1, 2, 4, 5))
    cache(second.pool, range(5))
    sequence = waiting(6)
    assert (first.agrees(sequence, 0, 6), second.agrees(sequence, 0, 6)) == (6, 5)
    parts = (second, first) if turned else (first, second)
    assert len(PrefixCache(pool, 4, parts=parts).look_up(sequence)) == 3


class Behind:
    """Host memory that has blocks of some keys, and notes which others it is told of."""

    def __init__(self, has: Iterable[bytes] = ()) -> None:
        self.has, self.told = set(has), list[bytes]()

    def holds(self, key: bytes) -> bool:
        return key in self.has

    def cached(self, block: int, key: bytes) -> None:
        self.told.append(key)

    def evicted(self, block: int, key: bytes) -> None: ...

    def forgotten(self) -> None: ...


def test_what_the_device_lacks_of_a_window_comes_from_host_memory() -> None:
    """Of the last window the device has one block and the host the other; without the host a hit has 2 blocks."""
    known, host = keys(6), Behind(keys(6)[4:5])
    windows = manager(9, tier=host)
    ids = cache(windows.pool, (0, 1, 5))
    sequence = waiting(6)
    assert (windows.agrees(sequence, 0, 6), windows.agrees(sequence, 0, 6, host=True)) == (2, 6)
    windows.share(sequence, 0, 0)
    assert windows.lacking(sequence, 6) == [window_key(known[4], 1)]
    coming = windows.hold(sequence, 6)
    (new,) = coming.blocks
    held = sequence.blocks.windows[0]
    assert (coming.kind, coming.keys, held.num_freed) == (1, (window_key(known[4], 1),), 4)
    assert held.table == [NOT_HELD] * 4 + [new, ids[5]]
    assert windows.pool.find(known[4]) is None, "it is on its way"
    windows.arrived(WindowRestore(1, coming.blocks, coming.keys, ("content",)))
    assert windows.pool.find(known[4]) == new
    for index in range(6):
        windows.register(sequence, index, known[index])
    windows.release(sequence)
    assert windows.is_all_free


def test_host_memory_gets_prompts_and_the_last_window_of_an_answer() -> None:
    host = Behind()
    windows = manager(5, 4, 18, tier=host)
    sequence = computed(windows, 28, prompt=9)
    assert host.told == keys(2)
    windows.release(sequence)
    assert host.told[2:] == [keys(7)[6]]


def computed(windows: WindowManager, length: int, *, background: bool = False, prompt: int = 60) -> Sequence:
    """A sequence whose first tokens were computed by one plan, and whose full blocks are known; the next plan began."""
    sequence = waiting(16, background=background, prompt=prompt)
    sequence.row = 0
    windows.share(sequence, 0, 0)
    windows.begin_chunk(Chunk(sequence, 0, length))
    sequence.num_computed = length
    for index in range(length // 4):
        windows.register(sequence, index, sequence.blocks.keys[index])
    windows.begin_plan()
    return sequence


@pytest.mark.parametrize(
    ("window", "length", "freed"),
    [(1, 8, 2), (1, 9, 2), (2, 8, 1), (2, 9, 2), (5, 8, 1), (6, 8, 0), (5, 11, 1), (5, 12, 2), (99, 12, 0)],
)
def test_blocks_are_freed_that_no_later_token_attends_to(window: int, length: int, freed: int) -> None:
    windows = manager(window, 4)
    held = computed(windows, length).blocks.windows[0]
    assert (held.num_freed, len(held.table)) == (freed, -(-length // 4))
    assert windows.pool.num_free == 64 - len(held.table) + freed


@pytest.mark.parametrize(
    ("tokens", "length", "freed", "own"), [(8, 3, 1, 1), (9, 3, 1, 1), (8, 4, 2, 0), (9, 5, 3, 0), (11, 6, 4, 0)]
)
def test_blocks_found_later_replace_its_own(tokens: int, length: int, freed: int, own: int) -> None:
    """Its own ones before them stay as far as the window reaches."""
    windows = manager(6)
    ids = cache(windows.pool, range(2, 6))
    sequence = computed(windows, tokens)
    held = sequence.blocks.windows[0]
    before = [*held.table]
    windows.share(sequence, 2, length)
    assert (held.num_freed, len(held.table)) == (freed, length)
    kept = [*before[freed:2], *[ids[index] for index in range(max(2, freed), length)]]
    assert held.table[freed:] == kept
    assert len(kept) - own == length - max(2, freed)
    assert windows.pool.num_free == 64 - len(kept)


def test_while_a_plan_is_made_its_chunks_keep_what_they_attend_to() -> None:
    windows = manager(5, 4)
    sequence = computed(windows, 8)
    windows.begin_chunk(Chunk(sequence, 8, 8))
    assert sequence.blocks.windows[0].num_freed == 1
    sequence.num_computed = 16
    windows.begin_plan()
    assert sequence.blocks.windows[0].num_freed == 3


def test_what_is_nearest_to_the_next_token_is_evicted_last() -> None:
    windows = manager(5, 4, 18)
    sequence = computed(windows, 16)
    freed = sequence.blocks.windows[0].table[:3]
    windows.pool.allocate(14)
    assert windows.pool.allocate(3) == freed


def test_blocks_within_an_answer_are_evicted_before_those_of_prompts() -> None:
    """Block 2 has the prompt's last token, and tokens of the answer."""
    windows = manager(5, 4, 18)
    sequence = computed(windows, 20, prompt=9)
    freed = sequence.blocks.windows[0].table[:4]
    windows.pool.allocate(13)
    assert windows.pool.allocate(4) == [*freed[2:], *freed[:2]]


def test_the_end_of_a_sequence_is_evicted_first() -> None:
    """So that what began like it may still be found."""
    windows = manager(99, 4, 32)
    sequence = computed(windows, 12)
    table = [*sequence.blocks.windows[0].table]
    windows.release(sequence)
    windows.pool.allocate(29)
    assert windows.pool.allocate(3) == table[::-1]


def test_what_the_background_computed_is_evicted_first() -> None:
    windows = manager(5, 4, 20)
    windows.release(computed(windows, 12))
    background = computed(windows, 16, background=True)
    freed = background.blocks.windows[0].table[:3]
    assert windows.pool.num_cached == 6
    windows.pool.allocate(13)
    assert windows.pool.allocate(3) == freed


@pytest.mark.parametrize(("window", "block_size", "each"), [(1, 4, 2), (4, 4, 3), (6, 4, 4), (999, 4, 16)])
def test_the_least_blocks_are_those_of_one_sequence(window: int, block_size: int, each: int) -> None:
    assert [blocks_for(rows, window, block_size, CONFIG) for rows in (1, 2)] == [each + 2, 2 * each + 2]
    least = each + 2
    with pytest.raises(ValueError, match=f"window_blocks of window {window} must be {least} or more, not {least - 1}"):
        manager(window, block_size, least - 1)


def test_a_sequence_begins_if_there_are_blocks_for_it_at_its_longest() -> None:
    """Of 8 blocks 2 are for long chunks. The sequences take 4, 1 and 2 of the others."""
    windows = manager(6, 4, 8)
    long, short, other = waiting(0), waiting(0, prompt=3, answer=1), waiting(0, prompt=5, answer=4)
    assert windows.has_room([long, other])
    assert not windows.has_room([long, short, other])
    windows.share(long, 0, 0)
    assert not windows.has_room([short, other])
    assert windows.has_room([short, other], leaving=[long])
    windows.share(other, 0, 0)
    assert not windows.has_room([short])
    windows.release(long)
    assert windows.has_room([short])
