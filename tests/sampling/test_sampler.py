"""What sampling promises: ties, edges, greedy rows, bias, and that no row depends on another."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from jaxgen.sampling.penalties import PenaltyState
from jaxgen.sampling.row_params import RowParams
from tests.support.draws import SMALL, STATE, draw, draw_many, params, program, random_rows, small, support


def test_thresholds_keep_what_ties() -> None:
    tied = [2.0, 3.0, 2.0, 1.0, 2.0]
    assert support(tied, top_k=1) == {1}
    assert support(tied, top_k=2) == {0, 1, 2, 4}
    assert support(tied, top_p=0.5) == {0, 1, 2, 4}
    assert support([1.0] * 5, top_p=0.01) == set(range(5))
    assert support([1.0] * 5, top_p=1e-30) == set(range(5))
    assert support([1.0] * 5, top_k=1) == set(range(5))
    assert support([1.0, 1.0, 0.9], min_p=1.0) == {0, 1}
    assert support([np.inf, 1e38, np.inf]) == {0, 2}
    assert support([0.0, -0.0, -1.0], top_k=1) == {0, 1}


def test_at_least_one_token_is_kept() -> None:
    x = [0.0, 0.1, 5.0, 0.2]
    assert support(x, top_p=1e-30) == {2}
    assert support(x, min_p=1.0) == {2}
    assert support(x, top_p=1e-30, top_k=1, min_p=1.0) == {2}


def test_min_p_keeps_what_equals_its_share_of_the_greatest() -> None:
    x = [0.0, -1.0, -2.0]
    share = np.exp(-1.0)
    assert support(x, min_p=share * (1 - 1e-5)) == {0, 1}
    assert support(x, min_p=share * (1 + 1e-5)) == {0}


def test_top_k_1_is_greedy_however_close_the_second_is() -> None:
    close = np.float32(1e-3)
    x = [float(close), float(np.nextafter(close, np.float32(1))), -5.0]
    assert support(x, top_k=1) == {1}
    assert support(x, top_k=1, temperature=2.0) == {1}


def test_greedy_takes_the_first_of_the_greatest() -> None:
    x = small([[1, 3, 2, 3], [-1, -np.inf, -1, -2], [0.0, -0.0, -1, 0], [-0.0, 0.0, -1, 0]])
    assert draw(x, params(4, SMALL), np.zeros(4)).tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize("temperature", [0.0, 1e-40, 1e-3, 1.0])
def test_nan_and_infinities(temperature: float) -> None:
    nan, inf = np.nan, np.inf
    x = [[nan] * 3, [-inf] * 3, [nan, -inf, nan], [nan, -1, -inf], [-50, inf, 50], [nan, -inf, inf], [-inf, nan, -3e38]]
    p = params(7, 3, temperature=temperature, top_p=0.9, top_k=2)
    assert draw(np.array(x), p, np.arange(7)).tolist() == [0, 0, 0, 1, 1, 2, 2]


def test_greedy_rows_stay_greedy_among_sampled_ones() -> None:
    x = np.random.default_rng(5).normal(size=(64, 301)).astype(np.float32)
    p = params(64, 301, temperature=np.arange(64) % 2, top_p=0.9)
    tokens = draw(x, p, np.arange(64))
    assert np.array_equal(tokens[::2], x.argmax(1)[::2])
    assert np.any(tokens[1::2] != x.argmax(1)[1::2])


def test_forbidden_tokens_are_never_chosen() -> None:
    x = [9.0, 0.0, 1.0, 8.0]
    forbid: dict[str, Any] = {"masked_tokens": [0, 3, SMALL, SMALL], "masked_until": 2**30}
    assert support(x, **forbid) == {1, 2}
    assert support(x, **forbid, temperature=0.0) == {2}
    assert support([np.inf, 0.0, 1.0, 8.0], **forbid) == {1, 2}


def test_tokens_are_forbidden_up_to_a_position_only() -> None:
    p = params(4, SMALL, masked_tokens=[0, 3, SMALL, SMALL], masked_until=2)
    assert draw(np.tile(small([[9.0, 0.0, 1.0, 8.0]]), (4, 1)), p, np.arange(4)).tolist() == [2, 2, 0, 0]


def test_bias_moves_the_distribution() -> None:
    tokens = draw_many(
        [0.0, 0.0, 0.0], 20_000, bias_tokens=[1, SMALL, SMALL, 2], bias_values=[np.log(2), 9, 9, np.log(3)]
    )
    seen = np.bincount(tokens, minlength=3)
    assert stats.chisquare(seen, 20_000 * np.array([1, 2, 3]) / 6).pvalue > 1e-3


def test_penalties_reach_the_choice() -> None:
    counts, seen = np.zeros((1, SMALL), np.int32), np.zeros((1, SMALL), np.bool_)
    counts[0, 1], seen[0, 2] = 3, True
    state = PenaltyState(jnp.asarray(counts), jnp.asarray(seen))
    x = small([[1.0, 3.0, 2.0, 0.5]])

    def greedy(**values: float) -> int:
        return int(draw(x, params(1, SMALL, **values), np.zeros(1), state, np.zeros(1))[0])

    assert greedy() == 1
    assert greedy(presence=1.5) == 2
    assert greedy(frequency=0.5) == 2
    assert greedy(repetition=4.0) == 0


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 2**32 - 1), st.integers(0, 15))
def test_a_row_depends_on_no_other_row(seed: int, index: int) -> None:
    """The same row alone, and at another index among rows with other parameters, gives the same tokens."""
    rng = np.random.default_rng(seed)
    num_rows, vocab_size = 16, 301
    state = PenaltyState(
        jnp.asarray(rng.integers(0, 2, (num_rows, vocab_size), np.int32)),
        jnp.asarray(rng.random((num_rows, vocab_size)) < 0.5),
    )
    x, p = random_rows(rng, num_rows, vocab_size)
    p.presence[:], p.repetition[:] = rng.choice([0.0, 0.7], num_rows), rng.choice([1.0, 1.5], num_rows)
    p.bias_tokens[:, 0] = rng.choice([3, vocab_size], num_rows)
    p.bias_values[:, 0] = 1.0
    rows = rng.permutation(num_rows)
    alone = params(1, vocab_size, **{name: getattr(p, name)[index] for name in RowParams.__dataclass_fields__})
    for position in range(8):
        among = draw(x, p, np.full(num_rows, position), state, rows)[index]
        here = slice(index, index + 1)
        assert draw(x[here], alone, np.full(1, position), state, rows[here])[0] == among


def test_rows_of_equal_content_draw_equal_tokens_at_every_index() -> None:
    """Also where a row of the array does not begin at a whole vector of the processor."""
    for vocab_size in (301, 1003):
        x = np.random.default_rng(vocab_size).normal(size=vocab_size).astype(np.float32)
        p = params(64, vocab_size, temperature=1.3, top_p=0.97, seed=(3, 4))
        for position in range(20):
            assert len(set(draw(np.tile(x, (64, 1)), p, np.full(64, position)).tolist())) == 1


def test_seeds_and_positions_give_different_draws() -> None:
    x = np.zeros((3, 1003))
    seeds = np.array([(0, 1), (1, 0), (0, 1)], np.uint32)
    tokens = draw(x, params(3, 1003, temperature=1.0, seed=seeds), np.array([5, 5, 6]))
    assert len(set(tokens.tolist())) == 3


def test_lower_precision_logits_are_computed_in_float32() -> None:
    x = jnp.asarray(np.random.default_rng(2).normal(size=(64, 301)), jnp.bfloat16)
    p = params(64, 301, temperature=0.8, top_p=0.9)
    tokens = program(x, p, STATE, jnp.ones(64, jnp.int32), jnp.arange(64, dtype=jnp.int32))
    assert np.array_equal(tokens, draw(np.asarray(x.astype(jnp.float32)), p, np.arange(64)))


def test_neutral_rows_are_greedy() -> None:
    p = params(3, 301)
    x = np.random.default_rng(0).normal(size=(3, 301))
    assert np.array_equal(draw(x, p, np.zeros(3)), x.argmax(1))


def test_nothing_is_sorted() -> None:
    text = program.lower(jnp.zeros((2, 300)), params(2, 300), STATE, *[jnp.zeros(2, jnp.int32)] * 2).as_text()
    assert "stablehlo.reduce" in text
    assert "stablehlo.sort" not in text
    assert "top_k" not in text
