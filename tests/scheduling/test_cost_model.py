"""Step costs found from steps."""

from math import inf

import numpy as np
import pytest

from jaxgen.scheduling.cost_model import MEMORY, REFIT_STEPS, CostEstimator, LinearCost, StepSample, fit

TRUE = LinearCost(base=0.004, per_token=2e-4, per_position=3e-8, per_context=2e-7)


def _samples(cost: LinearCost, count: int, *, noise: float = 0.0, seed: int = 0) -> list[StepSample]:
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        rows, chunk = int(rng.integers(1, 17)), int(rng.integers(0, 241))
        positions, contexts = chunk * int(rng.integers(0, 4000)), rows * int(rng.integers(0, 4000))
        seconds = cost.seconds(rows + chunk, positions, contexts) * (1 + noise * rng.normal())
        found.append(StepSample(rows + chunk, positions, seconds, contexts))
    return found


def test_a_fit_finds_what_made_the_samples() -> None:
    cost = fit(_samples(TRUE, 50))
    assert cost.base == pytest.approx(TRUE.base, rel=1e-6)
    assert cost.per_token == pytest.approx(TRUE.per_token, rel=1e-6)
    assert cost.per_position == pytest.approx(TRUE.per_position, rel=1e-6)
    assert cost.per_context == pytest.approx(TRUE.per_context, rel=1e-6)


def test_a_fit_is_near_through_noise() -> None:
    cost = fit(_samples(TRUE, 2000, noise=0.1))
    for tokens, positions in ((1, 0), (64, 64 * 300), (256, 256 * 2000)):
        assert cost.seconds(tokens, positions) == pytest.approx(TRUE.seconds(tokens, positions), rel=0.03)


def test_steps_of_few_tokens_may_take_the_same() -> None:
    """As on a GPU, where the line through long steps would be too low for short ones, and their time for contexts."""
    real = LinearCost(base=0.001, per_token=0.0000214, per_context=3.6e-8, floor=0.005)
    sizes = [(1024, 0), (512, 0), (128, 0), (1, 0), (256, 0), (1, 4095)]
    known = [StepSample(tokens, 0, real.seconds(tokens, 0, contexts), contexts) for tokens, contexts in sizes]
    meter = CostEstimator(known, floored=True)
    for _ in range(2 * REFIT_STEPS):
        meter.observe(StepSample(16, 0, real.seconds(16, 0, 9000), 9000))
    for tokens, contexts in ((1, 0), (64, 20_000), (180, 0), (700, 100_000)):
        assert meter.cost.seconds(tokens, 0, contexts) == pytest.approx(real.seconds(tokens, 0, contexts), rel=0.02)
    assert CostEstimator(known).cost.seconds(64, 0, 20_000) > 1.2 * real.seconds(64, 0, 20_000)


def test_no_part_is_negative() -> None:
    """The line through these points has a negative start."""
    cost = fit([StepSample(10, 0, 0.001), StepSample(100, 0, 0.020)])
    assert cost.base == 0.0
    assert cost.per_token > 0.0


def test_steps_that_are_all_alike_are_predicted_all_the_same() -> None:
    cost = fit([StepSample(64, 1000, 0.02)] * 5)
    assert cost.seconds(64, 1000) == pytest.approx(0.02)
    assert 0.0 < cost.seconds(32, 1000) <= 0.02


def test_a_fit_wants_a_sample() -> None:
    with pytest.raises(ValueError, match="one at least"):
        fit([])


def test_steps_that_seem_short_after_some_that_seem_long_do_not_count_for_more() -> None:
    """Of 20 ms and 1 ms a token; every fourth step's end is seen 90 % of a step late."""
    cost, rng = LinearCost(base=0.020, per_token=0.001), np.random.default_rng(1)
    samples, late = [], 0.0
    for step in range(2000):
        tokens = int(rng.integers(1, 65))
        seconds = cost.seconds(tokens)
        now_late = 0.9 * seconds if step % 4 == 0 else 0.0
        samples.append(StepSample(tokens, 0, max(seconds + now_late - late, 1e-4)))
        late = now_late
    meter = CostEstimator(_samples(cost, 20))
    for sample in samples:
        meter.observe(sample)
    for found in (fit(samples), meter.cost):
        for tokens in (1, 32, 64):
            assert found.seconds(tokens) == pytest.approx(cost.seconds(tokens), rel=0.1)


def test_a_meter_follows_a_machine_that_becomes_slower() -> None:
    meter = CostEstimator(_samples(TRUE, 20))
    slow = LinearCost(TRUE.base * 2, TRUE.per_token * 2, TRUE.per_position * 2, TRUE.per_context * 2)
    for sample in _samples(slow, 3 * MEMORY):
        meter.observe(sample)
    assert meter.cost.seconds(128, 128 * 500) == pytest.approx(slow.seconds(128, 128 * 500), rel=0.1)


def test_a_meter_keeps_what_no_step_shows_any_more() -> None:
    """Thousands of like decodes do not make it forget what prompts cost."""
    meter = CostEstimator(_samples(TRUE, 20))
    for _ in range(4 * MEMORY):
        meter.observe(StepSample(8, 0, TRUE.seconds(8, 0, 8 * 300), 8 * 300))
    assert meter.cost.seconds(256) == pytest.approx(TRUE.seconds(256), rel=0.02)


def test_decodes_of_long_contexts_are_not_taken_for_prompts() -> None:
    """Hundreds of them leave what a chunk costs as it is."""
    meter = CostEstimator(_samples(TRUE, 20))
    for _ in range(2 * MEMORY):
        meter.observe(StepSample(8, 0, TRUE.seconds(8, 0, 8 * 4000), 8 * 4000))
    assert meter.cost.seconds(8, 0, 8 * 4000) == pytest.approx(TRUE.seconds(8, 0, 8 * 4000), rel=0.05)
    assert meter.cost.seconds(128, 128 * 4000) == pytest.approx(TRUE.seconds(128, 128 * 4000), rel=0.05)


def test_tokens_within_a_time() -> None:
    cost = LinearCost(base=0.01, per_token=0.001, per_context=1e-6, floor=0.02)
    assert cost.seconds(1) == 0.02
    assert cost.tokens_within(0.05) == pytest.approx(40)
    assert cost.tokens_within(0.05, 10_000) == pytest.approx(30)
    assert cost.tokens_within(0.015) < 0
    assert LinearCost(base=0.01).tokens_within(0.02) == inf
    assert LinearCost(base=0.01).tokens_within(0.005) < 0
