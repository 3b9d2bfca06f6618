"""The GPU attention kernel's lists of work and its packing, against plain Python."""

from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_kernels.gpu.attention.items import (
    GRANULE,
    KV_TILE,
    PIECE_TOKENS,
    RaggedBatch,
    WorkItems,
    best_tile_groups,
    make_batch,
    make_packing,
    make_pieces,
    make_plan,
    make_tiles,
    num_granules,
    pack,
    piece_capacity,
    unpack,
)
from pallas_kernels.gpu.attention.plan import plan_in_kernel
from tests.support.interpreted import run

R, T = 7, 400

# Compiled: operation by operation, each example would take many times as long.
pieces_of = jax.jit(make_pieces, static_argnums=(2, 3, 4))
tiles_of = jax.jit(make_tiles, static_argnums=(2, 3, 4, 5))
compiled_batch = jax.jit(make_batch, static_argnums=3)
packing_of = jax.jit(make_packing, static_argnums=(2, 3, 4))

Rows = list[tuple[int, int]]
"""Query length and context length of each."""


def batch_of(rows: Rows, group: int) -> RaggedBatch:
    starts = np.full(R + 1, sum(length for length, _ in rows), np.int32)
    starts[: len(rows) + 1] = np.cumsum([0, *(length for length, _ in rows)])
    lens = np.zeros(R, np.int32)
    lens[: len(rows)] = [context for _, context in rows]
    return compiled_batch(jnp.asarray(starts), jnp.asarray(lens), jnp.int32(len(rows)), group)


def listed(items: WorkItems) -> list[dict[str, int]]:
    count = int(items.num_items[0])
    assert count <= len(items.row), "the list is too short"
    columns = {name: np.asarray(column)[:count] for name, column in items._asdict().items() if name != "num_items"}
    return [{name: int(column[i]) for name, column in columns.items()} for i in range(count)]


def first_tile(position: int, window: int | None) -> int:
    return 0 if window is None else max(0, position - window + 1) // KV_TILE


@st.composite
def rows_and_decodes(draw: st.DrawFn) -> tuple[Rows, int]:
    contexts = st.one_of(st.integers(1, 3000), st.sampled_from([KV_TILE, PIECE_TOKENS, PIECE_TOKENS + 1, KV_TILE + 1]))
    decodes = [(1, draw(contexts)) for _ in range(draw(st.integers(0, 4)))]
    chunks = []
    for _ in range(draw(st.integers(0, R - len(decodes)))):
        length = draw(st.one_of(st.integers(1, 40), st.just(100)))
        chunks.append((length, length + draw(st.integers(0, 2000))))
    while sum(length for length, _ in chunks) > T - R:
        chunks.pop()
    return decodes + chunks, len(decodes)


GROUPS_AND_WINDOWS = [(1, None), (3, 70), (4, None), (8, 1), (12, PIECE_TOKENS)]
"""Few, each a program."""


@settings(max_examples=60, deadline=None)
@given(rows_and_decodes(), st.sampled_from(GROUPS_AND_WINDOWS))
def test_every_query_is_in_one_item_per_piece(drawn: tuple[Rows, int], shape: tuple[int, int | None]) -> None:
    (rows, decodes), (group, window) = drawn, shape
    starts = np.cumsum([0, *(length for length, _ in rows)])
    for tile_rows, capacity in ((64, 100), (128, 4)):
        batch = batch_of(rows, group)
        pieces = pieces_of(batch, jnp.int32(decodes), group, window, capacity)
        num_rows = pieces.num_rows[0]
        pieces, first_granules = jax.device_get((pieces, batch.first_granules))
        split = int(num_rows)
        want, at = [], 0
        for row, (_, context) in enumerate(rows[:decodes]):
            position, begin = context - 1, first_tile(context - 1, window)
            bounds = [begin, *range(begin // 8 * 8 + 8, position // KV_TILE + 1, 8), position // KV_TILE + 1]
            if at + len(bounds) - 1 > capacity:
                assert row == split
                break
            assert (int(pieces.begin[row]), int(pieces.end[row])) == (at, at + len(bounds) - 1)
            at += len(bounds) - 1
            granule = int(first_granules[row])
            for first, end in pairwise(bounds):
                place = {
                    "row": row,
                    "granule": granule,
                    "first": row * group,
                    "queries": group,
                    "origin": position * group,
                }
                want.append({**place, "begin": first, "end": end})
        else:
            assert split == decodes
        assert listed(pieces.items) == want
        want = []
        for row, (length, context) in list(enumerate(rows))[split:]:
            for offset in range(0, length * group, tile_rows):
                positions = [
                    context - length + i // group for i in range(offset, min(offset + tile_rows, length * group))
                ]
                place = {"row": row, "granule": int(first_granules[row]) + offset // GRANULE}
                place |= {"first": int(starts[row]) * group + offset, "queries": length * group - offset}
                place["origin"] = (context - length) * group + offset
                want.append({**place, "begin": first_tile(positions[0], window), "end": positions[-1] // KV_TILE + 1})
        assert listed(tiles_of(batch, num_rows, T, group, window, tile_rows)) == want


SIZES: dict[str, Any] = {"T": 60, "group": 3, "num_blocks": 40, "block_size": 64, "window": 70, "tile_groups": 1}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param((((1, 9), (1, 700), (1, 1300), (30, 50), (2, 2)), 3, SIZES), id="window"),
        *(
            pytest.param((rows, decodes, {**SIZES, **change}), marks=pytest.mark.full)
            for rows, decodes, change in (
                ((), 0, {}),
                (((1, 3000), (1, 3000), (1, 90)), 3, {"num_blocks": 8, "window": None, "tile_groups": 2}),
                (((50, 600),), 0, {"group": 8, "window": None}),
            )
        ),
    ],
)
def test_a_kernel_makes_the_same_plan(case: tuple[Rows, int, dict[str, Any]]) -> None:
    """Also where pieces are more than the cache has room for."""
    rows, decodes, sizes = case
    lens, lengths = np.zeros(R, np.int32), [length for length, _ in rows]
    lens[: len(rows)] = [context for _, context in rows]
    starts = np.pad(np.cumsum([0, *lengths], dtype=np.int32), (0, R - len(rows)), mode="edge")
    about = jnp.asarray(starts), jnp.asarray(lens), jnp.int32(len(rows)), jnp.int32(decodes)
    wanted = jax.jit(partial(make_plan, **sizes))(*about)
    found = run(partial(plan_in_kernel, **sizes, num_ctas=2), *about)
    np.testing.assert_array_equal(found.context_lens, wanted.context_lens)
    split, tokens = int(wanted.pieces.num_rows[0]), sum(lengths)
    assert found.pieces.num_rows == split
    assert listed(found.pieces.items) == listed(wanted.pieces.items)
    assert listed(found.tiles) == listed(wanted.tiles)
    for one, other in zip(found.pieces[2:], wanted.pieces[2:], strict=True):
        np.testing.assert_array_equal(one[:split], other[:split])
    np.testing.assert_array_equal(found.packing.place[:tokens], wanted.packing.place[:tokens])


@pytest.mark.parametrize("group", [1, 3, 8])
def test_packed_queries_come_back(group: int) -> None:
    rows, K, D = [(1, 9), (1, 700), (30, 50), (2, 2)], 2, 4
    batch = batch_of(rows, group)
    q = jnp.asarray(np.random.default_rng(0).normal(size=(T, K * group, D)), jnp.float32)
    pieces = pieces_of(batch, jnp.int32(2), group, None, piece_capacity(20, 64, R))
    packing = packing_of(batch, pieces, T, group, num_granules(T, R, group, 128))
    packed = jax.jit(pack, static_argnums=2)(q, packing, K)
    host, wanted, first_granules = jax.device_get((packed, q, batch.first_granules))
    for row, (start, end) in enumerate(((0, 1), (1, 2), (2, 32), (32, 34))):
        first = int(first_granules[row]) * GRANULE
        mine = host[:, first : first + rows[row][0] * group].reshape(K, -1, group, D)
        np.testing.assert_array_equal(mine.swapaxes(0, 1).reshape(-1, K * group, D), wanted[start:end])
    wide = -(-group // GRANULE) * GRANULE
    combined = np.full((R, K, wide, D), np.nan, np.float32)
    combined[:2, :, :group] = -wanted[:2].reshape(2, K, group, D)
    out = jax.jit(unpack, static_argnums=3)(packed, jnp.asarray(combined), packing, group)
    np.testing.assert_array_equal(out, np.concatenate([-wanted[:2], wanted[2:34], np.zeros_like(wanted[34:])]))


@pytest.mark.parametrize(
    ("tokens", "group", "kv_heads", "head_dim", "num_ctas", "groups"),
    [
        (256, 4, 8, 128, 132, 1),
        (256, 1, 32, 128, 132, 1),
        (256, 4, 8, 128, 114, 2),
        (512, 4, 8, 128, 132, 2),
        (256, 8, 8, 64, 132, 2),
        (2048, 8, 8, 256, 132, 1),
    ],
)
def test_tiles_are_small_where_all_fit_at_once(
    tokens: int, group: int, kv_heads: int, head_dim: int, num_ctas: int, groups: int
) -> None:
    assert best_tile_groups(tokens, group, kv_heads, head_dim, num_ctas) == groups
