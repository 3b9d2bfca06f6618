"""ragged_paged_attention_ref against a float64 walk over each query's context, one key at a time."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pallas_kernels.ragged_paged_attention import PIECE_TOKENS, QUERY_TILE, TILE_GROUP, ragged_paged_attention_ref
from tests.support.attention_cases import Case, check, expected, make_inputs, one_row, run

P, Q, G = PIECE_TOKENS, QUERY_TILE, TILE_GROUP
EDGES = tuple((1, n) for n in (1, 15, 16, 17, P - 1, P, P + 1, 2 * P, 2 * P + 1))


ROWS = ((1, 70), (20, 90))
PROMPTS = ((5, 5), (Q, Q), (Q + 1, 2 * Q + 1), (2, 2), (3, 100))


@pytest.mark.shipped
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Case(rows=(*EDGES, *((1, 40),) * (2 * G + 1), *PROMPTS)), id="all boundaries, several groups"),
        pytest.param(Case(rows=((1, 70),), padding=0), id="one decode, no padding"),
        pytest.param(
            Case(rows=((1, 3 * P), (90, 2 * P + 5)), window=P, block_size=64, kv_heads=4), id="window of a piece"
        ),
        pytest.param(
            Case(rows=((1, 150), (20, 190)), block_size=128, heads=6, kv_heads=1, head_dim=80, dtype="bfloat16"),
            id="block over a piece, one kv head, bfloat16",
        ),
        pytest.param(Case(rows=ROWS, block_size=1, dtype="float16"), id="block of one token, float16"),
        pytest.param(
            Case(rows=ROWS, block_size=48, heads=6, sinks=True, soft_cap=2.0, window=8, window_operand=True),
            id="both, a window that is an operand, block of 48",
        ),
        pytest.param(Case(rows=ROWS, dtype="bfloat16", codes="int8"), id="int8 codes, bfloat16"),
        pytest.param(Case(rows=ROWS, heads=6, block_size=48, codes="fp8", sinks=True), id="fp8 codes, block of 48"),
        pytest.param(Case(rows=ROWS, kv_heads=1, head_dim=24, value_dim=16), id="values in the keys"),
        pytest.param(Case(rows=ROWS, soft_cap=0.5), marks=pytest.mark.full),
        pytest.param(Case(rows=ROWS, sinks=True), marks=pytest.mark.full),
        # Each other thing alone is among the random shapes below.
    ],
)
def test_matches_the_definition(case: Case) -> None:
    check(ragged_paged_attention_ref, case)


def test_a_wrong_table_entry_is_noticed() -> None:
    """The comparison can fail: one block of one row swapped for another's."""
    case = Case(rows=ROWS)
    inputs = make_inputs(case)
    want = expected(case, inputs)
    tables = inputs.tables.copy()
    tables[1, 2] = tables[0, 0]
    got = run(ragged_paged_attention_ref, case, replace(inputs, tables=tables))
    assert np.abs(got[1:21] - want[1:21]).max() > 1e-2


@pytest.mark.shipped
def test_rows_keep_their_bits_among_other_rows() -> None:
    """A row alone, and the same row between neighbours and at another place, agree bitwise."""
    rows = ((1, 200), (20, 90))  # test_attention_bits has more
    case = Case(rows=rows, padding=0)
    inputs = make_inputs(case)
    together = run(ragged_paged_attention_ref, case, inputs)
    for row in range(len(rows)):
        own = slice(inputs.starts[row], inputs.starts[row + 1])
        np.testing.assert_array_equal(run(ragged_paged_attention_ref, *one_row(case, inputs, row)), together[own])


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
        window_operand=draw(st.booleans()),
        padding=draw(st.integers(0, 5)),
    )


@pytest.mark.full
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases(), st.integers(0, 10**6))
def test_random_shapes(case: Case, seed: int) -> None:
    check(ragged_paged_attention_ref, case, seed)
