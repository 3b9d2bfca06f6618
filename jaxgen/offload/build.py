"""Puts the parts of offloading together for an engine."""

import logging
from dataclasses import dataclass, replace
from typing import Any

from jaxgen.config import EngineConfig, ModelConfig, OffloadConfig, OffloadPolicy
from jaxgen.device import Device
from jaxgen.memory_plan import block_bytes, host_block_bytes
from jaxgen.offload.host_store import HostStore
from jaxgen.offload.mover import Mover
from jaxgen.offload.planner import ContextCost, plan_restore
from jaxgen.offload.rates import RateMeter
from jaxgen.offload.staging import SAVING_GROUPS, group_size
from jaxgen.offload.tier import OffloadTier, Planner, Split
from jaxgen.request import OffloadStats
from jaxgen.step_device import StepDevice

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Offload:
    """The host's half, the device's half, and what they know of the machine."""

    tier: OffloadTier
    mover: Mover
    meter: RateMeter

    def stats(self) -> OffloadStats:
        """A snapshot for metrics."""
        store = self.tier.store
        return replace(
            self.tier.counters,
            host_blocks_total=store.num_blocks,
            host_blocks=len(store),
            host_evictions=store.evictions,
            **self.mover.link_stats(),
        )


def build_offload(model: ModelConfig, config: EngineConfig, device: StepDevice) -> Offload | None:
    """None where nothing is offloaded. Compiles, and measures the links."""
    offload = config.offload
    if offload is None:
        return None
    assert isinstance(device, Device), "only a cache on the device has host memory behind it"
    size = block_bytes(model, config.cache.block_size)
    meter = RateMeter()
    store: HostStore[Any] = HostStore(offload.host_blocks)
    on_host = host_block_bytes(model, config.cache.block_size, offload.host_dtype)
    planner = make_planner(offload, on_host / config.cache.block_size, config.cache.block_size, meter)
    tier = OffloadTier(
        store,
        block_size=config.cache.block_size,
        most_saving=SAVING_GROUPS * group_size(size),
        planner=planner,
    )
    mover = Mover(
        device,
        tier,
        meter,
        group=group_size(size),
        host_dtype=offload.host_dtype,
        bytes_per_second=offload.simulated_bytes_per_second,
    )
    mover.measure()
    logger.info(
        "KV offload: %d blocks of %.2f MiB in host memory, %.2f GB/s from the device, %.2f GB/s to it; %s",
        offload.host_blocks,
        on_host / 2**20,
        meter.save.bytes_per_second / 1e9,
        meter.restore.bytes_per_second / 1e9,
        offload.policy,
    )
    return Offload(tier, mover, meter)


def make_planner(config: OffloadConfig, token_bytes: float, block_size: int, meter: RateMeter) -> Planner:
    """Decides by the policy, and by what the meter says now."""
    cost = ContextCost(token_bytes, 0.0, 0.0)

    def transfer(blocks: int, start: int, free_tokens: int, num_waiting: int) -> Split:
        del start, free_tokens, num_waiting
        rate = meter.restore.bytes_per_second
        return Split(0, blocks * block_size * token_bytes / rate if rate else 0.0)

    def recompute(blocks: int, start: int, free_tokens: int, num_waiting: int) -> Split:
        del start, free_tokens, num_waiting
        return Split(blocks, 0.0)

    def plan(blocks: int, start: int, free_tokens: int, num_waiting: int) -> Split:
        rates = meter.rates()
        if rates is None:
            return transfer(blocks, start, free_tokens, num_waiting)
        found = plan_restore(
            blocks * block_size,
            start=start,
            block_size=block_size,
            cost=cost,
            rates=rates,
            free_tokens=free_tokens,
            x_stored=False,
            price=1.0 + num_waiting,  # each that waits loses the time
        )
        return Split(found.recompute // block_size, found.seconds)

    planners: dict[OffloadPolicy, Planner] = {"plan": plan, "transfer": transfer, "recompute": recompute}
    return planners[config.policy]
