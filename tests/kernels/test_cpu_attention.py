"""The native attention and cache kernels against float64 definitions and against themselves, to the bit."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax import lax
from jaxtyping import Array, Float, Int

from pallas_kernels.write_kv import write_kv_ref
from tests.support.attention_cases import (
    LAYER,
    LAYERS,
    Case,
    Inputs,
    check,
    expected,
    lens_and_starts,
    make_inputs,
    one_row,
)
from tests.support.attention_cases import run as run_kernel
from tests.support.native import native

PIECE, TILE = 64, 64
MIXED = ((1, 70), (1, 9), (20, 90), (7, 7))
EDGES = tuple((1, n) for n in (1, 2, 15, 16, 17, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 2 * PIECE + 1))


def run(case: Case, inputs: Inputs) -> np.ndarray:
    return run_kernel(native().ragged_paged_attention, case, inputs)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Case(rows=EDGES + ((1, 40),) * 40), id="decodes at every boundary, many"),
        pytest.param(
            Case(rows=((5, 5), (TILE, TILE), (TILE + 1, 2 * TILE + 1), (2, 2), (3, 100)), padding=0),
            id="prompts at tile boundaries, no padding",
        ),
        pytest.param(Case(rows=((150, 400),), heads=1, kv_heads=1, head_dim=1), id="one head of 1"),
        pytest.param(Case(rows=MIXED, heads=2, head_dim=32, block_size=1, window=8), id="group of 1, window"),
        pytest.param(Case(rows=MIXED, heads=6, head_dim=80, block_size=48), id="group of 3, head_dim 80"),
        pytest.param(Case(rows=MIXED, heads=70, kv_heads=1, head_dim=33, block_size=64), id="group over a tile"),
        pytest.param(Case(rows=((1, 40), (3, 33)), heads=2, kv_heads=1, head_dim=512), id="head_dim 512"),
        pytest.param(
            Case(rows=((1, 3 * PIECE), (90, 2 * PIECE + 5)), window=PIECE, head_dim=64, block_size=128),
            id="window of a piece, head_dim 64",
        ),
        pytest.param(
            Case(rows=MIXED, heads=6, head_dim=33, soft_cap=1.5, sinks=True, window=8, window_operand=True),
            id="cap, sinks, a window that is an operand",
        ),
        pytest.param(Case(rows=MIXED, heads=70, kv_heads=1, sinks=True), id="sinks of a group over a tile"),
        pytest.param(
            Case(rows=EDGES + MIXED, head_dim=64, codes="int8", soft_cap=1.5, window=70), id="int8 codes, cap, window"
        ),
        pytest.param(
            Case(rows=MIXED, heads=70, kv_heads=1, head_dim=33, codes="fp8", sinks=True), id="fp8 codes, sinks"
        ),
        pytest.param(
            Case(rows=EDGES + MIXED, heads=20, kv_heads=1, head_dim=72, value_dim=64), id="values in the keys"
        ),
        pytest.param(
            Case(rows=MIXED, heads=70, kv_heads=1, head_dim=41, value_dim=33, codes="int8"), id="the same in codes"
        ),
        # Each thing alone is among the random shapes below.
    ],
)
def test_matches_the_definition(case: Case, dtype: str) -> None:
    check(native().ragged_paged_attention, replace(case, dtype=dtype))


def test_a_wrong_table_entry_is_noticed() -> None:
    """The comparison can fail: one block of one row swapped for another's."""
    case = Case(rows=((1, 70), (20, 90)))
    inputs = make_inputs(case)
    tables = inputs.tables.copy()
    tables[1, 2] = tables[0, 0]
    got, want = run(case, replace(inputs, tables=tables)), expected(case, inputs)
    assert np.abs(got[1:21] - want[1:21]).max() > 1e-2


def test_a_batch_may_have_no_rows() -> None:
    case = Case(rows=(), padding=4)
    assert len(run(case, make_inputs(case))) == 0


def test_slots_past_a_context_are_not_read() -> None:
    """The twin wants them finite; here they may hold anything."""
    case = Case(rows=MIXED)
    inputs = make_inputs(case)
    cache = inputs.cache.copy()
    for row, (_, context) in enumerate(case.rows):
        cache[inputs.tables[row, context // case.block_size], LAYER, :, :, context % case.block_size :] = np.nan
    np.testing.assert_array_equal(run(case, replace(inputs, cache=cache)), run(case, inputs))


def test_what_is_not_a_number_is_not_hidden() -> None:
    case = Case(rows=MIXED)
    inputs = make_inputs(case)
    q = inputs.q.copy()
    q[5, 1, 3] = np.nan
    assert np.argwhere(np.isnan(run(case, replace(inputs, q=q))).any(-1)).tolist() == [[5, 1]]


def chunked(case: Case, inputs: Inputs, size: int) -> tuple[Case, Inputs]:
    """The same queries, in the same order, as rows of ``size`` at most."""
    rows, tables = [], []
    for row, (length, context) in enumerate(case.rows):
        for first in range(0, length, size):
            end = min(first + size, length)
            rows.append((end - first, context - length + end))
            tables.append(inputs.tables[row])
    cut = replace(case, rows=tuple(rows), padding=0)
    lens, starts = lens_and_starts(cut)
    q = inputs.q[: starts[-1]]
    return cut, replace(inputs, q=q, tables=np.array(tables), starts=starts, lens=lens, num_decodes=0)


def in_blocks_of(case: Case, inputs: Inputs, block_size: int) -> tuple[Case, Inputs]:
    """The same contexts in other blocks, of another size."""
    other = replace(case, block_size=block_size)
    moved = make_inputs(other, seed=1)
    cache = moved.cache.copy()
    for row, (_, context) in enumerate(case.rows):
        at = np.arange(context)
        kv = inputs.cache[inputs.tables[row, at // case.block_size], LAYER, :, :, at % case.block_size]
        cache[moved.tables[row, at // block_size], LAYER, :, :, at % block_size] = kv
    return other, replace(inputs, cache=cache, tables=moved.tables)


def padded(case: Case, inputs: Inputs) -> tuple[Case, Inputs]:
    """More tokens, more rows and wider tables."""
    wide = replace(case, padding=case.padding + 30)
    lens, starts = lens_and_starts(wide)
    q = np.pad(inputs.q, ((0, 50), (0, 0), (0, 0)), constant_values=np.nan)
    tables = np.full((len(lens), inputs.tables.shape[1] + 9), len(inputs.cache) - 1, np.int32)
    tables[: len(inputs.tables), : inputs.tables.shape[1]] = inputs.tables
    return wide, replace(inputs, q=q, tables=tables, starts=starts, lens=lens)


SHARED = Case(rows=((1, 70), (1, 200), (20, 90), (90, 133), (5, 1000)), heads=6, head_dim=64)


HALF = replace(SHARED, dtype="bfloat16")


@pytest.mark.parametrize(
    "case",
    [
        SHARED,
        HALF,
        replace(HALF, heads=16, window=100),
        replace(SHARED, head_dim=33, window=9),
        replace(HALF, soft_cap=1.5, sinks=True, window=50, window_operand=True),
        replace(HALF, codes="int8", window=100),
        replace(HALF, heads=21, kv_heads=1, head_dim=72, value_dim=64),
        *(
            pytest.param(case, marks=pytest.mark.full)  # more of what is above
            for case in (
                replace(HALF, window=50),
                replace(HALF, head_dim=33, window=9),
                replace(SHARED, codes="int8", window=100),
                replace(SHARED, heads=2),
                replace(SHARED, head_dim=80),
                replace(SHARED, heads=16, head_dim=80, soft_cap=30.0),
                replace(HALF, heads=16, sinks=True, window_operand=True),
                replace(HALF, head_dim=33, codes="fp8"),
            )
        ),
    ],
)
def test_a_token_keeps_its_bits(case: Case) -> None:
    """In any chunk, any batch, any shape, any blocks."""
    inputs = make_inputs(case)
    together = run(case, inputs)
    for row in range(len(case.rows)):
        own = slice(inputs.starts[row], inputs.starts[row + 1])
        np.testing.assert_array_equal(run(*one_row(case, inputs, row)), together[own])
    for size in (1, 2, 7, 64):
        np.testing.assert_array_equal(run(*chunked(case, inputs, size)), together)
    for block_size in (3, 8, 64, 100):
        np.testing.assert_array_equal(run(*in_blocks_of(case, inputs, block_size)), together)
    np.testing.assert_array_equal(run(*padded(case, inputs)), together)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Random ragged rows, block sizes, groups, windows, caps and sinks."""
    kv_heads = draw(st.sampled_from([1, 2, 3]))
    lengths = draw(st.lists(st.one_of(st.just(1), st.integers(2, TILE + 20)), min_size=1, max_size=6))
    return Case(
        rows=tuple((length, length + draw(st.integers(0, 2 * PIECE + 20))) for length in lengths),
        heads=kv_heads * draw(st.sampled_from([1, 2, 5, 8])),
        kv_heads=kv_heads,
        head_dim=draw(st.sampled_from([8, 15, 16, 64, 80])),
        block_size=draw(st.sampled_from([1, 3, 16, 64, 100])),
        window=draw(st.none() | st.integers(1, 3 * PIECE)),
        window_operand=draw(st.booleans()),
        soft_cap=draw(st.none() | st.floats(0.1, 50)),
        sinks=draw(st.booleans()),
        dtype=draw(st.sampled_from(["float32", "bfloat16"])),
        codes=draw(st.sampled_from([None, "int8", "fp8"])),
        value_dim=draw(st.sampled_from([None, None, 1, 7, 8])),
        padding=draw(st.integers(0, 5)),
    )


@pytest.mark.full
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases(), st.integers(0, 10**6))
def test_random_shapes(case: Case, seed: int) -> None:
    check(native().ragged_paged_attention, case, seed)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"tables": 10**6}, "a block that does not exist"),
        ({"tables": -1}, "a block that does not exist"),
        ({"lens": 10**6}, "does not fit its table"),
        ({"lens": 0}, "does not fit its table"),
        ({"starts": 10**6}, "do not ascend within the tokens"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(change: dict[str, int], says: str) -> None:
    case = Case(rows=MIXED)
    inputs = make_inputs(case)
    ((name, value),) = change.items()
    array = getattr(inputs, name).copy()
    array[1] = value
    with pytest.raises(jax.errors.JaxRuntimeError, match=says):
        run(case, replace(inputs, **{name: array}))


def test_float16_is_refused() -> None:
    case = Case(rows=MIXED, dtype="float16")
    with pytest.raises(ValueError, match="float32 or bfloat16"):
        run(case, make_inputs(case))


N, K, B, D = 5, 3, 16, 24


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_writes_each_token_and_drops_padding(dtype: str) -> None:
    rng = np.random.default_rng(0)
    for tokens, parts in ((0, 2), (1, 2), (6, 1), (75, 2)):
        cache = jnp.asarray(rng.normal(size=(N, LAYERS, parts, K, B, D)), dtype)
        k, v = jnp.asarray(rng.normal(size=(2, tokens, K, D)), "float32")
        v = v if parts == 2 else None
        slots = rng.permutation(N * B + 3)[:tokens].astype(np.int32)
        arguments = (cache, jnp.int32(LAYER), k, v, jnp.asarray(slots))
        got, want = jax.jit(native().write_kv)(*arguments), write_kv_ref(*arguments)
        np.testing.assert_array_equal(np.asarray(got), np.asarray(want))


def test_a_scan_carries_the_cache_in_place() -> None:
    """Write, attend, layer by layer: the donated cache is updated where it is and nothing of its size is allocated."""
    tokens = 8
    cache = jax.ShapeDtypeStruct((200, LAYERS, 2, K, B, D), jnp.float32)
    kv = jax.ShapeDtypeStruct((tokens, K, D), jnp.float32)

    @partial(jax.jit, donate_argnums=0)
    def step(
        cache: Float[Array, "N L 2 K B D"], x: Float[Array, "T K D"], slots: Int[Array, "T"]
    ) -> tuple[Float[Array, "N L 2 K B D"], Float[Array, "T K D"]]:
        def body(
            carry: tuple[Float[Array, "N L 2 K B D"], Float[Array, "T K D"]], layer: Int[Array, ""]
        ) -> tuple[tuple[Float[Array, "N L 2 K B D"], Float[Array, "T K D"]], None]:
            cache, x = carry
            cache = native().write_kv(cache, layer, x, x, slots)
            tables, rows = (slots // B)[None], jnp.array([tokens])
            starts = jnp.array([0, tokens])
            x = native().ragged_paged_attention(
                x, cache, layer, tables, starts, rows, jnp.int32(1), jnp.int32(0), scale=1.0
            )
            return (cache, x), None

        return lax.scan(body, (cache, x), jnp.arange(LAYERS))[0]

    compiled = step.lower(cache, kv, jax.ShapeDtypeStruct((tokens,), jnp.int32)).compile()
    memory = compiled.memory_analysis()
    size = cache.size * 4
    assert memory is not None
    assert memory.alias_size_in_bytes == size
    assert memory.temp_size_in_bytes < size // 10
    slots = jnp.arange(tokens, dtype=jnp.int32)
    x = jnp.asarray(np.random.default_rng(0).normal(size=kv.shape), jnp.float32)
    given = jnp.full(cache.shape, jnp.nan, jnp.float32)
    pointer = given.unsafe_buffer_pointer()
    after, _ = compiled(given, x, slots)
    assert after.unsafe_buffer_pointer() == pointer
    written = np.isfinite(np.asarray(after)).all((2, 3, 5))
    assert written.sum() == LAYERS * tokens
    assert written[0, :, :tokens].all()
