"""Kinds of cache from the windows of layers."""

import pytest

from jaxgen.core.cache_kind import CacheKind, kinds_of, one_kind
from jaxgen.core.config import CacheConfig, StateShape


def test_each_window_makes_a_kind() -> None:
    assert kinds_of((512, 512, None, 512, 1024), 5) == (
        CacheKind((2,)),
        CacheKind((4,), 1024),
        CacheKind((0, 1, 3), 512),
    )


def test_layers_of_one_window_are_one_kind_that_keeps_all_blocks() -> None:
    assert kinds_of((), 3) == kinds_of((None,) * 3, 3) == kinds_of((256,) * 3, 3) == one_kind(3)


def test_the_widest_window_keeps_all_blocks_if_every_layer_has_one() -> None:
    assert kinds_of((64, 4096), 2) == (CacheKind((1,)), CacheKind((0,), 64))


def test_layers_with_a_state_are_of_no_kind() -> None:
    assert kinds_of((), 4, frozenset({0, 2})) == one_kind(4, frozenset({0, 2})) == (CacheKind((1, 3)),)
    assert kinds_of((None, 64, 64, None), 4, frozenset({2})) == (CacheKind((0, 3)), CacheKind((1,), 64))


def test_the_bytes_of_a_state_do_not_depend_on_the_context() -> None:
    assert StateShape("conv", (0, 1, 3), (2, 8), "bfloat16").num_bytes == 3 * 2 * 8 * 2


def test_names() -> None:
    assert [kind.name for kind in kinds_of((128, None), 2)] == ["full", "window 128"]


def test_each_kind_with_a_window_has_its_blocks() -> None:
    with pytest.raises(ValueError, match=r"windows \(8,\) and window_blocks \(4, 9\) must have one number for each"):
        CacheConfig(4, 32, window_blocks=(4, 9), windows=(8,))


@pytest.mark.parametrize("window", [1, 2, 4, 5, 6, 9])
def test_a_sequence_has_the_blocks_of_its_window_wherever_it_begins(window: int) -> None:
    block_size, kind = 4, CacheKind((0,), window)
    for num_tokens in range(1, 40):
        firsts = {last: max(0, last - window + 1) // block_size for last in range(num_tokens)}
        most = max(last // block_size - first + 1 for last, first in firsts.items())
        held = kind.held_blocks(num_tokens, block_size)
        assert most <= held <= -(-num_tokens // block_size) == CacheKind((0,)).held_blocks(num_tokens, block_size)
        assert held == most or num_tokens < window + 2 * block_size
