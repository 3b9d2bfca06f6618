"""How long a step may take for the sequences that decode."""

from math import inf

import pytest

from jaxgen.core.sequence import Chunk
from jaxgen.scheduling.cost_model import LinearCost
from jaxgen.scheduling.service.targets import time_for_prompts, time_left
from jaxgen.scheduling.step_time import LEAST_CHUNK, MARGIN, StepTimeModel
from tests.support.service_world import promised, sequence_for

COST = LinearCost(base=0.010, per_token=0.001, per_position=1e-5, per_context=1e-5)
PACE = StepTimeModel(64, COST, narrow=LinearCost(base=0.002, per_token=0.001))


def decode(context: int, inter_token: float | None = None) -> Chunk:
    service = promised(inter_token_seconds=inter_token)
    return Chunk(sequence_for(context + 1, service=service), context, 1)


def test_what_is_left_is_for_the_strictest_of_those_that_decode() -> None:
    chunks = [decode(100, 0.050), decode(200, 0.040), decode(0)]
    assert time_left(PACE, chunks) == pytest.approx(MARGIN * 0.040 - 0.013 - 300e-5)
    assert time_left(PACE, [decode(100)]) == inf
    prompt = Chunk(sequence_for(64, service=promised(inter_token_seconds=0.001)), 0, 32)
    assert time_left(PACE, [prompt]) == inf  # it has no token yet for another to come after


def test_where_next_to_nothing_would_be_left_prompts_take_all() -> None:
    target = (0.011 + LEAST_CHUNK * 0.001) / MARGIN
    assert time_for_prompts(PACE, [decode(0, target + 1e-6)], 0) == pytest.approx(LEAST_CHUNK * 0.001, rel=1e-3)
    assert time_for_prompts(PACE, [decode(0, target - 1e-6)], 0) == inf
    # so many tokens of a prompt that is far on take longer
    assert time_for_prompts(PACE, [decode(0, target + 1e-6)], 1) == inf


def test_a_promise_that_cannot_be_kept_takes_nothing_from_another() -> None:
    chunks = [decode(0, 0.012), decode(0, 0.050)]
    assert time_left(PACE, chunks) == time_for_prompts(PACE, chunks, 0) == pytest.approx(MARGIN * 0.050 - 0.012)
    assert time_left(PACE, [decode(0, 0.001), decode(0, 0.002)]) < 0.0
