"""Make ragged batches for attention, padded to one shape, so that one compiled program computes many of them."""

import random
from dataclasses import dataclass, replace

import numpy as np

from tests.support.attention_cases import LAYER, Case, Inputs, make_inputs

EDGES = (64, 512)
"""Contexts at which kernels go from one tile to two, and from one piece to two."""


@dataclass(frozen=True)
class Padding:
    """The padded numbers of rows, query tokens, blocks and entries of a block table."""

    rows: int
    tokens: int
    blocks: int
    table: int


def random_rows(seed: int, *, most_rows: int, most_tokens: int, most_context: int) -> tuple[tuple[int, int], ...]:
    """Draw (query tokens, context) of each row, rows of one token first; contexts are often at or next to an edge."""
    draw = random.Random(seed)

    def context(length: int) -> int:
        near = [edge + offset for edge in EDGES for offset in (-1, 0, 1) if length <= edge + offset <= most_context]
        return draw.choice(near) if near and draw.random() < 0.5 else draw.randint(length, most_context)

    count = draw.randint(2, most_rows)
    lengths = [1] * draw.randint(0, count)
    left = most_tokens - most_rows
    while len(lengths) < count:
        lengths.append(draw.randint(1, max(1, min(left // 2, most_context))))
        left -= lengths[-1]
    return tuple((length, context(length)) for length in sorted(lengths, key=lambda length: length > 1))


def padded(case: Case, inputs: Inputs, to: Padding) -> tuple[Case, Inputs]:
    """Pad a batch with rows without tokens, tokens without a row, and blocks of NaN.

    Block tables point to a block of NaN in all entries that must not be read.
    """
    R, T = to.rows, to.tokens
    rows = len(case.rows)
    cache = np.full((to.blocks, *inputs.cache.shape[1:]), np.nan, np.float32)
    cache[: len(inputs.cache)] = inputs.cache
    tables = np.full((R, to.table), to.blocks - 1, np.int32)
    tables[:rows, : inputs.tables.shape[1]] = inputs.tables[:rows]
    starts = np.full(R + 1, inputs.starts[rows], np.int32)
    starts[: rows + 1] = inputs.starts[: rows + 1]
    lens = np.zeros(R, np.int32)
    lens[:rows] = inputs.lens[:rows]
    q = np.zeros((T, *inputs.q.shape[1:]), np.float32)
    q[: starts[-1]] = inputs.q[: starts[-1]]
    larger = replace(inputs, q=q, cache=cache, tables=tables, starts=starts, lens=lens)
    return replace(case, padding=R - rows), larger


@dataclass(frozen=True)
class Piece:
    """Queries ``first`` to ``end`` (exclusive) of a row, as a row of another batch."""

    row: int
    first: int
    end: int


def rearranged(case: Case, inputs: Inputs, pieces: tuple[Piece, ...], num_decodes: int) -> tuple[Case, Inputs]:
    """Make a batch whose rows are pieces of another batch's rows, on the same cache."""
    rows, queries, tables, lens = [], [], [], []
    for piece in pieces:
        begin, end = inputs.starts[piece.row : piece.row + 2]
        queries.append(inputs.q[begin + piece.first : begin + piece.end])
        tables.append(inputs.tables[piece.row])
        lens.append(inputs.lens[piece.row] - (end - begin - piece.end))
        rows.append((piece.end - piece.first, int(lens[-1])))
    starts = np.cumsum([0, *(length for length, _ in rows)], dtype=np.int32)
    batch = replace(
        inputs,
        q=np.concatenate(queries),
        tables=np.stack(tables),
        starts=starts,
        lens=np.array(lens, np.int32),
        num_decodes=num_decodes,
    )
    return replace(case, rows=tuple(rows), padding=0), batch


def cancelling(case: Case) -> Inputs:
    """Make inputs whose first row has pairs of equal keys and opposite values, so that its outputs are only rounding
    errors, which show every change in the order of summation; other bfloat16 outputs would hide it."""
    inputs = make_inputs(case)
    length, context = case.rows[0]
    half = (context - length) // 2
    positions = np.arange(context)
    blocks, offsets = inputs.tables[0][positions // case.block_size], positions % case.block_size
    kv = inputs.cache[blocks, LAYER, :, :, offsets]  # [context, 2, K, D]
    kv[half : 2 * half, 0], kv[half : 2 * half, 1] = kv[:half, 0], -kv[:half, 1]
    kv[2 * half :, 1] = 0
    inputs.cache[blocks, LAYER, :, :, offsets] = kv
    return inputs
