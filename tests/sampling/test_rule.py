"""The documented rule of sampling against an independent reading of it: sorting, float64, and a Threefry of its own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxgen.sampling import exact_sum
from jaxgen.sampling.sampler import _pick, _random_bits
from tests.support.draws import draw, draw_many, params, random_rows

pick = jax.jit(_pick)


def threefry(key: np.ndarray, counter: np.ndarray) -> np.ndarray:
    """Threefry-2x32 with 20 rounds (Salmon et al., 2011), one block per row of two words."""
    rotations = ((13, 15, 26, 6), (17, 29, 16, 24))
    k = [key[:, 0], key[:, 1], key[:, 0] ^ key[:, 1] ^ np.uint32(0x1BD11BDA)]
    a, b = counter[:, 0] + k[0], counter[:, 1] + k[1]
    for block in range(5):
        for r in rotations[block % 2]:
            a = a + b
            b = (b << np.uint32(r) | b >> np.uint32(32 - r)) ^ a
        a, b = a + k[(block + 1) % 3], b + k[(block + 2) % 3] + np.uint32(block + 1)
    return np.stack([a, b], axis=1)


def test_threefry_gives_its_authors_test_vectors() -> None:
    words = [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ]
    keys, counters, expected = (np.array(column, np.uint32) for column in zip(*words, strict=True))
    assert np.array_equal(threefry(keys, counters), expected)


def kept_probabilities(x: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float) -> np.ndarray:
    """What may be drawn, and how often: in float64, in SamplingParams' order, by sorting."""
    scaled = x.astype(np.float64) / temperature
    p = np.exp(scaled - scaled.max())
    p[p < min_p] = 0
    if 0 < top_k < len(p):
        p[x < np.sort(x)[len(p) - top_k]] = 0
    p /= p.sum()
    if top_p < 1:
        descending = np.sort(p)[::-1]
        p[p < descending[np.cumsum(descending) >= top_p][:1]] = 0
    return np.asarray(p / p.sum())


@pytest.mark.parametrize("vocab_size", [3, 256, 1003])
def test_tokens_are_those_of_the_rule(vocab_size: int) -> None:
    """Exactly: only draws within rounding of the border between two tokens may differ, and few are."""
    num_rows, near = 256, 0
    x, p = random_rows(np.random.default_rng(vocab_size), num_rows, vocab_size)
    positions = np.random.default_rng(1).integers(0, 2**20, num_rows)
    tokens = draw(x, p, positions)
    words = threefry(np.asarray(p.seed), np.stack([np.zeros_like(positions), positions], axis=1).astype(np.uint32))
    for r in range(num_rows):
        row = np.where(np.isnan(x[r]), -np.inf, x[r])
        q = kept_probabilities(row, float(p.temperature[r]), int(p.top_k[r]), float(p.top_p[r]), float(p.min_p[r]))
        uniform = (int(words[r, 0]) * 2**32 + int(words[r, 1])) / 2**64
        running = np.cumsum(q)
        if np.min(np.abs(running - uniform)) < 1e-5:
            near += 1
            continue
        assert tokens[r] == np.searchsorted(running, uniform, side="right"), (r, p.temperature[r], p.top_k[r])
    assert near < num_rows * 0.05


FAIR = [0.5, 0.2, 0.1, 0.1, 0.06, 0.03, 0.01]
"""Probabilities of a small vocabulary."""


@pytest.mark.parametrize(
    ("settings_", "expected"),
    [
        ({}, FAIR),
        ({"temperature": 0.5}, [p**2 for p in FAIR]),
        ({"temperature": 2.0}, [p**0.5 for p in FAIR]),
        ({"top_k": 2}, [0.5, 0.2, 0, 0, 0, 0, 0]),
        ({"top_k": 3}, [0.5, 0.2, 0.1, 0.1, 0, 0, 0]),
        ({"top_k": 7}, FAIR),
        ({"top_k": 100}, FAIR),
        ({"top_p": 0.0}, [0.5, 0, 0, 0, 0, 0, 0]),
        ({"top_p": 0.75}, [0.5, 0.2, 0.1, 0.1, 0, 0, 0]),
        ({"top_p": 0.65}, [0.5, 0.2, 0, 0, 0, 0, 0]),
        ({"top_p": 0.95}, [0.5, 0.2, 0.1, 0.1, 0.06, 0, 0]),
        ({"min_p": 0.15}, [0.5, 0.2, 0.1, 0.1, 0, 0, 0]),
        ({"top_p": 0.7, "top_k": 2}, [0.5, 0, 0, 0, 0, 0, 0]),
        ({"top_p": 0.7, "min_p": 0.3}, [0.5, 0, 0, 0, 0, 0, 0]),
        ({"temperature": 0.5, "top_p": 0.85}, [0.25, 0.04, 0, 0, 0, 0, 0]),
    ],
    ids=str,
)
def test_draws_have_the_right_frequencies(settings_: dict[str, float], expected: list[float]) -> None:
    """Also that top_p counts what top_k and min_p left, renormalised, and after temperature."""
    count = 20_000
    tokens = draw_many(np.log(FAIR).tolist(), count, **settings_)
    p = np.array(expected) / np.sum(expected)
    seen = np.bincount(tokens, minlength=len(p))
    assert np.all(seen[p == 0] == 0)
    assert seen.sum() == count
    if np.count_nonzero(p) > 1:
        assert stats.chisquare(seen[p > 0], count * p[p > 0]).pvalue > 1e-3


def test_draws_from_a_large_vocabulary_have_the_right_frequencies() -> None:
    """Over many groups of tokens, the last one not full."""
    vocab_size, rounds, rows = 1003, 5, 4000
    logits = np.random.default_rng(0).normal(size=vocab_size).astype(np.float32)
    p = params(rows, vocab_size, temperature=1.0, seed=(1, 2))
    tokens = [draw(np.tile(logits, (rows, 1)), p, np.arange(rows) + rows * i) for i in range(rounds)]
    probabilities = np.exp(logits.astype(np.float64))
    expected = probabilities / probabilities.sum() * rounds * rows
    assert stats.chisquare(np.bincount(np.ravel(tokens), minlength=vocab_size), expected).pvalue > 1e-3


@pytest.mark.parametrize(("words", "expected"), [((0, 0), 2), ((2**32 - 1, 2**32 - 1), 700)])
def test_the_ends_of_the_unit_interval_draw_possible_tokens(words: tuple[int, int], expected: int) -> None:
    w = np.zeros((2, 3 * 256), np.uint32)
    w[0, [2, 700]] = 1
    w[1, [2, 300, 700]] = 2**31
    bits = exact_sum.from_words(*(jnp.full(2, word, jnp.uint32) for word in words))
    token, possible = pick(jnp.asarray(w.reshape(2, 3, 256)), bits)
    assert token.tolist() == [expected, expected]
    assert possible.all()


def test_a_tail_of_rare_tokens_is_drawn_as_often_as_it_should_be() -> None:
    """Tokens of probability 3e-7: where the uniform falls among them, that one is drawn, give or take two."""
    tail = 1002
    logits = np.append(np.full(tail, -15.0), 0.0)
    positions = np.arange(1_000_000, dtype=np.uint32)
    words = threefry(np.full((len(positions), 2), 5, np.uint32), np.stack([np.zeros_like(positions), positions], 1))
    mass = tail * np.exp(-15.0) / (1 + tail * np.exp(-15.0))
    low = np.flatnonzero(words[:, 0] / 2**32 < mass * 0.99)
    assert len(low) > 200
    tokens = draw(np.tile(logits, (len(low), 1)), params(len(low), 1003, temperature=1.0, seed=5), low)
    expected = np.floor(words[low, 0] / 2**32 / mass * tail)
    assert np.all(np.abs(tokens - expected) <= 2)


def test_a_rare_token_is_drawn_where_its_interval_says() -> None:
    """Its share of the mass, 2**-31, is finer than a float32 uniform could hit."""
    w = np.zeros((1, 1, 256), np.uint32)
    w[0, 0, [0, 1, 2]] = 2**30, 1, 2**30
    begin = (2**30 << 64) // (2**31 + 1) + 1

    def token(bits: int) -> int:
        words = (jnp.full(1, word, jnp.uint32) for word in (bits >> 32, bits & 0xFFFFFFFF))
        return int(pick(jnp.asarray(w), exact_sum.from_words(*words))[0][0])

    assert [token(begin - 1), token(begin), token(begin + 2**32)] == [0, 1, 1]
    assert token(begin + 2**33 + 2**32) == 2


def test_the_random_bits_are_one_threefry_block_of_seed_and_position() -> None:
    rng = np.random.default_rng(0)
    seeds, positions = rng.integers(0, 2**32, (100, 2), np.uint32), rng.integers(0, 2**31, 100, np.int32)
    words = threefry(seeds, np.stack([np.zeros_like(positions), positions], axis=1).astype(np.uint32))
    expected = exact_sum.from_words(jnp.asarray(words[:, 0]), jnp.asarray(words[:, 1]))
    assert np.array_equal(_random_bits(jnp.asarray(seeds), jnp.asarray(positions)), expected)
