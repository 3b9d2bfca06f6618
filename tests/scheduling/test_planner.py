"""What a step's plan holds: the order of chunks, the budget, the rows."""

import pytest

from jaxgen.core.step_plan import Outcome, StepPlan
from tests.support.small_scheduler import TOKEN, add, new_scheduler, shown, step


def test_nothing_to_do_is_an_empty_plan() -> None:
    scheduler = new_scheduler()
    plan = scheduler.schedule()
    assert plan == StepPlan(())
    assert (plan.num_tokens, plan.num_samples, scheduler.has_work) == (0, 0, False)
    assert scheduler.complete(plan, []) == []


def test_short_prompts_fill_the_budget_exactly() -> None:
    scheduler = new_scheduler(token_budget=8)
    for name, prompt in [("a", 3), ("b", 3), ("c", 4)]:
        add(scheduler, name, prompt)
    assert step(scheduler) == [("a", 0, 3), ("b", 0, 3), ("c", 0, 2)]
    assert step(scheduler) == [("a", 3, 1), ("b", 3, 1), ("c", 2, 2)]


def test_a_long_prompt_is_split_and_only_its_end_samples() -> None:
    scheduler = new_scheduler(token_budget=8)
    sequence = add(scheduler, "a", 19)
    samples = []
    for start, length in [(0, 8), (8, 8), (16, 3)]:
        plan = scheduler.schedule()
        assert shown(plan) == [("a", start, length)]
        samples.append(plan.num_samples)
        outcomes = scheduler.complete(plan, [TOKEN] * plan.num_samples)
    assert samples == [0, 0, 1]
    assert outcomes == [Outcome(sequence, 0, TOKEN, None)]
    assert (sequence.num_generated, sequence.num_computed, sequence.is_decode) == (1, 19, True)


def test_decodes_come_first_and_prompts_take_the_rest() -> None:
    scheduler = new_scheduler(token_budget=8)
    add(scheduler, "a", 2)
    add(scheduler, "b", 30)
    add(scheduler, "c", 5)
    assert step(scheduler) == [("a", 0, 2), ("b", 0, 6)]
    assert step(scheduler) == [("a", 2, 1), ("b", 6, 7)]


def test_chunks_of_one_token_come_first() -> None:
    scheduler = new_scheduler(token_budget=8)
    for name, prompt in [("a", 3), ("b", 4), ("c", 6)]:
        add(scheduler, name, prompt, max_tokens=1)
    assert step(scheduler) == [("c", 0, 1), ("a", 0, 3), ("b", 0, 4)]


def test_samples_stays_what_it_was_when_the_plan_was_made() -> None:
    scheduler = new_scheduler()
    add(scheduler, "a", 3)
    plan = scheduler.schedule()
    scheduler.complete(plan, [TOKEN])
    assert plan.num_samples == 1


def test_no_more_sequences_than_rows() -> None:
    scheduler = new_scheduler(token_budget=8, max_num_seqs=2)
    first, second, third = (add(scheduler, name, 1, max_tokens=2) for name in "abc")
    assert step(scheduler) == [("a", 0, 1), ("b", 0, 1)]
    assert {first.row, second.row} == {0, 1}
    assert third.row is None
    step(scheduler)
    assert step(scheduler) == [("c", 0, 1)]
    assert (first.row, third.row in (0, 1)) == (None, True)


def test_rows_all_decoding_leave_a_prompt_its_share() -> None:
    scheduler = new_scheduler(token_budget=3, max_num_seqs=3)
    add(scheduler, "a", 1, max_tokens=9)
    add(scheduler, "b", 1, max_tokens=9)
    add(scheduler, "c", 3, max_tokens=9)
    assert step(scheduler) == [("a", 0, 1), ("b", 0, 1), ("c", 0, 1)]
    assert step(scheduler) == [("a", 1, 1), ("b", 1, 1), ("c", 1, 1)]


@pytest.mark.parametrize("tokens", [0, -1])
def test_prompts_get_a_token_of_each_step_at_least(tokens: int) -> None:
    scheduler = new_scheduler()
    with pytest.raises(ValueError, match=f"^tokens must be 1 or more, or None for no limit, not {tokens}$"):
        scheduler.limit_prompts(tokens)
    add(scheduler, "a", 3)
    assert step(scheduler) == [("a", 0, 3)]
