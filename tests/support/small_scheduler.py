"""A small scheduler, fed and stepped by hand."""

import itertools
from typing import Any

import pytest

from jaxgen.cache.window_manager import blocks_for
from jaxgen.core.config import CacheConfig, SchedulerConfig
from jaxgen.core.request import Request
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.core.sequence import Sequence
from jaxgen.core.step_plan import Outcome, StepPlan
from jaxgen.scheduling.policy import Fifo
from jaxgen.scheduling.scheduler import Scheduler

EOS = 2
TOKEN = 7
ARRIVALS = itertools.count()


def new_scheduler(
    token_budget: int = 8,
    max_num_seqs: int = 4,
    num_blocks: int = 32,
    block_size: int = 4,
    prefix_caching: bool = False,
    policy: type[Fifo] = Fifo,
    windows: tuple[int, ...] = (),
    spare_blocks: int = 0,
    num_snapshots: int | None = None,
    **options: Any,
) -> Scheduler:
    """Without the prefix cache unless asked for: what is computed, and where, then follows from lengths alone.

    ``windows``: of further kinds of cache, each with ``spare_blocks`` more than all rows need.
    """
    config = SchedulerConfig(token_budget, max_num_seqs, max_model_len=64, prefix_caching=prefix_caching)
    window_blocks = tuple(blocks_for(max_num_seqs, window, block_size, config) + spare_blocks for window in windows)
    cache = CacheConfig(
        block_size, num_blocks, window_blocks=window_blocks, windows=windows, num_snapshots=num_snapshots
    )
    return Scheduler(config, cache, policy=policy, **options)


def sequence_of(name: str, prompt: int, max_tokens: int = 4, **params: Any) -> Sequence:
    request = Request(name, tuple(range(100, 100 + prompt)), SamplingParams(max_tokens=max_tokens, **params))
    return Sequence(request, eos_token_ids=frozenset({EOS}), arrival=next(ARRIVALS), seed=0)


def add(scheduler: Scheduler, name: str, prompt: int, max_tokens: int = 4, **params: Any) -> Sequence:
    sequence = sequence_of(name, prompt, max_tokens, **params)
    scheduler.add(sequence)
    return sequence


def shown(plan: StepPlan) -> list[tuple[str, int, int]]:
    return [(chunk.sequence.request_id, chunk.start, chunk.length) for chunk in plan.chunks]


def step(scheduler: Scheduler, token: int = TOKEN) -> list[tuple[str, int, int]]:
    plan = scheduler.schedule()
    seen = shown(plan)
    scheduler.complete(plan, [token] * plan.num_samples)
    return seen


def step_ahead(scheduler: Scheduler, before: StepPlan, token: int = TOKEN) -> tuple[StepPlan, list[Outcome]]:
    """The next plan, made while the one before it is in flight, and what that one brought."""
    plan = scheduler.schedule()
    return plan, scheduler.complete(before, [token] * before.num_samples)


def run_dry(scheduler: Scheduler, limit: int = 1000) -> None:
    for _ in range(limit):
        if not scheduler.has_work:
            assert scheduler.pool.num_free == scheduler.pool.num_blocks
            return
        assert step(scheduler)
    pytest.fail(f"still at work after {limit} steps")
