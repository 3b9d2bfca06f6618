"""The next plan is made while the one before it is in flight."""

import pytest

from jaxgen.core.request import FinishReason
from jaxgen.core.sequence import Sequence
from jaxgen.core.step_plan import Outcome, StepPlan
from jaxgen.scheduling.scheduler import Scheduler
from tests.support.small_scheduler import EOS, TOKEN, add, new_scheduler, run_dry, shown, step, step_ahead


def test_the_next_plan_takes_the_token_on_the_way() -> None:
    scheduler = new_scheduler()
    sequence = add(scheduler, "a", 3)
    first = scheduler.schedule()
    assert (first.admitted, sequence.num_computed, sequence.num_pending, sequence.num_tokens) == (
        (sequence,),
        3,
        1,
        4,
    )
    second = scheduler.schedule()
    assert (shown(second), second.num_samples, second.admitted) == ([("a", 3, 1)], 1, ())
    assert (len(sequence.tokens), sequence.num_pending) == (3, 2)
    assert scheduler.complete(first, [30]) == [Outcome(sequence, 0, 30, None)]
    assert scheduler.complete(second, [31]) == [Outcome(sequence, 0, 31, None)]
    assert (sequence.tokens[3:], sequence.num_pending, sequence.num_computed) == ([30, 31], 0, 4)


def test_a_decode_gets_its_block_before_its_token_is_known() -> None:
    scheduler = new_scheduler(block_size=4)
    sequence = add(scheduler, "a", 4)
    scheduler.schedule()
    assert len(sequence.blocks.table) == 1
    (chunk,) = scheduler.schedule().chunks
    assert (chunk.start, len(sequence.tokens), len(sequence.blocks.table)) == (4, 4, 2)


def test_the_pieces_of_a_prompt_follow_each_other_in_flight() -> None:
    scheduler = new_scheduler(token_budget=4)
    sequence = add(scheduler, "a", 10)
    plan, seen, outcomes = scheduler.schedule(), [], []
    for _ in range(3):
        seen += shown(plan)
        plan, got = step_ahead(scheduler, plan)
        outcomes += got
    assert seen == [("a", 0, 4), ("a", 4, 4), ("a", 8, 2)]
    assert outcomes == [Outcome(sequence, 0, TOKEN, None)]


def test_what_was_planned_behind_an_eos_is_dropped() -> None:
    scheduler = new_scheduler()
    sequence, other = add(scheduler, "a", 2), add(scheduler, "b", 2)
    first, second = scheduler.schedule(), scheduler.schedule()
    assert scheduler.complete(first, [EOS, 30])[0] == Outcome(sequence, 0, EOS, FinishReason.STOP)
    assert (sequence.status, sequence.num_pending, scheduler.pool.num_free) == ("finished", 0, 31)
    assert scheduler.complete(second, [31, 32]) == [Outcome(other, 1, 32, None)]
    assert sequence.tokens[2:] == [EOS]


@pytest.mark.parametrize(("token", "reason"), [(TOKEN, FinishReason.LENGTH), (EOS, FinishReason.STOP)])
def test_its_last_token_on_the_way_it_holds_nothing(token: int, reason: FinishReason) -> None:
    scheduler = new_scheduler(max_num_seqs=1)
    sequence, behind = add(scheduler, "a", 3, max_tokens=2), add(scheduler, "b", 3)
    last, _ = step_ahead(scheduler, scheduler.schedule())
    assert (shown(last), sequence.status, scheduler.num_running) == ([("a", 3, 1)], "running", 1)
    plan = scheduler.schedule()
    assert (shown(plan), plan.admitted, behind.row) == ([("b", 0, 3)], (behind,), 0)
    assert (sequence.status, sequence.row, sequence.blocks.table) == ("ending", None, [])
    assert (scheduler.num_running, scheduler.num_waiting, scheduler.num_ending) == (1, 0, 1)
    assert scheduler.complete(last, [token]) == [Outcome(sequence, 0, token, reason)]
    assert (sequence.status, scheduler.num_ending) == ("finished", 0)


def test_a_prompt_that_samples_nothing_ends_the_same_way() -> None:
    scheduler = new_scheduler()
    sequence = add(scheduler, "a", 3, max_tokens=0)
    plan = scheduler.schedule()
    assert scheduler.schedule() == StepPlan(())
    assert (sequence.status, scheduler.has_work) == ("ending", True)
    assert scheduler.complete(plan, []) == [Outcome(sequence, 0, None, FinishReason.LENGTH)]
    assert not scheduler.has_work


def test_when_all_is_on_the_way_the_plan_is_empty_and_need_not_be_completed() -> None:
    scheduler = new_scheduler()
    sequence = add(scheduler, "a", 3, max_tokens=1)
    plan = scheduler.schedule()
    empties = [scheduler.schedule() for _ in range(3)]
    assert empties == [StepPlan(())] * 3
    assert scheduler.complete(empties[0], []) == []
    assert scheduler.has_work
    assert scheduler.complete(plan, [TOKEN]) == [Outcome(sequence, 0, TOKEN, FinishReason.LENGTH)]
    assert not scheduler.has_work


def test_abort_of_an_ending_one() -> None:
    scheduler = new_scheduler()
    sequence = add(scheduler, "a", 3, max_tokens=1)
    plan = scheduler.schedule()
    scheduler.schedule()
    assert scheduler.abort("a")
    assert (sequence.finish_reason, scheduler.has_work, scheduler.num_ending) == (FinishReason.ABORT, False, 0)
    assert scheduler.complete(plan, [TOKEN]) == []


def test_a_lost_device_ends_those_on_the_way_too() -> None:
    scheduler = new_scheduler(max_num_seqs=1)
    ending, running, waiting = (add(scheduler, name, 3, max_tokens=n) for name, n in [("a", 1), ("b", 4), ("c", 4)])
    scheduler.schedule()
    scheduler.schedule()
    assert (ending.status, running.status) == ("ending", "running")
    assert scheduler.fail() == [ending, running]
    assert {sequence.finish_reason for sequence in (ending, running)} == {FinishReason.ERROR}
    run_dry(scheduler)
    assert waiting.num_generated == 4


def preempted_with_a_token_on_the_way() -> tuple[Scheduler, Sequence, list[StepPlan]]:
    scheduler = new_scheduler(token_budget=2, max_num_seqs=2, num_blocks=5, block_size=1)
    add(scheduler, "old", 1, max_tokens=5)
    young = add(scheduler, "young", 1, max_tokens=5)
    step(scheduler)
    plans = [scheduler.schedule(), scheduler.schedule()]
    assert [shown(plan) for plan in plans] == [[("old", 1, 1), ("young", 1, 1)], [("old", 2, 1)]]
    assert (young.status, young.num_pending, young.blocks.table) == ("waiting", 1, [])
    return scheduler, young, plans


def test_one_preempted_with_a_token_on_the_way_gets_it() -> None:
    scheduler, young, plans = preempted_with_a_token_on_the_way()
    assert scheduler.complete(plans[0], [30, 31])[1] == Outcome(young, 1, 31, None)
    assert (young.status, young.num_pending) == ("waiting", 0)
    scheduler.complete(plans[1], [32])
    run_dry(scheduler)
    assert (young.tokens[2], young.num_generated) == (31, 5)


def test_one_preempted_with_its_end_on_the_way_ends() -> None:
    scheduler, young, plans = preempted_with_a_token_on_the_way()
    assert scheduler.complete(plans[0], [30, EOS])[1] == Outcome(young, 1, EOS, FinishReason.STOP)
    assert (young.status, scheduler.num_waiting) == ("finished", 0)


def test_a_lost_device_ends_one_preempted_with_a_token_on_the_way() -> None:
    scheduler, young, _ = preempted_with_a_token_on_the_way()
    assert young in scheduler.fail()
    assert young.finish_reason is FinishReason.ERROR


def test_an_id_used_again_while_the_first_is_in_flight() -> None:
    scheduler = new_scheduler()
    add(scheduler, "a", 3)
    plan = scheduler.schedule()
    scheduler.abort("a")
    again = add(scheduler, "a", 3)
    second, outcomes = step_ahead(scheduler, plan)
    assert outcomes == []
    assert scheduler.complete(second, [TOKEN]) == [Outcome(again, 0, TOKEN, None)]
