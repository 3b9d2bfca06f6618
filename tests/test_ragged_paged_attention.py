"""ragged_paged_attention_ref against a float64 walk over each query's context, one key at a time."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pallas_kernels.ragged_paged_attention import PIECE_TOKENS, QUERY_TILE, ROW_GROUP, ragged_paged_attention_ref

TOLERANCE = {"float32": 2e-5, "bfloat16": 2e-2, "float16": 3e-3}
LAYERS, LAYER = 3, 1


@dataclass(frozen=True)
class Case:
    """Rows as (query_len, context_len), those of one query first."""

    rows: tuple[tuple[int, int], ...]
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    block_size: int = 16
    window: int | None = None
    dtype: str = "float32"
    padding: int = 3


@dataclass(frozen=True)
class Inputs:
    q: np.ndarray
    cache: np.ndarray
    tables: np.ndarray
    starts: np.ndarray
    lens: np.ndarray
    num_decodes: int


def make_inputs(case: Case, seed: int = 0) -> Inputs:
    """Zero-mean values; NaN in every block that no row may read, finite noise in the unused tail of a used block."""
    rng = np.random.default_rng(seed)
    bs, K, D = case.block_size, case.kv_heads, case.head_dim
    per_row = [-(-context // bs) for _, context in case.rows]
    num_blocks = sum(per_row) + 4
    cache = np.full((num_blocks, LAYERS, 2, K, bs, D), np.nan, np.float32)
    ids = rng.permutation(num_blocks - 1)  # the last block, where a wrapped index would land, stays NaN
    R = len(case.rows) + case.padding
    tables = np.full((R, max(per_row) + 2), num_blocks - 1, np.int32)
    at = 0
    for row, n in enumerate(per_row):
        tables[row, :n] = ids[at : at + n]
        cache[ids[at : at + n], LAYER] = rng.normal(size=(n, 2, K, bs, D))
        at += n
    lens = np.zeros(R, np.int32)
    lens[: len(case.rows)] = [context for _, context in case.rows]
    starts = np.zeros(R + 1, np.int32)
    starts[1:] = np.cumsum([length for length, _ in case.rows] + [0] * case.padding)
    T = max(starts[-1] + case.padding, R)
    q = rng.normal(size=(T, case.heads, D)).astype(np.float32)
    return Inputs(q, cache, tables, starts, lens, sum(length == 1 for length, _ in case.rows))


def run(case: Case, inputs: Inputs) -> np.ndarray:
    function = jax.jit(ragged_paged_attention_ref, static_argnames=("scale", "window"))
    out = function(
        jnp.asarray(inputs.q, case.dtype),
        jnp.asarray(inputs.cache, case.dtype),
        jnp.int32(LAYER),
        jnp.asarray(inputs.tables),
        jnp.asarray(inputs.starts),
        jnp.asarray(inputs.lens),
        jnp.int32(len(case.rows)),
        jnp.int32(inputs.num_decodes),
        scale=case.head_dim**-0.5,
        window=case.window,
    )
    return np.asarray(out.astype(jnp.float32))


def expected(case: Case, inputs: Inputs) -> np.ndarray:
    """Every query of every row, float64, from the definition."""
    q = np.asarray(jnp.asarray(inputs.q, case.dtype).astype(jnp.float32), np.float64)
    cache = np.asarray(jnp.asarray(inputs.cache, case.dtype).astype(jnp.float32), np.float64)
    group = case.heads // case.kv_heads
    out = np.full(q.shape, np.nan)
    for row, (length, context) in enumerate(case.rows):
        for i in range(length):
            position = context - length + i
            first = 0 if case.window is None else max(0, position - case.window + 1)
            seen = np.arange(first, position + 1)
            kv = cache[inputs.tables[row, seen // case.block_size], LAYER, :, :, seen % case.block_size]
            for head in range(case.heads):
                k, v = kv[:, 0, head // group], kv[:, 1, head // group]
                token = inputs.starts[row] + i
                scores = k @ q[token, head] * case.head_dim**-0.5
                weights = np.exp(scores - scores.max())
                out[token, head] = weights @ v / weights.sum()
    return out


def check(case: Case, seed: int = 0) -> None:
    inputs = make_inputs(case, seed)
    got, want = run(case, inputs), expected(case, inputs)
    real = inputs.starts[len(case.rows)]
    np.testing.assert_allclose(got[:real], want[:real], atol=TOLERANCE[case.dtype], rtol=0)
    assert np.isfinite(got).all(), "padded tokens must stay finite"


P, Q, G = PIECE_TOKENS, QUERY_TILE, ROW_GROUP
EDGES = tuple((1, n) for n in (1, 15, 16, 17, P - 1, P, P + 1, 2 * P, 2 * P + 1))


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Case(rows=EDGES), id="decodes at every boundary"),
        pytest.param(Case(rows=((1, 40),)), id="one decode"),
        pytest.param(Case(rows=((1, 40),) * (2 * G + 1)), id="more decodes than a group"),
        pytest.param(Case(rows=((5, 5),)), id="a whole prompt"),
        pytest.param(Case(rows=((Q, Q), (Q + 1, 2 * Q + 1), (2, 2), (3, 100))), id="prompts at tile boundaries"),
        pytest.param(Case(rows=((1, 70), (1, 9), (20, 90), (7, 7))), id="mixed"),
        pytest.param(Case(rows=((1, 70), (1, 9), (20, 90)), window=8), id="window"),
        pytest.param(Case(rows=((1, 3 * P), (90, 2 * P + 5)), window=P), id="window of a piece"),
        pytest.param(Case(rows=((1, 70), (20, 90)), block_size=64), id="block of a piece"),
        pytest.param(Case(rows=((1, 150), (20, 190)), block_size=128), id="block over a piece"),
        pytest.param(Case(rows=((1, 70), (20, 90)), block_size=1), id="block of one token"),
        pytest.param(Case(rows=((1, 70), (20, 90)), block_size=48), id="piece no multiple of the block"),
        pytest.param(Case(rows=((1, 70), (20, 90)), kv_heads=4), id="multi-head"),
        pytest.param(Case(rows=((1, 70), (20, 90)), heads=6, kv_heads=1, head_dim=80), id="one kv head"),
        pytest.param(Case(rows=((1, 70), (20, 90)), dtype="bfloat16"), id="bfloat16"),
        pytest.param(Case(rows=((1, 70), (20, 90)), dtype="float16"), id="float16"),
        pytest.param(Case(rows=((1, 70),), padding=0), id="no padding"),
    ],
)
def test_matches_the_definition(case: Case) -> None:
    check(case)


def test_a_wrong_table_entry_is_noticed() -> None:
    """The comparison can fail: one block of one row swapped for another's."""
    case = Case(rows=((1, 70), (20, 90)))
    inputs = make_inputs(case)
    want = expected(case, inputs)
    tables = inputs.tables.copy()
    tables[1, 2] = tables[0, 0]
    got = run(case, Inputs(inputs.q, inputs.cache, tables, inputs.starts, inputs.lens, inputs.num_decodes))
    assert np.abs(got[1:21] - want[1:21]).max() > 1e-2


def test_rows_keep_their_bits_among_other_rows() -> None:
    """A row alone, and the same row between neighbours and at another place, agree bitwise."""
    rows = ((1, 70), (1, 200), (20, 90), (5, 133))
    case = Case(rows=rows, padding=0)
    inputs = make_inputs(case)
    together = run(case, inputs)
    for row, (length, context) in enumerate(rows):
        alone = Case(rows=((length, context),), padding=0)
        own = slice(inputs.starts[row], inputs.starts[row + 1])
        q = np.zeros((max(length, 1), *inputs.q.shape[1:]), np.float32)
        q[:length] = inputs.q[own]
        starts = np.array([0, length], np.int32)
        single = Inputs(
            q, inputs.cache, inputs.tables[row : row + 1], starts, inputs.lens[row : row + 1], int(length == 1)
        )
        np.testing.assert_array_equal(run(alone, single), together[own])


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Random ragged rows, block sizes, groups and windows."""
    kv_heads = draw(st.sampled_from([1, 2, 3]))
    lengths = draw(st.lists(st.one_of(st.just(1), st.integers(2, 150)), min_size=1, max_size=12))
    rows = tuple((length, length + draw(st.integers(0, 200))) for length in sorted(lengths, key=lambda n: n > 1))
    return Case(
        rows=rows,
        heads=kv_heads * draw(st.sampled_from([1, 2, 5])),
        kv_heads=kv_heads,
        head_dim=draw(st.sampled_from([8, 16, 80])),
        block_size=draw(st.sampled_from([1, 3, 16, 64, 100])),
        window=draw(st.none() | st.integers(1, 200)),
        padding=draw(st.integers(0, 5)),
    )


@pytest.mark.full
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases(), st.integers(0, 10**6))
def test_random_shapes(case: Case, seed: int) -> None:
    check(case, seed)
