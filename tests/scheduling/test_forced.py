"""Forced tokens: computed with the token before them, as far as a step has room, and never in anybody's way."""

from dataclasses import replace

import pytest

from jaxgen.core.config import CacheConfig, SchedulerConfig
from jaxgen.core.request import FinishReason, Request
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.core.sequence import Sequence
from jaxgen.core.step_plan import StepPlan
from jaxgen.scheduling.cost_model import LinearCost
from jaxgen.scheduling.prefill_limits import DEFAULT_LIMITS
from jaxgen.scheduling.scheduler import Scheduler
from jaxgen.scheduling.step_time import StepTimeModel
from tests.support.scheduler_caller import Constraint
from tests.support.service_world import policy_with

CONFIG = SchedulerConfig(token_budget=32, max_num_seqs=8, max_model_len=200)
STEP_TIME = StepTimeModel(32, LinearCost(0.0, per_token=0.010))
"""A step of one decode and five more tokens takes the 60 ms that the rule of filling steps allows, where 16 tokens of a
prompt did not take longer: these are always allowed."""


def begun(
    count: int,
    *,
    cache: CacheConfig | None = None,
    narrow: bool = False,
    step_time: StepTimeModel | None = None,
) -> tuple[Scheduler, list[Sequence]]:
    """A scheduler of sequences under a grammar that have one token each."""
    cache = cache or CacheConfig(block_size=8, num_blocks=100)
    scheduler = Scheduler(CONFIG, cache, policy=policy_with(step_time), narrow=narrow)
    sequences = []
    for index in range(count):
        request = Request(f"r{index}", (5, 6, 7), SamplingParams(max_tokens=60))
        one = Sequence(request, eos_token_ids=frozenset({0}), arrival=index, seed=0, constraint=Constraint())
        scheduler.add(one)
        sequences.append(one)
    while not all(one.num_generated for one in sequences):
        complete(scheduler, scheduler.schedule())
    return scheduler, sequences


def complete(scheduler: Scheduler, plan: StepPlan) -> None:
    scheduler.complete(plan, [9] * plan.num_samples)


def force(scheduler: Scheduler, sequence: Sequence, count: int) -> None:
    for token in range(10, 10 + count):
        assert scheduler.force(sequence, token) is None


def lengths(plan: StepPlan) -> list[int]:
    by_arrival = {chunk.sequence.arrival: chunk.length for chunk in plan.chunks}
    return [by_arrival[arrival] for arrival in sorted(by_arrival)]


def test_they_are_one_chunk_with_the_token_before_them() -> None:
    scheduler, (one, other) = begun(2)
    force(scheduler, one, 4)
    plan = scheduler.schedule()
    assert lengths(plan) == [5, 1]
    assert all(chunk.samples for chunk in plan.chunks)
    assert (one.num_pending, other.num_pending) == (1, 1)


def prompt(length: int, tenant: str = "") -> Sequence:
    request = Request("prompt", (5,) * length, SamplingParams(max_tokens=1), tenant=tenant)
    return Sequence(request, eos_token_ids=frozenset(), arrival=99, seed=0)


def test_every_decode_has_its_token_first_and_forced_ones_come_behind_prompts() -> None:
    scheduler, sequences = begun(4)
    for one in sequences[:2]:
        force(scheduler, one, 30)
    scheduler.add(prompt(44))
    plan = scheduler.schedule()
    assert lengths(plan) == [1, 1, 1, 1, 28]
    complete(scheduler, plan)
    plan = scheduler.schedule()
    assert plan.num_tokens == CONFIG.token_budget
    # 12 tokens are left of a block's beginning and one block more; what the first leaves is the second's.
    assert lengths(plan) == [12, 2, 1, 1, 16]


@pytest.mark.parametrize(
    "step_time", [None, STEP_TIME, StepTimeModel(32, LinearCost(0.02)), StepTimeModel(32, LinearCost(0.002, 0.0005))]
)
@pytest.mark.parametrize("count", [1, CONFIG.max_num_seqs - 1, CONFIG.max_num_seqs])
def test_a_prompt_waits_for_no_forced_token(count: int, step_time: StepTimeModel | None) -> None:
    """Its first token takes as many steps, also where it takes the row of one with forced tokens."""
    steps = []
    for forced in (0, 15):
        scheduler, sequences = begun(count, step_time=step_time, cache=CacheConfig(block_size=16, num_blocks=100))
        for one in sequences:
            force(scheduler, one, forced)
        waiting = prompt(100, tenant="another")
        scheduler.add(waiting)
        steps.append(0)
        while not waiting.num_generated:
            complete(scheduler, scheduler.schedule())
            steps[-1] += 1
        assert scheduler.preemptions == (count == CONFIG.max_num_seqs)
    assert steps[0] == steps[1] >= 4


def test_a_chunk_begins_one_block_at_most() -> None:
    scheduler, (one,) = begun(1, cache=CacheConfig(block_size=2, num_blocks=100))
    force(scheduler, one, 9)
    taken = []
    while not one.num_pending:
        before, plan = len(one.blocks.table), scheduler.schedule()
        assert len(one.blocks.table) <= before + 1
        taken += lengths(plan)
        if not one.num_pending:
            complete(scheduler, plan)
    assert sum(taken) == 10
    assert max(taken) <= 3


def test_they_take_no_block_from_others() -> None:
    scheduler, (one, _) = begun(2, cache=CacheConfig(block_size=4, num_blocks=40))
    scheduler.pool.allocate(scheduler.pool.num_free)
    force(scheduler, one, 3)
    assert lengths(scheduler.schedule()) == [1, 1]
    assert scheduler.preemptions == 0


@pytest.mark.parametrize(("forced", "expected"), [(3, [1, 1, 1, 1]), (4, [5, 1, 1, 1])])
def test_a_narrow_step_becomes_wide_only_where_that_doubles_its_tokens(forced: int, expected: list[int]) -> None:
    scheduler, sequences = begun(4, narrow=True)
    force(scheduler, sequences[0], forced)
    assert lengths(scheduler.schedule()) == expected


def test_a_step_takes_no_longer_than_prompts_could_make_it() -> None:
    step_time = replace(STEP_TIME, token_budget=CONFIG.token_budget)
    scheduler, sequences = begun(4, step_time=step_time, cache=CacheConfig(block_size=64, num_blocks=100))
    for one in sequences:
        force(scheduler, one, 30)
    plan = scheduler.schedule()
    allowed = DEFAULT_LIMITS.seconds_for_prompts(step_time, 4, sum(chunk.start for chunk in plan.chunks), ())
    assert 4 < plan.num_tokens < CONFIG.token_budget
    assert step_time.step_seconds(plan) <= step_time.wide.seconds(4) + allowed + 1e-9


def test_the_last_of_max_tokens_ends_it() -> None:
    scheduler, (one, _) = begun(2)
    force(scheduler, one, 58)
    assert scheduler.force(one, 8) is FinishReason.LENGTH
    assert one.num_generated == 60
    assert scheduler.num_running == 1
