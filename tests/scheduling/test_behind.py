"""Sequences whose constraint has not followed their last token: they sit out, and others go on."""

import pytest

from jaxgen.core.config import CacheConfig
from jaxgen.core.request import Request
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.core.sequence import Sequence
from jaxgen.core.step_plan import StepPlan
from jaxgen.scheduling.scheduler import Scheduler
from tests.scheduling.test_forced import CONFIG, begun, complete, prompt
from tests.support.scheduler_caller import Constraint
from tests.support.service_world import policy_with


def computed(plan: StepPlan) -> list[str]:
    return [chunk.sequence.request_id for chunk in plan.chunks]


def fall_behind(*sequences: Sequence, behind: bool = True) -> None:
    for one in sequences:
        assert isinstance(one.constraint, Constraint)
        one.constraint.behind = behind


def test_one_that_runs_sits_out_and_goes_on_later() -> None:
    scheduler, (one, other) = begun(2)
    fall_behind(one)
    for _ in range(3):
        plan = scheduler.schedule()
        assert computed(plan) == ["r1"]
        assert plan.idle == (one,)
        complete(scheduler, plan)
    fall_behind(other)
    assert computed(scheduler.schedule()) == []
    fall_behind(one, other, behind=False)
    assert computed(scheduler.schedule()) == ["r0", "r1"]


def preempted() -> tuple[Scheduler, Sequence, Sequence]:
    """A scheduler whose second sequence has lost its blocks to the first, and has fallen behind."""
    scheduler, (first, second) = begun(2, cache=CacheConfig(block_size=4, num_blocks=16))
    while not scheduler.preemptions:
        complete(scheduler, scheduler.schedule())
    fall_behind(second)
    scheduler.abort("r0")
    assert second.row is None
    return scheduler, first, second


def test_one_that_was_preempted_begins_once_its_token_is_followed() -> None:
    scheduler, _, second = preempted()
    assert computed(scheduler.schedule()) == []
    scheduler.add(prompt(5))
    complete(scheduler, scheduler.schedule())
    assert second.row is None
    assert second.standing.overtaken == 0
    fall_behind(second, behind=False)
    assert computed(scheduler.schedule()) == ["r1"]


@pytest.mark.parametrize("behind", [True, False])
def test_nobody_gives_a_row_to_one_that_cannot_begin(behind: bool) -> None:
    """Its tenant is owed a row, and all rows are taken by another tenant."""
    cache = CacheConfig(block_size=8, num_blocks=100)
    scheduler = Scheduler(CONFIG, cache, policy=policy_with(None))
    for index in range(CONFIG.max_num_seqs + 1):
        tenant, owed = ("b", True) if index == CONFIG.max_num_seqs else ("a", False)
        request = Request(f"r{index}", (5, 6, 7), SamplingParams(max_tokens=60), tenant=tenant)
        constraint = Constraint(behind=behind) if owed else None
        scheduler.add(Sequence(request, eos_token_ids=frozenset({0}), arrival=index, seed=0, constraint=constraint))
        complete(scheduler, scheduler.schedule())
    for _ in range(3):
        complete(scheduler, scheduler.schedule())
    assert scheduler.preemptions == (not behind)
