"""Token counts on the device against a plain replay of random histories, and that they are kept in place."""

from collections import Counter
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxgen.penalties import PenaltyState, init_penalties, update_penalties
from jaxgen.sampling import RowParams, adjust_logits

S, T, V = 4, 12, 9
update = jax.jit(update_penalties, donate_argnums=0)


class Replay:
    """What the state should hold: for each sampler row the prompt's tokens and the output's counts."""

    def __init__(self) -> None:
        self.prompt: list[set[int]] = [set() for _ in range(S)]
        self.output: list[Counter[int]] = [Counter() for _ in range(S)]

    def step(self, tokens: list[tuple[int, int, bool]], resets: set[int]) -> None:
        for row in resets:
            self.prompt[row], self.output[row] = set(), Counter()
        for token, row, is_output in tokens:
            if row < S and is_output:
                self.output[row][token] += 1
            elif row < S:
                self.prompt[row].add(token)

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        counts = np.array([[row[token] for token in range(V)] for row in self.output], np.int32)
        return counts, np.array([[token in row for token in range(V)] for row in self.prompt])


def run_update(state: PenaltyState, tokens: list[tuple[int, int, bool]], resets: set[int]) -> PenaltyState:
    padded = tokens + [(0, S, False)] * (T - len(tokens))
    ids, rows, is_output = (list(column) for column in zip(*padded, strict=True))
    marks = np.isin(np.arange(S), sorted(resets))
    return update(state, np.array(ids, np.int32), np.array(rows, np.int32), np.array(is_output), marks)


step_tokens = st.lists(st.tuples(st.integers(0, V - 1), st.integers(0, S), st.booleans()), max_size=T)
histories = st.lists(st.tuples(step_tokens, st.sets(st.integers(0, S - 1))), min_size=1, max_size=8)


@settings(deadline=None, max_examples=100)
@given(histories)
def test_counts_follow_any_history(history: list[tuple[list[tuple[int, int, bool]], set[int]]]) -> None:
    state, replay = init_penalties(S, V), Replay()
    for tokens, resets in history:
        state = run_update(state, tokens, resets)
        replay.step(tokens, resets)
        counts, seen = replay.arrays()
        assert np.array_equal(state.output_counts, counts)
        assert np.array_equal(state.prompt_seen, seen)


def test_a_reset_row_counts_the_same_steps_tokens() -> None:
    state = run_update(init_penalties(S, V), [(3, 1, True), (3, 1, True), (4, 1, False)], set())
    state = run_update(state, [(5, 1, False), (3, 1, True)], {1})
    assert state.output_counts[1].tolist() == [0, 0, 0, 1, 0, 0, 0, 0, 0]
    assert np.flatnonzero(state.prompt_seen[1]).tolist() == [5]


@pytest.mark.parametrize("nested", [False, True], ids=["alone", "inside cond"])
def test_the_state_is_updated_in_place(nested: bool) -> None:
    rows, vocab = 16, 5000
    rest = (jnp.zeros(T, jnp.int32), jnp.zeros(T, jnp.int32), jnp.zeros(T, jnp.bool_), jnp.ones(rows, jnp.bool_))

    def within(wanted: jax.Array, state: PenaltyState, *rest: Any) -> PenaltyState:
        result: PenaltyState = jax.lax.cond(wanted, lambda s: update_penalties(s, *rest), lambda s: s, state)
        return result

    program = partial(within, jnp.bool_(True)) if nested else update_penalties
    state = init_penalties(rows, vocab)
    compiled = jax.jit(program, donate_argnums=0).lower(state, *rest).compile()
    memory: Any = compiled.memory_analysis()
    assert memory.alias_size_in_bytes == rows * vocab * 5
    assert memory.temp_size_in_bytes < rows * vocab / 2
    before = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(state)]
    after = compiled(state, *rest)
    assert [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(after)] == before


def brute_force_adjusted(x: np.ndarray, p: RowParams, state: PenaltyState) -> np.ndarray:
    """Token by token in float64, as the three definitions say."""
    x = x.astype(np.float64)
    for r, sampler_row in enumerate(p.sampler_rows.tolist()):
        for token in range(x.shape[1]):
            tracked = sampler_row < state.output_counts.shape[0]
            count = int(state.output_counts[sampler_row, token]) if tracked else 0
            if count or (tracked and bool(state.prompt_seen[sampler_row, token])):
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
    p = RowParams.neutral(R, 3, V)
    p.presence[:], p.frequency[:] = rng.uniform(-2, 2, (2, R))
    p.repetition[:] = rng.uniform(0.5, 2, R)
    p.sampler_rows[:] = rng.permutation(S + 1)[:R]
    p.bias_tokens[:] = [rng.permutation(V + 1)[:3] for _ in range(R)]
    p.bias_values[:] = rng.uniform(-5, 5, (R, 3))
    p.bias_values[0, 0] = -np.inf
    adjusted = jax.jit(adjust_logits)(x, p, state)
    np.testing.assert_allclose(adjusted, brute_force_adjusted(x, p, state), rtol=1e-5, atol=1e-5)


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits_of_prompt_and_output() -> None:
    state = PenaltyState(jnp.array([[2, 0, 0, 0, 1, 0]]), jnp.array([[False, True, True, False, False, False]]))
    p = RowParams.neutral(1, 1, 6)
    p.repetition[:], p.sampler_rows[:] = 2.0, 0
    adjusted = adjust_logits(jnp.array([[4.0, -4.0, 0.0, 4.0, -1.0, -1.0]]), p, state)
    assert adjusted.tolist() == [[2.0, -8.0, 0.0, 4.0, -2.0, -1.0]]


def test_neutral_rows_keep_their_bits_beside_penalised_ones() -> None:
    x = np.random.default_rng(3).normal(size=(2, V)).astype(np.float32)
    x[0, :2] = -0.0, np.inf
    state = PenaltyState(jnp.full((S, V), 7), jnp.ones((S, V), jnp.bool_))
    p = RowParams.neutral(2, 2, V)
    p.sampler_rows[:] = 0, 1
    p.presence[1], p.frequency[1], p.repetition[1], p.bias_tokens[1] = 1.0, 1.0, 1.5, [2, 3]
    adjusted = np.asarray(jax.jit(adjust_logits)(x, p, state))
    assert adjusted[0].tobytes() == x[0].tobytes()
    assert np.all(adjusted[1] != x[1])
