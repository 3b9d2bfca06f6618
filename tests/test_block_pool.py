import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxgen.block_pool import BlockPool, OutOfBlocksError


def test_a_new_pool_hands_out_the_lowest_ids_first() -> None:
    pool = BlockPool(5)
    assert (pool.num_blocks, pool.num_free) == (5, 5)
    assert pool.allocate(2) == [0, 1]
    assert pool.allocate(0) == []
    assert pool.allocate(3) == [2, 3, 4]
    assert pool.num_free == 0


def test_what_was_freed_last_goes_out_first_in_the_order_given() -> None:
    pool = BlockPool(8)
    first, second = pool.allocate(3), pool.allocate(2)
    pool.free(first)
    pool.free(second)
    assert pool.num_free == 8
    assert pool.allocate(5) == second + first


def test_asking_for_too_many_takes_none() -> None:
    pool = BlockPool(3)
    pool.allocate(1)
    with pytest.raises(OutOfBlocksError, match="3 blocks asked for, 2 free"):
        pool.allocate(3)
    assert pool.allocate(2) == [1, 2]


@pytest.mark.parametrize("block", [-1, 1, 3])
def test_freeing_what_is_not_allocated_raises(block: int) -> None:
    pool = BlockPool(3)
    pool.allocate(1)
    with pytest.raises(ValueError, match=f"block {block} is not allocated"):
        pool.free([block])
    assert pool.num_free == 2


@pytest.mark.parametrize("twice", [True, False])
def test_freeing_twice_raises(twice: bool) -> None:
    pool = BlockPool(3)
    (block,) = pool.allocate(1)
    if twice:
        pool.free([block])
    with pytest.raises(ValueError, match="block 0 is not allocated"):
        pool.free([block] if twice else [block, block])
    assert sorted(pool.allocate(3)) == [0, 1, 2]


def test_sizes_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="num_blocks must be 1 or more, not 0"):
        BlockPool(0)
    with pytest.raises(ValueError, match="count must be 0 or more, not -1"):
        BlockPool(1).allocate(-1)


@given(st.integers(1, 12), st.lists(st.tuples(st.booleans(), st.integers(0, 12))))
def test_every_block_is_free_or_has_one_owner(num_blocks: int, actions: list[tuple[bool, int]]) -> None:
    pool = BlockPool(num_blocks)
    owned: list[list[int]] = []
    for allocates, number in actions:
        if allocates and number <= pool.num_free:
            owned.append(pool.allocate(number))
            assert len(owned[-1]) == number
        elif not allocates and owned:
            pool.free(owned.pop(number % len(owned)))
        used = [block for blocks in owned for block in blocks]
        assert len(set(used)) == len(used)
        assert set(used) <= set(range(num_blocks))
        assert pool.num_free + len(used) == num_blocks
