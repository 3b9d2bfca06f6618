from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxgen.cache.block_pool import BlockPool, OutOfBlocksError


def test_a_new_pool_hands_out_the_lowest_ids_first() -> None:
    pool = BlockPool(5)
    assert (pool.num_blocks, pool.num_free, pool.num_cached) == (5, 5, 0)
    assert pool.allocate(2) == [0, 1]
    assert pool.allocate(0) == []
    assert pool.allocate(3) == [2, 3, 4]
    assert pool.num_free == 0


def test_what_was_freed_last_goes_out_first_in_the_order_given() -> None:
    pool = BlockPool(8)
    first, second = pool.allocate(3), pool.allocate(2)
    pool.release(first)
    pool.release(second)
    assert pool.num_free == 8
    assert pool.allocate(5) == second + first


def test_asking_for_too_many_takes_none() -> None:
    pool = BlockPool(3)
    pool.allocate(1)
    with pytest.raises(OutOfBlocksError, match="3 blocks asked for, 2 free"):
        pool.allocate(3)
    assert pool.allocate(2) == [1, 2]


@pytest.mark.parametrize("block", [-1, 1, 3])
def test_releasing_what_is_not_in_use_raises(block: int) -> None:
    pool = BlockPool(3)
    pool.allocate(1)
    with pytest.raises(ValueError, match=f"block {block} is not in use"):
        pool.release([block])
    assert pool.num_free == 2


@pytest.mark.parametrize("twice", [True, False])
def test_releasing_twice_raises(twice: bool) -> None:
    pool = BlockPool(3)
    (block,) = pool.allocate(1)
    if twice:
        pool.release([block])
    with pytest.raises(ValueError, match="block 0 is not in use"):
        pool.release([block] if twice else [block, block])
    assert sorted(pool.allocate(3)) == [0, 1, 2]


def test_sizes_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="num_blocks must be 1 or more, not 0"):
        BlockPool(0)
    with pytest.raises(ValueError, match="count must be 0 or more, not -1"):
        BlockPool(1).allocate(-1)


class TestContent:
    @staticmethod
    def cached(pool: BlockPool, *keys: bytes) -> list[int]:
        """One block for each key, released together."""
        blocks = pool.allocate(len(keys))
        for block, key in zip(blocks, keys, strict=True):
            pool.register(block, key)
        pool.release(blocks)
        return blocks

    def test_a_known_block_is_found_in_use_and_after(self) -> None:
        pool = BlockPool(4)
        (block,) = pool.allocate(1)
        assert pool.find(b"a") is None
        pool.register(block, b"a")
        assert pool.find(b"a") == block
        pool.release([block])
        assert (pool.find(b"a"), pool.num_free, pool.num_cached) == (block, 4, 1)

    def test_every_owner_must_let_go(self) -> None:
        pool = BlockPool(4)
        (block,) = self.cached(pool, b"a")
        pool.share([block])
        assert (pool.num_free, pool.num_cached, pool.num_owners(block)) == (3, 0, 1)
        pool.share([block])
        assert (pool.num_free, pool.num_owners(block)) == (3, 2)
        pool.release([block])
        assert (pool.num_free, pool.num_cached, pool.num_owners(block)) == (3, 0, 1)
        pool.release([block])
        assert (pool.num_free, pool.num_cached, pool.num_owners(block)) == (4, 1, 0)

    def test_free_blocks_go_before_cached_ones(self) -> None:
        pool = BlockPool(4)
        assert self.cached(pool, b"a", b"b") == [0, 1]
        assert pool.allocate(2) == [2, 3]
        assert (pool.find(b"a"), pool.find(b"b")) == (0, 1)

    def test_the_least_recently_used_is_evicted_first_the_deepest_of_a_chain_before_the_rest(self) -> None:
        pool = BlockPool(4)
        first, second = self.cached(pool, b"a", b"b"), self.cached(pool, b"c", b"d")
        pool.share(first)
        pool.release(first)
        assert pool.allocate(1) == second[1:]
        assert [pool.find(key) for key in (b"a", b"b", b"c", b"d")] == [*first, second[0], None]
        assert pool.allocate(3) == [second[0], first[1], first[0]]
        assert [pool.find(key) for key in (b"a", b"b", b"c")] == [None] * 3

    def test_an_evicted_block_holds_nothing_known(self) -> None:
        pool = BlockPool(1)
        (block,) = self.cached(pool, b"a")
        assert pool.allocate(1) == [block]
        pool.register(block, b"b")
        assert (pool.find(b"a"), pool.find(b"b")) == (None, block)
        pool.release([block])
        assert pool.num_cached == 1

    def test_of_two_blocks_that_hold_the_same_the_first_is_known(self) -> None:
        pool = BlockPool(4)
        first, second = pool.allocate(2)
        pool.register(first, b"a")
        pool.register(second, b"a")
        assert pool.find(b"a") == first
        pool.release([second])
        assert (pool.find(b"a"), pool.num_free, pool.num_cached) == (first, 3, 0)

    @pytest.mark.parametrize("block", [0, 1])
    def test_only_a_block_of_known_content_is_shared(self, block: int) -> None:
        pool = BlockPool(2)
        pool.allocate(1)
        with pytest.raises(ValueError, match=f"block {block} has no known content to share"):
            pool.share([block])

    def test_what_a_block_holds_is_said_once_and_only_while_it_is_in_use(self) -> None:
        pool = BlockPool(2)
        (block,) = self.cached(pool, b"a")
        with pytest.raises(ValueError, match="not in use"):
            pool.register(block, b"b")
        with pytest.raises(ValueError, match="not in use"):
            pool.register(1, b"b")
        pool.share([block])
        with pytest.raises(ValueError, match="its content is known"):
            pool.register(block, b"b")

    def test_forget(self) -> None:
        pool = BlockPool(3)
        (cached,) = self.cached(pool, b"a")
        (used,) = pool.allocate(1)
        pool.register(used, b"b")
        pool.forget()
        assert (pool.find(b"a"), pool.find(b"b"), pool.num_cached, pool.num_free) == (None, None, 0, 2)
        pool.release([used])
        assert (pool.num_cached, pool.num_free) == (0, 3)
        assert sorted(pool.allocate(3)) == [0, 1, 2]
        pool.register(cached, b"b")
        assert pool.find(b"b") == cached


@given(st.integers(1, 12), st.lists(st.tuples(st.sampled_from("atsrrf"), st.integers(0, 12))))
def test_every_block_is_free_cached_or_has_its_owners(num_blocks: int, actions: list[tuple[str, int]]) -> None:
    """Allocate, tell, share, release and (rarely) forget, against a book of owners and contents."""
    pool = BlockPool(num_blocks)
    holdings: list[list[int]] = []
    contents: dict[int, bytes] = {}
    for action, number in actions:
        if action == "a" and number <= pool.num_free:
            holdings.append(pool.allocate(number))
            assert len(holdings[-1]) == number
            contents = {block: key for block, key in contents.items() if block not in holdings[-1]}
        elif action == "t" and holdings and holdings[-1]:
            block, key = holdings[-1][0], bytes([number])
            if block not in contents:
                pool.register(block, key)
                if key not in contents.values():
                    contents[block] = key
        elif action == "s" and contents:
            holdings.append([sorted(contents)[number % len(contents)]])
            pool.share(holdings[-1])
        elif action == "r" and holdings:
            pool.release(holdings.pop(number % len(holdings)))
        elif action == "f" and number == 0:
            pool.forget()
            contents.clear()
        owners = Counter(block for held in holdings for block in held)
        assert [pool.num_owners(block) for block in range(num_blocks)] == [owners[b] for b in range(num_blocks)]
        assert pool.num_free + len(owners) == num_blocks
        assert pool.num_cached == len(contents.keys() - owners.keys())
        assert {pool.find(key): key for key in contents.values()} == contents


def test_what_is_copied_from_is_evicted_last() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(3)
    for block in blocks:
        pool.register(block, bytes([block]))
    pool.release(blocks)
    pool.use(blocks[2])
    assert pool.allocate(3) == [1, 0, 2]
    pool.use(blocks[2])  # in use: its place is given when it is released
