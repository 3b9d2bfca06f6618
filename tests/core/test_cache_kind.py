"""Kinds of cache from the windows of layers."""

import pytest

from jaxgen.core.cache_kind import CacheKind, RowShape, kinds_of, one_kind
from jaxgen.core.config import CacheConfig
from jaxgen.core.model_config import StateShape

ROW, OTHER = RowShape(2, 8), RowShape(1, 16)


def test_each_window_makes_a_kind() -> None:
    assert kinds_of((512, 512, None, 512, 1024), (ROW,) * 5) == (
        CacheKind((2,), ROW),
        CacheKind((4,), ROW, 1024),
        CacheKind((0, 1, 3), ROW, 512),
    )


def test_layers_of_one_window_are_one_kind_that_keeps_all_blocks() -> None:
    rows = (ROW,) * 3
    assert kinds_of((), rows) == kinds_of((None,) * 3, rows) == kinds_of((256,) * 3, rows) == one_kind(rows)


def test_a_kind_has_the_rows_of_its_layers() -> None:
    assert kinds_of((None, 64, 64), (OTHER, ROW, ROW)) == (CacheKind((0,), OTHER), CacheKind((1, 2), ROW, 64))
    assert (ROW.numbers, OTHER.numbers) == (32, 32)


def test_the_widest_window_keeps_all_blocks_if_every_layer_has_one() -> None:
    assert kinds_of((64, 4096), (ROW,) * 2) == (CacheKind((1,), ROW), CacheKind((0,), ROW, 64))


def test_layers_with_a_state_are_of_no_kind() -> None:
    rows = (ROW,) * 4
    assert kinds_of((), rows, frozenset({0, 2})) == one_kind(rows, frozenset({0, 2})) == (CacheKind((1, 3), ROW),)
    assert kinds_of((None, 64, 64, None), rows, {2}) == (CacheKind((0, 3), ROW), CacheKind((1,), ROW, 64))


def test_the_bytes_of_a_state_do_not_depend_on_the_context() -> None:
    assert StateShape("conv", (0, 1, 3), (2, 8), "bfloat16").num_bytes == 3 * 2 * 8 * 2


def test_names() -> None:
    assert [kind.name for kind in kinds_of((128, None), (ROW,) * 2)] == ["full", "window 128"]


def test_each_kind_with_a_window_has_its_blocks() -> None:
    with pytest.raises(ValueError, match=r"windows \(8,\) and window_blocks \(4, 9\) must have one number for each"):
        CacheConfig(4, 32, window_blocks=(4, 9), windows=(8,))


@pytest.mark.parametrize("window", [1, 2, 4, 5, 6, 9])
def test_a_sequence_has_the_blocks_of_its_window_wherever_it_begins(window: int) -> None:
    block_size, kind = 4, CacheKind((0,), ROW, window)
    for num_tokens in range(1, 40):
        firsts = {last: max(0, last - window + 1) // block_size for last in range(num_tokens)}
        most = max(last // block_size - first + 1 for last, first in firsts.items())
        held = kind.held_blocks(num_tokens, block_size)
        assert most <= held <= -(-num_tokens // block_size) == CacheKind((0,), ROW).held_blocks(num_tokens, block_size)
        assert held == most or num_tokens < window + 2 * block_size
