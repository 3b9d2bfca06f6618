"""Build the KV tier of a configuration, and the planner of what is fetched from it. Host only, no jax."""

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from math import ceil

from jaxgen.core.config import EngineConfig
from jaxgen.core.tier_address import DirectoryAddress, RedisAddress, TierAddress
from jaxgen.offload.planning.rates import RateMeter
from jaxgen.offload.planning.restore_plan import ContextCost, plan_restore
from jaxgen.offload.tiers.host_store import HostBlock, HostStore
from jaxgen.offload.tiers.kv_tier.directory import DirectoryStore
from jaxgen.offload.tiers.kv_tier.kv_tier import BlockFormat, KVTier
from jaxgen.offload.tiers.kv_tier.prefetcher import MAX_WAIT, FetchPlan, FetchPlanner, Prefetcher
from jaxgen.offload.tiers.kv_tier.store import ByteStore

logger = logging.getLogger(__name__)

BATCH_BYTES = 8 * 2**20
"""Bytes of the blocks that are read together: few enough that what has arrived is soon in host memory."""


def open_store(address: TierAddress, most_bytes: int) -> ByteStore:
    """Return the store at an address. It is not asked for anything yet; its package must be installed."""
    if isinstance(address, DirectoryAddress):
        return DirectoryStore(address.path, most_bytes)
    if isinstance(address, RedisAddress):
        from jaxgen.offload.tiers.kv_tier.redis_store import RedisStore

        return RedisStore(address, most_bytes)
    from jaxgen.offload.tiers.kv_tier.s3_store import open_bucket

    return open_bucket(address, most_bytes)


def build_prefetcher(
    config: EngineConfig,
    forms: Sequence[BlockFormat],
    store: HostStore[HostBlock],
    meter: RateMeter,
    cost: ContextCost,
    namespace: bytes,
    *,
    places: Sequence[int] = (1,),
    state_form: BlockFormat | None = None,
    state_places: int = 0,
) -> Prefetcher:
    """Start the threads of the configuration's KV tier, and measure how fast it is.

    ``cost``: of a token in host memory's format. ``forms``, ``namespace``, ``state_form``: see KVTier. ``places``: of
    the store, for a block of each kind of cache; ``state_places``: for a snapshot.
    """
    offload = config.offload
    assert offload is not None, "a KV tier is behind host memory"
    assert offload.tier is not None, "this is called for a KV tier"
    store_there = open_store(offload.tier, offload.tier_bytes)
    tier = KVTier(store_there, forms, namespace, secret=offload.tier_key, state_form=state_form)
    answered = tier.probe(MAX_WAIT)
    speed = _speed(tier) if answered else f"which did not answer in {MAX_WAIT:.0f} s"
    logger.info("KV tier: at most %.2f GiB in %s, %s", offload.tier_bytes / 2**30, tier.name, speed)
    return Prefetcher(
        tier,
        store,
        make_fetch_planner(config, tier, meter, cost, places[0]),
        batch=max(1, BATCH_BYTES // max(form.num_bytes for form in forms)),
        places=places,
        # Blocks of codes depend on how what is before them came back, and so do blocks made of layer inputs.
        compares=offload.host_dtype == "auto" and not config.cache.keep_inputs,
        state_places=state_places,
        clock=time.monotonic,
    )


def _speed(tier: KVTier) -> str:
    rate, call = tier.rate.bytes_per_second, tier.call_seconds.value or 0.0
    return f"{rate / 1e6:.0f} MB/s from it, {1e3 * call:.1f} ms a call" if rate else "which failed"


def make_fetch_planner(
    config: EngineConfig, tier: KVTier, meter: RateMeter, cost: ContextCost, places: int = 1
) -> FetchPlanner:
    """Return the planner of the configuration's policy, which reads the current rates of tier, link and steps.

    ``places``: of the host store, for a block whose tokens have ``cost``.
    By the policy ``plan``, blocks are fetched if that brings them into the device's cache sooner than computing them.
    Computing counts 1 + n times while n other sequences wait. A sequence waits until it could have computed them.
    """
    assert config.offload is not None
    policy, block_size = config.offload.policy, config.cache.block_size
    token_budget = config.scheduler.token_budget

    def transfer(blocks: int, start: int, ahead: int, num_waiting: int) -> FetchPlan:
        del blocks, start, ahead, num_waiting
        return FetchPlan(pays=True)

    def recompute(blocks: int, start: int, ahead: int, num_waiting: int) -> FetchPlan:
        del blocks, start, ahead, num_waiting
        return FetchPlan(pays=False)

    def plan(blocks: int, start: int, ahead: int, num_waiting: int) -> FetchPlan:
        rates = meter.rates()
        if rates is None:
            return FetchPlan(pays=False)
        planned = plan_restore(
            blocks * block_size,
            start=start,
            block_size=block_size,
            cost=cost,
            rates=replace(rates, flops_per_second=0.0),
            free_tokens=token_budget,
            x_stored=False,
        )
        num_bytes = (ahead + blocks) * block_size * cost.kv_bytes / places
        reading = tier.seconds(num_bytes, 1 + ceil(num_bytes / BATCH_BYTES))  # 1: blocks are looked up first
        seconds = rates.step_seconds + reading + planned.transfer_seconds  # answers are read between steps
        computing = planned.recompute_seconds
        return FetchPlan(seconds < (1 + num_waiting) * computing, computing)

    return {"plan": plan, "transfer": transfer, "recompute": recompute}[policy]
