"""What ends a sequence: a token, a length, an abort, a lost device."""

from typing import Any

import pytest

from jaxgen.core.request import FinishReason
from jaxgen.core.sequence import SequenceStatus
from jaxgen.core.step_plan import Outcome
from tests.support.small_scheduler import EOS, TOKEN, add, new_scheduler, run_dry, shown, step


@pytest.mark.parametrize(
    ("token", "params", "reason"),
    [
        (TOKEN, {}, None),
        (EOS, {}, FinishReason.STOP),
        (EOS, {"ignore_eos": True}, None),
        (EOS, {"ignore_eos": True, "stop_token_ids": (EOS,)}, FinishReason.STOP),
        (EOS, {"min_tokens": 1}, FinishReason.STOP),
        (EOS, {"min_tokens": 2}, None),
        (TOKEN, {"stop_token_ids": (9, TOKEN)}, FinishReason.STOP),
        (TOKEN, {"stop_token_ids": (TOKEN,), "min_tokens": 2}, None),
        (TOKEN, {"max_tokens": 1}, FinishReason.LENGTH),
        (EOS, {"max_tokens": 1}, FinishReason.STOP),
    ],
)
def test_the_first_token_ends_it_or_not(token: int, params: dict[str, Any], reason: FinishReason | None) -> None:
    scheduler = new_scheduler()
    sequence = add(scheduler, "a", 3, **params)
    plan = scheduler.schedule()
    assert scheduler.complete(plan, [token]) == [Outcome(sequence, 0, token, reason)]
    assert sequence.finish_reason is reason
    assert sequence.status is (SequenceStatus.RUNNING if reason is None else SequenceStatus.FINISHED)
    assert scheduler.has_work is (reason is None)
    assert scheduler.pool.num_free == (31 if reason is None else 32)


def test_max_tokens_are_generated() -> None:
    scheduler = new_scheduler()
    sequence = add(scheduler, "a", 3, max_tokens=5)
    run_dry(scheduler)
    assert sequence.tokens == [100, 101, 102, *[TOKEN] * 5]
    assert sequence.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("prompt_logprobs", [None, 0])
def test_max_tokens_0_computes_the_prompt_and_samples_nothing(prompt_logprobs: int | None) -> None:
    scheduler = new_scheduler(token_budget=8)
    sequence = add(scheduler, "a", 10, max_tokens=0, prompt_logprobs=prompt_logprobs)
    assert step(scheduler) == [("a", 0, 8)]
    plan = scheduler.schedule()
    assert (shown(plan), plan.num_samples) == ([("a", 8, 2)], 0)
    assert scheduler.complete(plan, []) == [Outcome(sequence, 0, None, FinishReason.LENGTH)]
    assert not scheduler.has_work


def test_a_prompt_that_ends_in_a_stop_token_does_not_stop() -> None:
    scheduler = new_scheduler()
    sequence = add(scheduler, "a", 3, max_tokens=0, stop_token_ids=(102,))
    step(scheduler)
    assert (sequence.tokens[-1], sequence.finish_reason) == (102, FinishReason.LENGTH)


def test_outcomes_name_the_chunk_of_the_plan() -> None:
    scheduler = new_scheduler(token_budget=8)
    first, second, third = add(scheduler, "a", 3), add(scheduler, "b", 6), add(scheduler, "c", 9)
    step(scheduler)
    plan = scheduler.schedule()
    assert shown(plan) == [("a", 3, 1), ("b", 5, 1), ("c", 0, 6)]
    assert scheduler.complete(plan, [30, 31]) == [Outcome(first, 0, 30, None), Outcome(second, 1, 31, None)]
    plan = scheduler.schedule()
    assert [outcome.index for outcome in scheduler.complete(plan, [40, 41, 42])] == [0, 1, 2]
    assert [s.tokens[-1] for s in (first, second, third)] == [40, 41, 42]


def test_abort_of_a_waiting_one() -> None:
    scheduler = new_scheduler(max_num_seqs=1)
    add(scheduler, "a", 3)
    waiting = [add(scheduler, name, 3) for name in "bcd"]
    step(scheduler)
    assert scheduler.abort("c")
    assert waiting[1].finish_reason is FinishReason.ABORT
    assert not scheduler.abort("c")
    run_dry(scheduler)
    assert [s.num_generated for s in waiting] == [4, 0, 4]


def test_abort_of_a_running_one_frees_what_it_held() -> None:
    scheduler = new_scheduler(max_num_seqs=1)
    sequence = add(scheduler, "a", 9)
    behind = add(scheduler, "b", 2)
    step(scheduler)
    step(scheduler)
    assert sequence.is_decode
    assert scheduler.abort("a")
    assert (sequence.finish_reason, scheduler.pool.num_free) == (FinishReason.ABORT, 32)
    assert step(scheduler) == [("b", 0, 2)]
    assert behind.row == 0


def test_abort_of_a_partly_computed_prompt() -> None:
    scheduler = new_scheduler(token_budget=4, max_num_seqs=2)
    add(scheduler, "a", 9)
    step(scheduler)
    assert scheduler.abort("a")
    assert (scheduler.has_work, scheduler.pool.num_free, scheduler.num_running) == (False, 32, 0)


def test_abort_while_the_step_runs_drops_its_token() -> None:
    scheduler = new_scheduler()
    first, second = add(scheduler, "a", 3), add(scheduler, "b", 3)
    plan = scheduler.schedule()
    scheduler.abort("a")
    assert scheduler.complete(plan, [30, 31]) == [Outcome(second, 1, 31, None)]
    assert first.num_generated == 0


def test_abort_of_the_unknown() -> None:
    assert not new_scheduler().abort("nobody")


def test_a_lost_device_ends_all_that_run() -> None:
    scheduler = new_scheduler(token_budget=4, max_num_seqs=3)
    first, second, third = add(scheduler, "a", 2), add(scheduler, "b", 9), add(scheduler, "c", 3)
    step(scheduler)
    assert shown(scheduler.schedule()) == [("a", 2, 1), ("b", 2, 3)]
    assert scheduler.fail() == [first, second]
    assert (first.finish_reason, second.finish_reason) == (FinishReason.ERROR, FinishReason.ERROR)
    assert (first.status, second.status, third.status) == ("finished", "finished", "waiting")
    assert scheduler.pool.num_free == 32
    run_dry(scheduler)
    assert third.num_generated == 4


def test_fail_says_nothing_of_those_aborted_meanwhile() -> None:
    scheduler = new_scheduler()
    add(scheduler, "a", 3)
    scheduler.schedule()
    scheduler.abort("a")
    assert scheduler.fail() == []
