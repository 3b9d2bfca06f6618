"""What a step may still take, and how far single steps miss the model."""

import numpy as np
import pytest

from jaxgen.core.sequence import Chunk
from jaxgen.engine.start.step_time_probe import prompt_lengths
from jaxgen.scheduling.cost_model import LinearCost, StepSample
from jaxgen.scheduling.step_time import (
    FIRST_SPREAD,
    MARGIN,
    Decodes,
    StepBudget,
    StepTimeEstimator,
    StepTimeModel,
)
from tests.support.service_world import sequence_for

COST = LinearCost(base=0.010, per_token=0.001, per_position=1e-5, per_context=1e-5)
PACE = StepTimeModel(64, COST, narrow=LinearCost(base=0.002, per_token=0.001))


def test_decodes_take_the_narrow_program_and_prompts_the_wide_one() -> None:
    assert PACE.decode_seconds(3) == pytest.approx(0.005)
    assert StepTimeModel(64, COST).decode_seconds(3, 100) == pytest.approx(0.014)
    assert PACE.most_seconds == pytest.approx(0.074)


def test_prompts_take_full_steps_and_the_rest_one_more() -> None:
    assert PACE.prompt_seconds(64) == pytest.approx(0.074)
    assert PACE.prompt_seconds(100) == pytest.approx(0.074 + 0.046)
    assert PACE.prompt_seconds(100, 1000, Decodes(14)) == pytest.approx(2 * 0.074 + 0.010)
    assert PACE.prompt_seconds(0) == 0.0


def test_prompts_beside_promised_decodes_take_the_steps_that_these_allow() -> None:
    # 36 ms, of which 10 are nobody's: 26 tokens, of them 6 decodes
    assert PACE.prompt_seconds(40, 0, Decodes(6, 0, [0.040])) == pytest.approx(2 * 0.036)
    # their contexts take 10 ms more
    assert PACE.prompt_seconds(40, 0, Decodes(6, 1000, [0.0465 / MARGIN])) == pytest.approx(2 * 0.046)
    # a target that leaves next to nothing is not kept, as in steps, and another is
    assert PACE.prompt_seconds(58, 0, Decodes(6, 0, [0.020])) == pytest.approx(0.074)
    assert PACE.prompt_seconds(40, 0, Decodes(6, 0, [0.020, 0.040])) == pytest.approx(2 * 0.036)


def test_a_room_without_promises_is_as_large_as_its_tokens() -> None:
    room = StepBudget(10, 4)
    sequence = sequence_for(20)
    assert room.tokens_for(sequence) == 4
    room.spend(Chunk(sequence, 0, 4))
    room.spend(Chunk(sequence, 4, 4))
    assert (room.tokens_for(sequence), room.is_full) == (2, False)
    room.spend(Chunk(sequence, 8, 2))
    assert room.is_full


def test_a_room_in_time_counts_what_a_token_attends_to() -> None:
    room = StepBudget(64, 64, COST, 0.0205)
    far = sequence_for(400)
    far.num_computed = 100  # 2 ms a token
    assert room.tokens_for(sequence_for(400)) == 20
    assert room.tokens_for(far) == 10
    room.spend(Chunk(far, 100, 5))
    assert room.seconds == pytest.approx(0.0105)
    room.spend(Chunk(far, 105, 4))
    assert not room.is_full
    room.spend(Chunk(far, 109, 1))
    assert room.is_full  # 0.2 ms are left, no token's
    assert not StepBudget(64, 64, COST, 0.001).is_full


def test_a_room_that_is_not_full_has_a_token_for_everyone() -> None:
    """Else a sequence whose first blocks are in the prefix cache would be admitted, hold a row and compute nothing."""
    far = sequence_for(400)
    far.num_computed = 100  # 2 ms a token
    room = StepBudget(64, 64, COST, 0.0015)
    assert (room.tokens_for(far), room.is_full) == (1, False)
    room.spend(Chunk(far, 100, 1))
    assert room.is_full


@pytest.mark.parametrize("sigma", [0.1, 0.5])
def test_the_spread_is_what_one_step_in_a_hundred_exceeds(sigma: float) -> None:
    meter = StepTimeEstimator(64, [StepSample(tokens, 0, COST.seconds(tokens)) for tokens in (1, 32, 64)])
    rng = np.random.default_rng(0)
    ratios = np.exp(sigma * rng.normal(size=20_000))
    exceeded = 0
    for index, ratio in enumerate(ratios):
        exceeded += index >= 10_000 and ratio > meter.spread
        # its cost stays what it is: only the spread is looked at
        meter._wide.observe = lambda sample: False  # type: ignore[method-assign]
        meter.observe(StepSample(64, 0, float(ratio) * COST.seconds(64)), narrow=False)
    assert 0.007 < exceeded / 10_000 < 0.013


def test_the_spread_is_of_the_steps_that_are_long() -> None:
    wide = [StepSample(tokens, 0, COST.seconds(tokens)) for tokens in (1, 32, 64)]
    meter = StepTimeEstimator(64, wide, [StepSample(1, 0, 0.003)], 8)
    for _ in range(200):
        meter.observe(StepSample(1, 0, 0.030), narrow=True)
    assert meter.spread == FIRST_SPREAD


def test_each_program_has_a_meter_of_its_own() -> None:
    wide = [StepSample(tokens, 0, COST.seconds(tokens)) for tokens in (1, 32, 64)]
    narrow = [StepSample(tokens, 0, 0.002 + 0.001 * tokens) for tokens in (1, 4, 8)]
    meter = StepTimeEstimator(64, wide, narrow)
    for _ in range(2000):
        meter.observe(StepSample(4, 0, 0.012), narrow=True)
    assert meter.model.decode_seconds(4) == pytest.approx(0.012, rel=0.1)
    assert meter.model.wide.seconds(64) == pytest.approx(0.074, rel=1e-6)
    assert StepTimeEstimator(64, wide).model.narrow is None


def test_no_prompt_is_timed_that_is_longer_than_there_may_be() -> None:
    assert [prompt_lengths(longest) for longest in (1, 2, 12, 64)] == [[1], [2], [2, 6, 12], [8, 32, 64]]
