"""Drafts fill what a step of decodes leaves, where they are worth their time."""

from typing import Any

import pytest

from jaxgen.core.config import CacheConfig, SchedulerConfig
from jaxgen.core.sequence import Sequence
from jaxgen.core.service_class import ServiceClass
from jaxgen.core.step_plan import StepPlan
from jaxgen.scheduling.cost_model import LinearCost
from jaxgen.scheduling.drafts import Draft, Drafter, DraftPlanner
from jaxgen.scheduling.scheduler import Scheduler
from jaxgen.scheduling.step_time import StepTimeModel
from tests.support.service_world import policy_with
from tests.support.small_scheduler import add, sequence_of

CONFIG = SchedulerConfig(token_budget=64, max_num_seqs=16, max_model_len=200)


class Guesses:
    """As many drafts as are wanted, each with the same chance; by arrival where they differ."""

    def __init__(self, *chances: float) -> None:
        self.chances = chances
        self.told: list[tuple[int, int]] = []

    def draft(self, sequence: Sequence, most: int) -> Draft:
        return Draft((7,) * most, self.chances[int(sequence.request_id) % len(self.chances)])

    def checked(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        self.told.append((drafted, accepted))

    def ended(self, sequence: Sequence) -> None:
        """Nothing is kept of it."""


def scheduler_with(
    guesses: Drafter,
    *,
    cost: LinearCost | None = None,
    narrow: LinearCost | None = None,
    config: SchedulerConfig = CONFIG,
    block_size: int = 64,
) -> Scheduler:
    width = None if narrow is None else 8
    step_time = None if cost is None else StepTimeModel(64, cost, narrow, width or 0)
    drafts = DraftPlanner(guesses, config, block_size, narrow_width=width)
    return Scheduler(config, CacheConfig(block_size, 40), policy=policy_with(step_time), drafts=drafts)


def decoding(scheduler: Scheduler, count: int, **fields: Any) -> StepPlan:
    """The first plan in which all of some sequences decode."""
    for number in range(count):
        add(scheduler, str(number), 4, max_tokens=40, **fields)
    while not (plan := scheduler.schedule()).decodes_only:
        scheduler.complete(plan, [9] * plan.num_samples)
    return plan


def counts(plan: StepPlan) -> dict[str, int]:
    return {chunk.sequence.request_id: len(chunk.drafts) for chunk in plan.chunks}


@pytest.mark.parametrize(("running", "drafts"), [(1, 15), (3, 13), (15, 1), (16, 0)])
def test_they_fill_the_rows_that_no_sequence_has(running: int, drafts: int) -> None:
    plan = decoding(scheduler_with(Guesses(1.0)), running)
    assert sum(counts(plan).values()) == drafts
    assert plan.num_samples == plan.num_tokens == running + drafts


def test_a_narrow_step_stays_narrow() -> None:
    plan = decoding(scheduler_with(Guesses(1.0), cost=LinearCost(1.0), narrow=LinearCost(0.1)), 3)
    assert (plan.num_tokens, plan.decodes_only) == (8, True)


def test_a_step_with_a_prompt_has_none() -> None:
    scheduler = scheduler_with(Guesses(1.0))
    plan = decoding(scheduler, 2)
    scheduler.complete(plan, [7] * plan.num_samples)
    add(scheduler, "9", 30)
    assert scheduler.schedule().num_drafts == 0


def test_the_likeliest_come_first() -> None:
    plan = decoding(scheduler_with(Guesses(0.9, 0.5)), 2)
    # The 13th power of 0.9 is more than the second of 0.5.
    assert counts(plan) == {"0": 13, "1": 1}
    assert counts(decoding(scheduler_with(Guesses(0.9)), 2)) == {"0": 7, "1": 7}


@pytest.mark.parametrize(
    ("per_token", "drafts"),
    [
        (0.0, 15),
        (0.010, 2),  # the third brings an eighth of a token for a twelfth of a step, which brings 1.75 tokens
        (0.045, 1),
        (0.200, 0),
    ],
)
def test_a_draft_must_bring_more_than_its_time(per_token: float, drafts: int) -> None:
    cost = LinearCost(0.1 - per_token if per_token < 0.1 else 0.0, per_token)
    assert counts(decoding(scheduler_with(Guesses(0.5), cost=cost), 1)) == {"0": drafts}


def test_inter_token_targets_are_kept() -> None:
    scheduler = scheduler_with(Guesses(1.0), cost=LinearCost(0.010, 0.001))
    service = ServiceClass(name="steady", inter_token_seconds=0.016)
    sequence = sequence_of("0", 4, max_tokens=40)
    sequence.standing.service = service
    scheduler.add(sequence)
    scheduler.policy.queues.has = lambda level: True  # type: ignore[method-assign]
    plan = scheduler.schedule()
    scheduler.complete(plan, [9])
    assert counts(scheduler.schedule()) == {"0": 3}, "a step of 4 tokens takes 14 of the 14.4 ms"


def test_right_ones_are_tokens_and_the_first_wrong_one_is_replaced() -> None:
    guesses = Guesses(1.0)
    scheduler = scheduler_with(guesses)
    plan = decoding(scheduler, 2)
    (sequence, other) = [chunk.sequence for chunk in plan.chunks]
    drafted = counts(plan)["0"]
    outcomes = scheduler.complete(plan, [7, 7, 5] + [6] * (plan.num_samples - 3))
    assert [(outcome.index, outcome.token) for outcome in outcomes] == [(0, 7), (1, 7), (2, 5), (1 + drafted, 6)]
    assert sequence.tokens[-3:] == [7, 7, 5]
    assert sequence.num_computed == len(sequence.tokens) - 1
    assert other.tokens[-1] == 6
    assert guesses.told == [(drafted, 2), (counts(plan)["1"], 0)]
    found = scheduler.speculation
    assert found is not None
    assert (found.drafts, found.draft_tokens, found.accepted_tokens, found.accepted_by_place) == (2, 14, 2, (1, 1))


def test_a_plan_with_drafts_is_completed_before_the_next_is_made() -> None:
    scheduler = scheduler_with(Guesses(1.0))
    decoding(scheduler, 1)
    with pytest.raises(RuntimeError, match="a plan is in flight"):
        scheduler.schedule()
