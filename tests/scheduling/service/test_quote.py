"""What a quote says of a sequence, against what the scheduler then does with it; and that nothing changes by asking."""

import pytest

from jaxgen.core.errors import ContextLengthError, WouldBeLateError
from jaxgen.scheduling.cost_model import LinearCost
from jaxgen.scheduling.scheduler import Scheduler
from jaxgen.scheduling.step_time import StepTimeModel
from tests.scheduling.service.test_prediction import PACE, STEP, policy_of, running, scheduler_of
from tests.support.service_world import VirtualServer, promised, sequence_for
from tests.support.small_scheduler import TOKEN

CPU = StepTimeModel(64, LinearCost(base=0.002, per_token=0.001))
"""A step that takes longer the fuller it is, so that the rule of filling decides when first tokens come."""


def state_of(scheduler: Scheduler) -> object:
    queues = policy_of(scheduler).queues
    lines = [
        [(s.request_id, s.standing.order_key, s.num_computed) for s in line]
        for line in (queues.running, queues.waiting)
    ]
    return lines, scheduler.pool.num_free, scheduler.pool.num_cached, scheduler.has_work, scheduler.num_online


@pytest.mark.parametrize("decoding", [0, 1, 4, 12])
@pytest.mark.parametrize("waiting", [0, 3])
@pytest.mark.parametrize("prompt", [10, 300, 900])
def test_without_classes_the_first_token_comes_when_it_is_quoted(decoding: int, waiting: int, prompt: int) -> None:
    server = VirtualServer(CPU, rows=32)
    for _ in range(decoding):
        server.add(20, 1000)
    while any(s.num_uncomputed > 1 for s in server.watched):
        server.step()
    for _ in range(waiting):
        server.add(200, 1000)
    quote, asked = server.scheduler.quote(sequence_for(prompt, 50), server.now), server.now
    if server.scheduler.has_work:
        server.step()  # the request follows its quote while a step runs
    one = server.add(prompt, 50)
    while not one.tokens:
        server.step()
    assert quote.first_token == pytest.approx(one.tokens[0] - asked, rel=0.35)
    while server.scheduler.has_work and len(one.tokens) < 50:
        server.step()
    assert one.longest_gap <= quote.longest_step * 1.01


def test_steps_that_are_kept_short_for_decodes_are_counted_as_short() -> None:
    """Each has 24 tokens of the prompt, so that four tokens a second come; a full one would have ten times as many."""
    server = VirtualServer(StepTimeModel(256, LinearCost(base=0.1, per_token=0.005)))
    server.add(20, 1000)
    server.step()
    quote, asked = server.scheduler.quote(sequence_for(256, 50), server.now), server.now
    server.step()
    one = server.add(256, 50)
    while not one.tokens:
        server.step()
    assert quote.first_token == pytest.approx(one.tokens[0] - asked, rel=0.05)


def test_asking_changes_nothing() -> None:
    scheduler = scheduler_of()
    running(scheduler)
    scheduler.add(sequence_for(16))
    before = state_of(scheduler)
    for _ in range(3):
        scheduler.quote(sequence_for(30))
    assert state_of(scheduler) == before


def test_what_is_cached_is_counted() -> None:
    scheduler = scheduler_of(prefix_caching=True)
    first = running(scheduler, 30, 1, steps=4)
    again = sequence_for(30, 1)
    again.tokens[:] = first.tokens[:30]
    fresh, cached = scheduler.quote(sequence_for(30, 1)), scheduler.quote(again)
    assert (fresh.cached_tokens, cached.cached_tokens) == (0, 20)
    assert fresh.first_token - cached.first_token == pytest.approx(2.0)


def test_a_target_that_cannot_be_kept_is_refused_and_a_class_that_is_served_late_gets_the_late_time() -> None:
    scheduler = scheduler_of()
    for _ in range(3):
        scheduler.add(sequence_for(80, service=promised("fast", 100.0)))
    with pytest.raises(WouldBeLateError, match="'strict' has a target"):
        scheduler.quote(sequence_for(10, service=promised("strict", 0.5)))
    late = scheduler.quote(sequence_for(10, service=promised("strict", 0.5, serve_late=True)))
    assert late.first_token == pytest.approx(scheduler.quote(sequence_for(10)).first_token)
    assert late.first_token > 24.0


def test_an_inter_token_target_bounds_the_longest_step() -> None:
    scheduler = scheduler_of()
    quote = scheduler.quote(sequence_for(10, service=promised("even", None, inter_token_seconds=0.8)))
    assert quote.inter_token == pytest.approx(PACE.decode_seconds(1))
    assert quote.longest_step == pytest.approx(PACE.most_seconds)  # it has no room for 16 tokens of prompts


def test_a_sequence_that_can_never_run_is_refused() -> None:
    with pytest.raises(ContextLengthError):
        scheduler_of().quote(sequence_for(1200))


def test_nothing_is_quoted_without_step_times() -> None:
    with pytest.raises(ValueError, match="without step times"):
        scheduler_of(step_time=None).quote(sequence_for())


def test_steps_in_flight_come_first_and_one_more_that_is_planned_before_the_request_can_come() -> None:
    alone = scheduler_of().quote(sequence_for(10)).first_token
    scheduler = scheduler_of()
    running(scheduler, 10, 50)
    idle = scheduler.quote(sequence_for(9)).first_token
    assert alone == pytest.approx(STEP)
    assert idle == pytest.approx(PACE.decode_seconds(1) + STEP)
    plan = scheduler.schedule()
    assert scheduler.quote(sequence_for(9)).first_token == pytest.approx(idle + PACE.step_seconds(plan))
    scheduler.complete(plan, [TOKEN] * plan.num_samples)


def test_a_step_that_computes_prompts_before_it_is_not_counted_twice() -> None:
    scheduler = scheduler_of()
    running(scheduler, 10, 50)
    scheduler.add(sequence_for(9))
    assert scheduler.quote(sequence_for(9)).first_token == pytest.approx(2 * STEP)
