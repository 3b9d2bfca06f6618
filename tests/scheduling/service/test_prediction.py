"""What is predicted of a request that comes, worked out by hand, and what is refused for it."""

from typing import Any

import pytest

from jaxgen.core.config import CacheConfig, SchedulerConfig
from jaxgen.core.errors import WouldBeLateError
from jaxgen.core.sequence import Sequence
from jaxgen.core.service_class import ServiceClass
from jaxgen.scheduling.cost_model import LinearCost
from jaxgen.scheduling.queues import set_place
from jaxgen.scheduling.scheduler import Scheduler
from jaxgen.scheduling.service.policy import ServicePolicy
from jaxgen.scheduling.service.prediction import Prediction
from jaxgen.scheduling.step_time import StepTimeModel
from tests.support.service_world import policy_with, promised, sequence_for
from tests.support.small_scheduler import TOKEN

STEP = 1.0
"""Of a full step, 10 tokens; half of it is the same for any."""
PACE = StepTimeModel(10, LinearCost(base=0.5, per_token=0.05))
CLASS = promised("fast", 100.0)


def scheduler_of(
    rows: int = 4, num_blocks: int = 100, *, prefix_caching: bool = False, step_time: StepTimeModel | None = PACE
) -> Scheduler:
    config = SchedulerConfig(10, rows, 1000, prefix_caching=prefix_caching)
    return Scheduler(config, CacheConfig(block_size=10, num_blocks=num_blocks), policy=policy_with(step_time))


def policy_of(scheduler: Scheduler) -> ServicePolicy:
    assert isinstance(scheduler.policy, ServicePolicy)
    return scheduler.policy


def running(scheduler: Scheduler, prompt: int = 10, max_tokens: int = 50, *, steps: int = 1, **fields: Any) -> Sequence:
    """One that has been stepped."""
    sequence = sequence_for(prompt, max_tokens, **fields)
    scheduler.add(sequence)
    for _ in range(steps):
        plan = scheduler.schedule()
        scheduler.complete(plan, [TOKEN] * plan.num_samples)
    return sequence


def predicted(scheduler: Scheduler, sequence: Sequence) -> Prediction:
    """Of a sequence that comes long after all others, while a step is under way."""
    policy = policy_of(scheduler)
    assert policy.step_time is not None
    policy._backlog.update()
    set_place(sequence, 1e6, 0.0)
    return policy._predictor.predict(sequence, policy.step_time, 0.0, under_way=STEP, next_is_planned=False)


def test_alone_it_waits_for_the_step_under_way_and_computes_its_prompt() -> None:
    found = predicted(scheduler_of(), sequence_for(25, service=CLASS))
    assert found.first_token == pytest.approx(STEP + 2 * STEP + 0.75)
    assert found.inter_token == pytest.approx(0.55)


def test_prompts_before_it_come_first_and_decodes_take_of_each_step() -> None:
    scheduler = scheduler_of()
    for _ in range(2):
        running(scheduler, service=CLASS)
    scheduler.add(sequence_for(16, service=CLASS))
    found = predicted(scheduler, sequence_for(8, service=CLASS))
    # In steps of 8 tokens beside two decodes: two before it, and its own.
    assert found.first_token == pytest.approx(STEP + 2 * STEP + STEP)
    assert found.inter_token == pytest.approx(0.5 + 4 * 0.05)


def test_what_is_behind_it_does_not_count() -> None:
    scheduler = scheduler_of()
    for _ in range(3):
        scheduler.add(sequence_for(80))
        scheduler.add(sequence_for(80, service=promised("slow", 1e7)))
    assert predicted(scheduler, sequence_for(10, service=CLASS)).first_token == pytest.approx(2 * STEP)


def test_an_urgent_one_is_predicted_at_the_place_that_it_will_take() -> None:
    scheduler = scheduler_of()
    for _ in range(3):
        scheduler.add(sequence_for(80, service=CLASS))
    assert predicted(scheduler, sequence_for(10, service=CLASS)).first_token == pytest.approx(26 * STEP)
    urgent = sequence_for(10, service=CLASS, priority=-1)
    assert predicted(scheduler, urgent).first_token == pytest.approx(2 * STEP)


def test_where_rows_are_full_it_waits_for_the_first_to_end() -> None:
    scheduler = scheduler_of(rows=2)
    running(scheduler, max_tokens=50, service=CLASS)
    running(scheduler, 9, max_tokens=30, service=CLASS)
    found = predicted(scheduler, sequence_for(8, service=CLASS))
    decodes = 0.6  # of two
    assert found.first_token == pytest.approx(STEP + 29 * decodes + STEP)
    # and for fewer steps where answers are half as long as they might be
    policy_of(scheduler)._predictor.answer_ratio.value = 0.5
    policy_of(scheduler)._predictor.running_changed()
    found = predicted(scheduler, sequence_for(8, service=CLASS))
    assert found.first_token == pytest.approx(STEP + 14 * decodes + STEP)


def test_who_waits_before_it_takes_the_first_row() -> None:
    scheduler = scheduler_of(rows=2)
    running(scheduler, max_tokens=50, service=CLASS)
    running(scheduler, 9, max_tokens=30, service=CLASS)
    scheduler.add(sequence_for(8, service=CLASS))
    found = predicted(scheduler, sequence_for(8, service=CLASS))
    # The other has two tokens: its second came with the first of the one added last. One of the steps has the prompt
    # of the one that waits.
    assert found.first_token == pytest.approx(STEP + STEP + 47 * 0.6 + STEP)


def test_where_blocks_lack_it_waits_for_who_holds_them() -> None:
    scheduler = scheduler_of(num_blocks=6)
    running(scheduler, 18, max_tokens=20, steps=2, service=CLASS)
    assert predicted(scheduler, sequence_for(40, service=CLASS)).first_token < 10 * STEP
    found = predicted(scheduler, sequence_for(45, service=CLASS))  # five blocks, and four are free
    assert found.first_token == pytest.approx(STEP + 19 * 0.55 + 5 * STEP)


def test_where_blocks_lack_it_waits_for_no_more_to_end_than_hold_them() -> None:
    scheduler = scheduler_of(num_blocks=8)
    running(scheduler, 18, max_tokens=20, steps=2, service=CLASS)
    running(scheduler, 8, max_tokens=50, service=CLASS)
    found = predicted(scheduler, sequence_for(55, service=CLASS))  # six blocks, five are free, and the first has two
    last = 0.5 + 0.05 * 9  # seven tokens of the prompt, beside two decodes
    assert found.first_token == pytest.approx(STEP + 18 * 0.6 + 6 * STEP + last)


def test_a_cached_prefix_is_not_computed() -> None:
    scheduler = scheduler_of(prefix_caching=True)
    first = running(scheduler, 30, max_tokens=1, steps=4)
    assert not scheduler.has_work
    again = sequence_for(30, service=CLASS)
    again.tokens[:] = first.tokens[:30]
    assert predicted(scheduler, again).first_token == pytest.approx(STEP + STEP)  # its last block is computed


def test_a_prefix_that_is_on_its_way_is_not_computed_again() -> None:
    """As of several choices of one request; nor does it take blocks again."""
    scheduler = scheduler_of(num_blocks=9, prefix_caching=True)
    running(scheduler, 9, max_tokens=70)
    first = sequence_for(49, 1, service=CLASS)
    scheduler.add(first)
    # Of the others 9 tokens are beyond the last full block; each step has 9 of prompts.
    for before in (5 * STEP + 0.75, 6 * STEP + 0.75):
        again = sequence_for(49, 1, service=CLASS)
        again.tokens[:] = first.tokens
        assert predicted(scheduler, again).first_token == pytest.approx(STEP + before + STEP)
        scheduler.add(again)


def test_whom_it_displaces_is_not_in_its_way() -> None:
    scheduler = scheduler_of(rows=3, num_blocks=6)
    running(scheduler, 4, max_tokens=50, service=CLASS)
    running(scheduler, 9, max_tokens=50)
    running(scheduler, 8, max_tokens=50)
    scheduler.add(sequence_for(40))
    assert scheduler.pool.num_free < 4
    found = predicted(scheduler, sequence_for(36, service=CLASS))
    # One row is enough, so two go on beside it: 8 tokens in a step, and 4 in the last.
    assert found.first_token == pytest.approx(STEP + 4 * STEP + 0.8)
    assert found.inter_token == pytest.approx(0.6)


def test_a_refusal_says_what_was_promised_and_when_to_come_again() -> None:
    scheduler = scheduler_of()
    scheduler.add(sequence_for(200, service=CLASS))
    with pytest.raises(
        WouldBeLateError, match=r"'quick' has a target of 5 s for the first token, .* come after 21 s"
    ) as refused:
        scheduler.add(sequence_for(10, service=promised("quick", 5.0)), now=1e3)
    assert refused.value.retry_after == pytest.approx(16.0)
    assert refused.value.param == "service_tier"
    assert scheduler.num_waiting == 1
    scheduler.add(sequence_for(10, service=promised("quick", 5.0, serve_late=True)), now=1e3)
    assert scheduler.num_waiting == 2


def test_a_prompt_rate_gives_long_prompts_more_time() -> None:
    """Steps compute 10 tokens a second, and 9 are promised, from 2 s on."""
    service = ServiceClass(name="rate", first_token_seconds=2.0, prompt_rate=9.0)
    scheduler_of().add(sequence_for(100, service=service))
    with pytest.raises(WouldBeLateError, match="rate"):
        scheduler_of().add(sequence_for(5, service=ServiceClass(name="rate", prompt_rate=9.0)))


def test_refused_is_who_would_get_tokens_too_slowly() -> None:
    scheduler = scheduler_of()
    steady = promised("steady", None, inter_token_seconds=0.62)
    for _ in range(2):  # the second before the first runs
        scheduler.add(sequence_for(service=steady))
    with pytest.raises(
        WouldBeLateError, match=r"'steady' has a target of 0.62 s between tokens, .* it would be 0.65 s"
    ):
        scheduler.add(sequence_for(service=steady))


def test_refused_is_who_would_break_what_was_promised_to_others() -> None:
    steady = promised("steady", None, inter_token_seconds=0.57)
    scheduler = scheduler_of()
    scheduler.add(sequence_for(service=steady))
    with pytest.raises(WouldBeLateError, match="'steady' has a target"):
        scheduler.add(sequence_for(service=CLASS))
    scheduler.add(sequence_for())  # to which nothing is promised: it waits


def test_who_has_no_second_token_makes_no_others_come_later() -> None:
    """As embeddings, whose max_tokens is 0."""
    scheduler = scheduler_of()
    scheduler.add(sequence_for(service=promised("steady", None, inter_token_seconds=0.57)))
    for max_tokens in (0, 1):
        scheduler.add(sequence_for(4, max_tokens, service=CLASS))
    with pytest.raises(WouldBeLateError, match="'steady' has a target"):
        scheduler.add(sequence_for(4, 2, service=CLASS))


def test_a_class_that_is_served_late_counts_on_nothing() -> None:
    scheduler = scheduler_of()
    scheduler.add(sequence_for(service=promised("late", None, inter_token_seconds=0.1, serve_late=True)))
    scheduler.add(sequence_for(service=CLASS))
    assert scheduler.num_waiting == 2


def test_another_tenants_flood_counts_up_to_its_share() -> None:
    scheduler = scheduler_of()
    for _ in range(20):
        scheduler.add(sequence_for(80, tenant="flood", service=promised("fast", 1e5)))
    # The flood leads by four steps, by one for the tokens of the other, and by the step in which that is reached.
    found = predicted(scheduler, sequence_for(10, tenant="other", service=CLASS))
    assert found.first_token == pytest.approx(STEP + 6 * STEP + STEP)
    found = predicted(scheduler, sequence_for(10, tenant="flood", service=CLASS))
    assert found.first_token == pytest.approx(STEP + 160 * STEP + STEP)


def test_a_tenant_ahead_of_its_share_waits_for_others_without_a_promise() -> None:
    scheduler = scheduler_of()
    for _ in range(10):
        scheduler.add(sequence_for(20, 1, tenant="other"))
    scheduler.add(sequence_for(90, tenant="ahead", service=promised("fast", 1e5)))
    found = predicted(scheduler, sequence_for(10, tenant="ahead", service=CLASS))
    # When its 100 tokens are computed the other has all but 40 of as many, and the step in which that is reached.
    assert found.first_token == pytest.approx(STEP + (9 + 7) * STEP + STEP)


def test_contexts_of_those_that_decode_count() -> None:
    step_time = StepTimeModel(10, LinearCost(base=0.5, per_token=0.05, per_position=0.01, per_context=0.01))
    scheduler = scheduler_of(step_time=step_time)
    running(scheduler, 20, steps=2)
    found = predicted(scheduler, sequence_for(9, service=CLASS))
    assert found.first_token == pytest.approx(STEP + STEP + 0.01 * (20 + 9 * 9 // 2))


def test_decodes_without_a_promise_take_of_each_step_too() -> None:
    scheduler = scheduler_of(rows=8)
    for _ in range(5):
        running(scheduler, 4)
    found = predicted(scheduler, sequence_for(25, service=CLASS))
    assert found.first_token == pytest.approx(STEP + 5 * STEP)  # 5 tokens in each


def test_only_what_is_under_way_is_waited_for() -> None:
    quick = promised("quick", 1.05)
    scheduler = scheduler_of()
    scheduler.add(sequence_for(10, service=quick))
    scheduler.schedule()
    with pytest.raises(WouldBeLateError, match="come after 2"):
        scheduler.add(sequence_for(9, service=quick))


def test_what_the_caller_has_waited_is_of_the_time_to_its_first_token() -> None:
    scheduler = scheduler_of()
    scheduler.add(sequence_for(10, service=promised("quick", 1.5), waited_seconds=0.4))
    with pytest.raises(WouldBeLateError, match=r"of 1.5 s for the first token, which would come after 1.6 s"):
        scheduler.add(sequence_for(10, service=promised("quick", 1.5), waited_seconds=0.6))


def test_refused_is_who_would_make_another_late_that_was_accepted() -> None:
    scheduler = scheduler_of()
    for _ in range(2):
        scheduler.add(sequence_for(40, service=promised("lax", 9.0)))
    strict = promised("strict", 4.0)
    scheduler.add(sequence_for(10, service=strict))
    with pytest.raises(WouldBeLateError, match="earlier request of service_tier 'lax' would miss"):
        scheduler.add(sequence_for(10, service=strict))
    # nobody has counted on what is served late
    scheduler = scheduler_of()
    for _ in range(2):
        scheduler.add(sequence_for(40, service=promised("lax", 9.0, serve_late=True)))
    for _ in range(2):
        scheduler.add(sequence_for(10, service=strict))


def test_how_long_answers_are_is_learnt_from_those_broken_off_too() -> None:
    """As those are that a stop string ends."""
    scheduler = scheduler_of()
    for _ in range(40):
        sequence = running(scheduler, 4, 100, steps=2)
        scheduler.abort(sequence.request_id)
    assert policy_of(scheduler)._predictor.answer_ratio.value == pytest.approx(0.02, abs=0.02)
    scheduler.add(sequence := sequence_for(4, 100))
    scheduler.abort(sequence.request_id)  # has shown nothing
    assert policy_of(scheduler)._predictor.answer_ratio.value == pytest.approx(0.02, abs=0.02)
