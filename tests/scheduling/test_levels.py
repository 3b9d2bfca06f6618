"""Priorities and the background: who is served first, and what is taken from whom."""

from dataclasses import replace
from typing import Any

import pytest

from jaxgen.core.config import CacheConfig, SchedulerConfig
from jaxgen.core.request import Request
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.core.sequence import Sequence, SequenceStatus
from jaxgen.core.service_class import ServiceClass
from jaxgen.scheduling.policy import Fifo
from jaxgen.scheduling.scheduler import Scheduler
from jaxgen.scheduling.service.policy import ServicePolicy
from tests.support.small_scheduler import (
    ARRIVALS,
    EOS,
    TOKEN,
    add,
    new_scheduler,
    run_dry,
    sequence_of,
    step,
)


def started(scheduler: Scheduler, name: str, prompt: int, max_tokens: int = 4, **level: Any) -> Sequence:
    """Added with a level, and stepped once."""
    sequence = sequence_of(name, prompt, max_tokens)
    request = replace(sequence.request, prompt=tuple(range(len(name) * 50, len(name) * 50 + prompt)), **level)
    sequence = Sequence(request, eos_token_ids=frozenset({EOS}), arrival=next(ARRIVALS), seed=0)
    scheduler.add(sequence)
    step(scheduler)
    return sequence


def test_the_urgent_are_served_first_and_then_the_oldest() -> None:
    scheduler = new_scheduler(max_num_seqs=1, policy=ServicePolicy)
    add(scheduler, "runs", 1, max_tokens=9)
    step(scheduler)
    for name, priority in [("a", 0), ("late", 5), ("b", 0), ("urgent", 0)]:
        request = Request(name, (5,), SamplingParams(max_tokens=2), priority=priority)
        scheduler.add(Sequence(request, eos_token_ids=frozenset(), arrival=next(ARRIVALS), seed=0))
    order = [name for _ in range(20) for name, *_ in step(scheduler)]
    assert list(dict.fromkeys(order)) == ["runs", "a", "b", "urgent", "late"]


@pytest.mark.parametrize("level", [{"priority": 1}, {"background": True}])
@pytest.mark.parametrize("scarce", [{"max_num_seqs": 2}, {"num_blocks": 4}])
def test_a_row_and_blocks_are_taken_from_later_levels_at_once(level: dict[str, Any], scarce: dict[str, Any]) -> None:
    scheduler = new_scheduler(**scarce, policy=ServicePolicy if "priority" in level else Fifo)
    older = started(scheduler, "o", 5, **level)
    younger = started(scheduler, "y", 5, **level)
    add(scheduler, "online", 3)
    plan = scheduler.schedule()
    assert [sequence.request_id for sequence in plan.admitted] == ["online"]
    assert (older.status, younger.status) == (SequenceStatus.RUNNING, SequenceStatus.WAITING)
    scheduler.complete(plan, [TOKEN] * plan.num_samples)
    run_dry(scheduler)
    assert younger.standing.num_preemptions == 1


def test_nothing_is_taken_where_there_is_room() -> None:
    scheduler = new_scheduler()
    started(scheduler, "back", 5, background=True)
    add(scheduler, "online", 3)
    step(scheduler)
    assert (scheduler.preemptions, scheduler.num_running) == (0, 2)


def numbered(name: str, prompt: int, **level: Any) -> Sequence:
    """With a prompt that is the beginning of every longer one's; none grows past its blocks of 4 tokens."""
    request = Request(name, tuple(range(3, 3 + prompt)), SamplingParams(max_tokens=4), **level)
    return Sequence(request, eos_token_ids=frozenset(), arrival=next(ARRIVALS), seed=0)


@pytest.mark.parametrize("newcomers", [1, 2])
def test_nothing_is_taken_for_blocks_that_can_be_shared(newcomers: int) -> None:
    """The background has 6 blocks, of which each newcomer shares 5, and takes one more now and one later."""
    scheduler = new_scheduler(token_budget=64, num_blocks=6 + 2 * newcomers, prefix_caching=True)
    scheduler.add(numbered("back", 21, background=True))
    step(scheduler)
    for i in range(newcomers):
        scheduler.add(numbered(f"online {i}", 21))
    step(scheduler)
    assert (scheduler.preemptions, scheduler.num_running) == (0, 1 + newcomers)
    run_dry(scheduler)
    assert scheduler.preemptions == 0


def test_blocks_that_nobody_uses_are_counted_once_however_many_share_them() -> None:
    """Of 12 blocks the background has 3, 5 are cached, and both newcomers share these."""
    scheduler = new_scheduler(token_budget=64, num_blocks=12, prefix_caching=True)
    scheduler.add(numbered("first", 21))
    run_dry(scheduler)
    started(scheduler, "back", 9, background=True)
    for name in ("one", "two"):
        scheduler.add(numbered(name, 21))
    step(scheduler)
    assert (scheduler.preemptions, scheduler.num_running) == (0, 3)


def test_what_is_shared_with_the_background_is_no_longer_shared_once_that_is_preempted() -> None:
    """One block is missing: the background gives up its 6, of which the newcomer now takes 5 for itself."""
    scheduler = new_scheduler(token_budget=64, num_blocks=7, prefix_caching=True)
    back = numbered("back", 21, background=True)
    scheduler.add(back)
    step(scheduler)
    scheduler.add(numbered("online", 25))
    plan = scheduler.schedule()
    assert ([s.request_id for s in plan.admitted], plan.preempted) == (["online"], (back,))
    scheduler.complete(plan, [TOKEN] * plan.num_samples)
    run_dry(scheduler)


def test_prompts_of_callers_come_before_tokens_of_the_background() -> None:
    scheduler = new_scheduler(token_budget=8)
    started(scheduler, "back", 3, max_tokens=9, background=True)
    add(scheduler, "online", 19)
    assert [step(scheduler) for _ in range(3)] == [
        [("online", 0, 8)],
        [("online", 8, 8)],
        [("back", 3, 1), ("online", 16, 3)],
    ]


def test_the_background_keeps_narrow_steps_narrow_and_fills_wide_ones() -> None:
    config = SchedulerConfig(8, 4, 64, prefix_caching=False)
    scheduler = Scheduler(config, CacheConfig(4, 32), narrow=True)
    started(scheduler, "online", 3)
    back = Request("back", tuple(range(9)), SamplingParams(max_tokens=4), background=True)
    scheduler.add(Sequence(back, eos_token_ids=frozenset(), arrival=next(ARRIVALS), seed=0))
    assert step(scheduler) == [("online", 3, 1), ("back", 0, 1)]
    add(scheduler, "wide", 3)
    assert step(scheduler) == [("online", 4, 1), ("wide", 0, 3), ("back", 1, 4)]


def test_the_background_is_bounded_beside_others_only() -> None:
    config = SchedulerConfig(8, 4, 64, prefix_caching=False, background_tokens=2)
    scheduler = Scheduler(config, CacheConfig(4, 32))
    online = started(scheduler, "online", 3, max_tokens=2)
    back = Request("back", tuple(range(12)), SamplingParams(max_tokens=1), background=True)
    scheduler.add(Sequence(back, eos_token_ids=frozenset(), arrival=next(ARRIVALS), seed=0))
    assert step(scheduler) == [("online", 3, 1), ("back", 0, 2)]
    assert online.status is SequenceStatus.FINISHED
    assert step(scheduler) == [("back", 2, 8)]


def test_what_the_background_leaves_is_evicted_before_what_others_left() -> None:
    scheduler = new_scheduler(num_blocks=6, prefix_caching=True)
    kept = started(scheduler, "online", 9, max_tokens=1)
    step(scheduler)
    for name in ("b1", "b22", "b333", "b4444"):
        started(scheduler, name, 9, max_tokens=1, background=True)
        step(scheduler)
    found = [scheduler.pool.find(key) for key in kept.blocks.keys]
    assert len(found) == 2
    assert None not in found


def test_what_the_background_only_shared_is_not_evicted_before_what_others_left() -> None:
    scheduler = new_scheduler(num_blocks=6, prefix_caching=True)
    older, shared = (started(scheduler, name, 9, max_tokens=1) for name in ("a", "bb"))
    run_dry(scheduler)
    started(scheduler, "b2", 9, max_tokens=1, background=True)
    started(scheduler, "new", 13, max_tokens=1)
    run_dry(scheduler)
    found = [[scheduler.pool.find(key) is not None for key in one.blocks.keys] for one in (older, shared)]
    assert found == [[False, False], [True, True]]


def test_nothing_is_taken_for_one_that_the_step_does_not_reach() -> None:
    scheduler = new_scheduler(max_num_seqs=2, policy=ServicePolicy)
    soon = ServiceClass(name="soon", first_token_seconds=60.0)
    started(scheduler, "displaced", 3, max_tokens=9)
    started(scheduler, "first", 30, service=soon)  # seven tokens of it, and as many in each of the next steps
    second = started(scheduler, "second", 3, service=soon)
    assert (scheduler.preemptions, second.status) == (0, SequenceStatus.WAITING)
    for _ in range(2):
        step(scheduler)
    assert scheduler.preemptions == 0
    assert step(scheduler) == [("first", 28, 2), ("second", 0, 3)]
    assert scheduler.preemptions == 1


def test_nobody_is_preempted_in_vain() -> None:
    """Also where the newcomer would share blocks with the one that goes: they would be free, but not for others."""
    scheduler = new_scheduler(token_budget=64, max_num_seqs=8, num_blocks=18, prefix_caching=True, policy=ServicePolicy)
    shared = tuple(range(100, 132))

    def add_prompt(name: str, tokens: tuple[int, ...], max_tokens: int, **fields: Any) -> Sequence:
        request = Request(name, tokens, SamplingParams(max_tokens=max_tokens, ignore_eos=True), **fields)
        sequence = Sequence(request, eos_token_ids=frozenset({EOS}), arrival=next(ARRIVALS), seed=0)
        scheduler.add(sequence)
        return sequence

    behind = add_prompt("behind", (*shared, 1), 20, tenant="b", background=True)
    step(scheduler)
    other = add_prompt("other", tuple(range(24)), 9, tenant="a")
    step(scheduler)
    newcomer = add_prompt("newcomer", (*shared, *range(200, 212)), 3, tenant="b")
    waited = 0
    while newcomer.row is None:
        before = behind.num_computed
        step(scheduler)
        waited += behind.num_computed == before and newcomer.row is None
    assert other.num_generated == 9
    assert waited <= 2, "its blocks are taken when that makes room, from the step after the next on"
    run_dry(scheduler)
