"""Token counts on the device against a plain count of random histories, and that they are kept in place."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxgen.core.sequence import Sequence
from jaxgen.runner.row_state import RowLoader
from jaxgen.sampling.penalties import PenaltyState, count_output, init_penalties
from jaxgen.sampling.row_params import RowParams
from jaxgen.sampling.sampler import adjust_logits
from tests.support.draws import MAX_BIAS, params
from tests.support.engines import engine_config, request

S, T, V = 4, 12, 9
count = jax.jit(count_output, donate_argnums=0)

step_tokens = st.lists(st.tuples(st.integers(0, V - 1), st.integers(0, S)), max_size=T)


@settings(deadline=None, max_examples=100)
@given(st.lists(step_tokens, min_size=1, max_size=8))
def test_counts_follow_any_history(history: list[list[tuple[int, int]]]) -> None:
    state, expected = init_penalties(S, V), np.zeros((S, V), np.int32)
    for tokens in history:
        padded = np.array(tokens + [(0, S)] * (T - len(tokens)), np.int32)
        state = count(state, padded[:, 0], padded[:, 1])
        for token, row in tokens:
            if row < S:
                expected[row, token] += 1
        assert np.array_equal(state.output_counts, expected)
    assert not np.any(state.prompt_seen)


@pytest.mark.parametrize("nested", [False, True], ids=["alone", "inside cond"])
def test_the_state_is_updated_in_place(nested: bool) -> None:
    rows, vocab = 16, 5000
    rest = (jnp.zeros(T, jnp.int32), jnp.zeros(T, jnp.int32))

    def within(wanted: jax.Array, state: PenaltyState, *rest: Any) -> PenaltyState:
        result: PenaltyState = jax.lax.cond(wanted, lambda s: count_output(s, *rest), lambda s: s, state)
        return result

    program = partial(within, jnp.bool_(True)) if nested else count_output
    state = init_penalties(rows, vocab)
    compiled = jax.jit(program, donate_argnums=0).lower(state, *rest).compile()
    memory: Any = compiled.memory_analysis()
    assert memory.alias_size_in_bytes == rows * vocab * 5
    assert memory.temp_size_in_bytes < rows * vocab / 2
    before = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(state)]
    after = compiled(state, *rest)
    assert [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(after)] == before


def brute_force_adjusted(x: np.ndarray, p: RowParams, state: PenaltyState, rows: np.ndarray) -> np.ndarray:
    """Token by token in float64, as the three definitions say."""
    x = x.astype(np.float64)
    for r, row in enumerate(rows.tolist()):
        for token in range(x.shape[1]):
            tracked = row < state.output_counts.shape[0]
            count = int(state.output_counts[row, token]) if tracked else 0
            if count or (tracked and bool(state.prompt_seen[row, token])):
                factor = float(p.repetition[r])
                x[r, token] = x[r, token] / factor if x[r, token] > 0 else x[r, token] * factor
            x[r, token] -= float(p.frequency[r]) * count + (float(p.presence[r]) if count else 0.0)
        for token, value in zip(p.bias_tokens[r].tolist(), p.bias_values[r].tolist(), strict=True):
            if token < x.shape[1]:
                x[r, token] += value
    return x


@pytest.mark.parametrize("seed", range(5))
def test_adjusted_logits_are_those_of_brute_force(seed: int) -> None:
    rng = np.random.default_rng(seed)
    R = 5
    x = rng.normal(size=(R, V)).astype(np.float32) * 3
    state = PenaltyState(jnp.asarray(rng.integers(0, 3, (S, V), np.int32)), jnp.asarray(rng.random((S, V)) < 0.4))
    p = params(R, V)
    p.presence[:], p.frequency[:] = rng.uniform(-2, 2, (2, R))
    p.repetition[:] = rng.uniform(0.5, 2, R)
    rows = rng.permutation(S + 1)[:R].astype(np.int32)
    p.bias_tokens[:] = [rng.permutation(V + 1)[:MAX_BIAS] for _ in range(R)]
    p.bias_values[:] = rng.uniform(-5, 5, (R, MAX_BIAS))
    adjusted = jax.jit(adjust_logits)(x, p, state, rows, np.zeros(R, np.int32))
    np.testing.assert_allclose(adjusted, brute_force_adjusted(x, p, state, rows), rtol=1e-5, atol=1e-5)


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits_of_prompt_and_output() -> None:
    state = PenaltyState(jnp.array([[2, 0, 0, 0, 1, 0]]), jnp.array([[False, True, True, False, False, False]]))
    p = params(1, 6, repetition=2.0)
    first = jnp.zeros(1, jnp.int32)
    adjusted = adjust_logits(jnp.array([[4.0, -4.0, 0.0, 4.0, -1.0, -1.0]]), p, state, first, first)
    assert adjusted.tolist() == [[2.0, -8.0, 0.0, 4.0, -2.0, -1.0]]


@pytest.mark.shipped
def test_neutral_rows_keep_their_bits_beside_penalised_ones() -> None:
    x = np.random.default_rng(3).normal(size=(2, V)).astype(np.float32)
    x[0, :2] = -0.0, np.inf
    state = PenaltyState(jnp.full((S, V), 7), jnp.ones((S, V), jnp.bool_))
    p = params(2, V)
    p.presence[1], p.frequency[1], p.repetition[1], p.bias_tokens[1, :2] = 1.0, 1.0, 1.5, [2, 3]
    adjusted = np.asarray(jax.jit(adjust_logits)(x, p, state, np.arange(2, dtype=np.int32), np.zeros(2, np.int32)))
    assert adjusted[0].tobytes() == x[0].tobytes()
    assert np.all(adjusted[1] != x[1])


def test_prompt_and_output_are_loaded_apart() -> None:
    """Of a sequence that was preempted: penalties for what was generated are not for what was asked."""
    sequence = Sequence(request("r", [5, 6, 6]), eos_token_ids=frozenset(), arrival=0, seed=0)
    sequence.tokens += [7, 6, 7]
    sequence.row = 2
    row, counts, seen = RowLoader(engine_config(), V).penalties(sequence)
    assert int(row) == 2
    assert counts.tolist() == [0, 0, 0, 0, 0, 0, 1, 2, 0]
    assert np.flatnonzero(seen).tolist() == [5, 6]
