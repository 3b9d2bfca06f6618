"""A KV tier is one more rate for the planner: blocks come from it only if that is sooner than computing them."""

from dataclasses import replace

import pytest

from jaxgen.core.config import EngineConfig, OffloadConfig
from jaxgen.offload.planning.rates import RateMeter
from jaxgen.offload.planning.restore_plan import ContextCost
from jaxgen.offload.tiers.kv_tier.build import BATCH_BYTES, make_fetch_planner
from jaxgen.offload.tiers.kv_tier.prefetcher import FetchPlan
from jaxgen.scheduling.cost_model import StepSample
from jaxgen.scheduling.step_time import StepTimeEstimator
from tests.offload.tiers.kv_tier.fakes import MemoryStore, tier_of
from tests.support.engines import engine_config

BLOCK = 16
KV = 10_000.0
"""Bytes of a token."""


def config(policy: str = "plan") -> EngineConfig:
    return replace(engine_config(block_size=BLOCK, token_budget=100), offload=OffloadConfig(100, policy))  # type: ignore[arg-type]


def planned(
    blocks: int,
    *,
    latency: float = 0.0,
    rate: float = float("inf"),
    policy: str = "plan",
    ahead: int = 0,
    num_waiting: int = 0,
) -> FetchPlan:
    """By steps of 100 tokens in 0.1 s, so a token is computed in 1 ms, and a link that takes no time."""
    tier = tier_of(MemoryStore())
    tier.call_seconds.observe(latency)
    tier.rate.observe(10**9, 10**9 / rate)
    meter = RateMeter(StepTimeEstimator(100, [StepSample(100, 0, 0.1)]))
    meter.restore.observe(10**12, 1.0)
    plan = make_fetch_planner(config(policy), tier, meter, ContextCost(KV, 0.0, 0.0))
    return plan(blocks, 0, ahead, num_waiting)


@pytest.mark.parametrize(
    ("rate", "latency", "blocks", "pays"),
    [
        (2e9, 0.0, 100, True),
        (20e6, 0.0, 100, True),  # 0.8 s of reading, 1.6 s of computing
        (11e6, 0.0, 100, True),
        (9e6, 0.0, 100, False),  # 1.8 s
        (2e9, 0.0, 5, False),  # the answer comes after a step
        (2e9, 0.3, 100, True),  # looked up, and two reads: 0.9 s more
        (2e9, 0.6, 100, False),
        (20e6, 0.01, 8, False),
        (20e6, 0.01, 20, True),
    ],
)
def test_blocks_are_fetched_if_that_is_sooner(rate: float, latency: float, blocks: int, pays: bool) -> None:
    found = planned(blocks, rate=rate, latency=latency)
    assert found.pays is pays
    assert found.max_wait == pytest.approx(blocks * BLOCK * 1e-3, rel=0.05)


def test_what_is_read_before_counts_and_so_do_those_that_wait() -> None:
    assert planned(100, rate=20e6).pays
    assert not planned(100, rate=20e6, ahead=100).pays
    assert planned(100, rate=20e6, ahead=100, num_waiting=1).pays, "they lose the time of computing too"


def test_other_policies_read_always_or_never() -> None:
    assert planned(1, rate=1.0, policy="transfer").pays
    assert not planned(100, policy="recompute").pays


def test_a_batch_is_a_few_blocks_of_these() -> None:
    assert 1 < 100 * BLOCK * KV / BATCH_BYTES < 2
