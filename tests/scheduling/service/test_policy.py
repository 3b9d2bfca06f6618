"""First in, first out, and the policy of a server where nobody asks for more."""

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from jaxgen.cache.cache_manager import KVCacheManager
from jaxgen.core.config import CacheConfig, SchedulerConfig
from jaxgen.core.request import Request
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.core.sequence import Sequence
from jaxgen.scheduling.cost_model import LinearCost
from jaxgen.scheduling.policy import Fifo
from jaxgen.scheduling.scheduler import Scheduler
from jaxgen.scheduling.step_time import StepTimeModel
from tests.support.service_world import VirtualServer, policy_with, promised
from tests.support.small_scheduler import TOKEN, new_scheduler, shown, step

LOADS = st.integers(1, 20).flatmap(
    lambda prompt: st.lists(
        st.tuples(st.just(prompt), st.integers(1, 9), st.booleans(), st.integers(0, 3)), max_size=16
    )
)
"""Prompt, of one length since shorter ones are due sooner, max_tokens, whether it is background, and the steps before
the next one comes."""


def run(policy: Callable[[SchedulerConfig, KVCacheManager], Fifo], load: list[tuple[int, int, bool, int]]) -> list[Any]:
    """What each step computed, and the free blocks after it."""
    scheduler = Scheduler(SchedulerConfig(8, 4, 64), CacheConfig(block_size=4, num_blocks=10), policy=policy)
    seen: list[Any] = []

    def one_step() -> None:
        plan = scheduler.schedule(float(len(seen)))
        scheduler.complete(plan, [TOKEN] * plan.num_samples)
        seen.append((shown(plan), scheduler.pool.num_free))

    for arrival, (prompt, max_tokens, background, steps) in enumerate(load):
        params = SamplingParams(max_tokens=max_tokens)
        request = Request(f"r{arrival}", tuple(range(prompt)), params, background=background)
        sequence = Sequence(request, eos_token_ids=frozenset(), arrival=arrival, seed=0)
        scheduler.add(sequence, float(len(seen)))
        for _ in range(steps):
            one_step()
    while scheduler.has_work:
        one_step()
    return seen


@settings(max_examples=60, deadline=None)
@given(LOADS)
def test_where_nobody_asks_for_more_and_prompts_are_alike_both_policies_plan_the_same(
    load: list[tuple[int, int, bool, int]],
) -> None:
    step_time = StepTimeModel(8, LinearCost(base=0.5, per_token=0.05))  # a full step is in time
    assert run(Fifo, load) == run(policy_with(step_time), load)


def test_first_in_is_first_out_whatever_was_asked_for() -> None:
    scheduler = new_scheduler(max_num_seqs=1)
    asked: dict[str, dict[str, Any]] = {
        "background": {"background": True},
        "first": {"priority": 9},
        "second": {"service": promised(first=1.0)},
        "third": {"priority": -9, "tenant": "other"},
    }
    for arrival, (name, fields) in enumerate(asked.items()):
        request = Request(name, (5,), SamplingParams(max_tokens=2), **fields)
        scheduler.add(Sequence(request, eos_token_ids=frozenset(), arrival=arrival, seed=0))
    order = [name for _ in range(8) for name, *_ in step(scheduler)]
    assert list(dict.fromkeys(order)) == ["first", "second", "third", "background"]


def test_the_answer_that_a_resumed_stream_brings_counts_like_its_prompt() -> None:
    """It is computed like one: for its place, for what waits, and for its targets."""
    world = VirtualServer(StepTimeModel(32, LinearCost(0.001, 0.0001)))
    service = promised(first=30.0, prompt_rate=100.0)
    found = []
    for prompt, answer in ((704, 0), (4, 700)):
        before = world.scheduler.waiting_tokens
        one = world.add(prompt, 800, answer=tuple(range(answer)), service=service).sequence
        found.append((one.num_to_compute, world.scheduler.waiting_tokens - before, one.standing.deadline))
    assert found[0] == found[1]
    assert found[0][:2] == (704, 704)
