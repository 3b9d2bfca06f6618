"""Build the parts of KV offloading for an engine."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import mul

from jaxgen.cache.cache_format import kind_formats, place_bytes
from jaxgen.core.config import CacheConfig, EngineConfig, OffloadPolicy
from jaxgen.core.model_config import ModelConfig
from jaxgen.core.sequence import Restore
from jaxgen.core.stats import KVTierStats, OffloadStats
from jaxgen.core.step_plan import StepPlan
from jaxgen.offload.planning.rates import RateMeter
from jaxgen.offload.planning.restore_plan import ContextCost, plan_restore
from jaxgen.offload.planning.staging import SAVING_GROUPS, group_size, projected_blocks
from jaxgen.offload.tiers.host_store import HostBlock, HostStore
from jaxgen.offload.tiers.kv_tier.build import build_prefetcher
from jaxgen.offload.tiers.offload_tier import KindPlan, OffloadTier, Pays, Planner, Split, StatePlan
from jaxgen.offload.transfer.kv_transfer import KVTransfer
from jaxgen.offload.transfer.projection import Projection
from jaxgen.runner.interface import Runner
from jaxgen.runner.model_runner import ModelRunner
from jaxgen.scheduling.cost_model import StepSample
from jaxgen.scheduling.step_time import StepTimeEstimator

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Offload:
    """The tier on the host, with a KV tier behind it or none, the transfer on the device, and the measured rates."""

    tier: OffloadTier
    transfer: KVTransfer
    meter: RateMeter

    @property
    def has_saves(self) -> bool:
        """Whether steps must go on, although no request does, until blocks are in host memory."""
        return self.tier.has_saves or self.transfer.busy

    @property
    def has_blocks_to_write(self) -> bool:
        """Whether blocks are on their way to the KV tier, so that steps must go on before the engine ends."""
        return self.tier.fetcher is not None and self.has_saves

    @property
    def copies(self) -> bool:
        """Whether any copy between the device and the host is under way."""
        return self.transfer.busy

    @property
    def busy(self) -> bool:
        """Whether any copy or fetch is under way."""
        return self.transfer.busy or (self.tier.fetcher is not None and self.tier.fetcher.busy)

    @property
    def projected(self) -> int:
        """Tokens whose projection the last ``poll`` dispatched."""
        return self.transfer.projected

    @property
    def host_blocks(self) -> int:
        """Blocks in host memory now."""
        return self.tier.store.num_filled

    def start(self, plan: StepPlan) -> None:
        """Start the plan's saves and restores. Call it before the plan's step, which may overwrite blocks to save."""
        self.transfer.start(plan)

    def observe_projection(self, sample: StepSample, projected: int) -> None:
        """Learn from a step that came right after the projection of ``projected`` tokens, and waited for it."""
        self.meter.observe_projection(sample, projected)

    def poll(self) -> list[tuple[Restore, bool]]:
        """Enter finished fetches and copies. Return the restores that have ended, and whether each is complete."""
        if self.tier.fetcher is not None:
            self.tier.fetcher.poll()
        return self.transfer.poll()

    def wait(self, seconds: float) -> None:
        """Wait until a copy or a fetch ends, for ``seconds`` at most."""
        if self.transfer.busy or self.tier.fetcher is None:
            self.transfer.wait(seconds)
        else:
            self.tier.fetcher.tier.wait(seconds)

    def fail(self) -> None:
        """Drop all copies and fetches under way, since the cache is lost, and with it the blocks gathered from it."""
        self.transfer.fail()
        self.tier.fail()

    def close(self, seconds: float) -> None:
        """Write what waits for that to the KV tier, for ``seconds`` at most."""
        if self.tier.fetcher is not None:
            self.tier.fetcher.tier.close(seconds)

    def kv_tier_stats(self) -> KVTierStats | None:
        """Return the counters themselves, not a snapshot: threads write blocks when the engine has nothing to do."""
        return None if self.tier.fetcher is None else self.tier.fetcher.tier.stats

    def stats(self) -> OffloadStats:
        """Return a snapshot for metrics."""
        store = self.tier.store
        return replace(
            self.tier.counters,
            host_blocks_total=store.num_blocks,
            host_blocks=store.num_filled,
            host_evictions=store.evictions,
            **self.transfer.link_stats(),
        )


def build_offload(
    model: ModelConfig, config: EngineConfig, device: Runner, steps: StepTimeEstimator, namespace: bytes = b""
) -> Offload | None:
    """Compile what offloading needs and measure the links; None where nothing is offloaded.

    ``steps``: the engine's estimate of what steps take, which restores are planned with. ``namespace``: see KVTier.
    """
    offload = config.offload
    if offload is None:
        return None
    assert isinstance(device, ModelRunner), "only a cache on the device has host memory behind it"
    cache, meter = config.cache, RateMeter(steps)
    store: HostStore[HostBlock] = HostStore(offload.host_blocks)
    groups, states = group_sizes(model, cache), state_plan(model, config, meter)
    kinds = kind_plans(model, config, groups)
    tier = OffloadTier(
        store,
        block_size=cache.block_size,
        kinds=kinds,
        planner=make_planner(model, config, meter),
        states=states,
        pays=make_pays(model, config, meter),
    )
    projection = None
    if cache.keep_inputs:
        projection = Projection(model, cache, device, group=projected_blocks(cache.block_size, groups[0]))
    transfer = KVTransfer(
        device,
        tier,
        meter,
        groups=groups,
        host_dtype=offload.host_dtype,
        projection=projection,
    )
    transfer.measure()
    logger.info(
        "KV offload: %d blocks of %.2f MiB in host memory, %.2f GB/s from the device, %.2f GB/s to it; %s",
        offload.host_blocks,
        place_bytes(kind_formats(model, cache), offload.host_dtype) / 2**20,
        meter.save.bytes_per_second / 1e9,
        meter.restore.bytes_per_second / 1e9,
        offload.policy,
    )
    if offload.tier is not None:
        cost = context_cost(model, config)
        tier.fetcher = build_prefetcher(
            *(config, transfer.block_formats(), store, meter, cost, namespace),
            places=[kind.places for kind in kinds],
            state_form=transfer.state_format(),
            state_places=0 if states is None else states.places,
        )
    return Offload(tier, transfer, meter)


def state_plan(model: ModelConfig, config: EngineConfig, meter: RateMeter) -> StatePlan | None:
    """Return how snapshots are kept, each in the places of the blocks that have its bytes; None: there are none."""
    assert config.offload is not None
    if not config.cache.num_snapshots:
        return None
    place = place_bytes(kind_formats(model, config.cache), config.offload.host_dtype)
    planner = make_planner(model, config, meter, with_state=True)
    return StatePlan(-(-model.state_bytes // place), planner)


def kind_plans(model: ModelConfig, config: EngineConfig, groups: Sequence[int]) -> list[KindPlan]:
    """Return how blocks of each kind of cache are kept; ``groups``: see ``group_sizes``."""
    assert config.offload is not None
    formats, host_dtype = kind_formats(model, config.cache), config.offload.host_dtype
    place = place_bytes(formats, host_dtype)
    places = [each.host_block_bytes(host_dtype) // place for each in formats]
    return [KindPlan(number, SAVING_GROUPS * group) for number, group in zip(places, groups, strict=True)]


def group_sizes(model: ModelConfig, cache: CacheConfig) -> tuple[int, ...]:
    """Return the number of blocks of each kind of cache that are gathered or scattered together."""
    return tuple([group_size(each.block_bytes) for each in kind_formats(model, cache)])


def context_cost(model: ModelConfig, config: EngineConfig) -> ContextCost:
    """Return the bytes and FLOPs of a token of context in the format of host memory.

    With several kinds of cache they are those of the layers that keep the whole context: windows bring few blocks.
    """
    host_dtype = "auto" if config.offload is None else config.offload.host_dtype
    return ContextCost.of(kind_formats(model, config.cache)[0], host_dtype)


def make_planner(model: ModelConfig, config: EngineConfig, meter: RateMeter, *, with_state: bool = False) -> Planner:
    """Return the planner of the policy, which reads the meter's current rates. Raises ValueError without offloading.

    ``with_state``: a snapshot comes with what it plans.
    """
    if config.offload is None:
        raise ValueError("nothing is offloaded")
    cost, block_size = context_cost(model, config), config.cache.block_size
    state = model.state_bytes if with_state else 0
    copy_tokens = projected_blocks(block_size, group_sizes(model, config.cache)[0]) * block_size

    def transfer(blocks: int, start: int, free_tokens: int, num_waiting: int, inputs_known: bool) -> Split:
        del start, free_tokens, num_waiting, inputs_known
        rate, num_bytes = meter.restore.bytes_per_second, blocks * block_size * cost.kv_bytes + state
        return Split(0, num_bytes / rate if rate else 0.0)

    def recompute(blocks: int, start: int, free_tokens: int, num_waiting: int, inputs_known: bool) -> Split:
        del start, free_tokens, num_waiting, inputs_known
        return Split(blocks, 0.0)

    def plan(blocks: int, start: int, free_tokens: int, num_waiting: int, inputs_known: bool) -> Split:
        rates = meter.rates(cost.projection_flops)
        if rates is None:
            return transfer(blocks, start, free_tokens, num_waiting, inputs_known)
        restore = plan_restore(
            blocks * block_size,
            start=start,
            block_size=block_size,
            cost=cost,
            rates=rates,
            free_tokens=free_tokens,
            x_stored=inputs_known,
            price=1.0 + num_waiting,  # each waiting sequence loses the time too
            copy_tokens=copy_tokens,
            state_bytes=state,
        )
        return Split(restore.recompute // block_size, restore.seconds, restore.project // block_size)

    planners: dict[OffloadPolicy, Planner] = {"plan": plan, "transfer": transfer, "recompute": recompute}
    return planners[config.offload.policy]


def make_pays(model: ModelConfig, config: EngineConfig, meter: RateMeter) -> Pays:
    """Return whether blocks, and a snapshot, come sooner than tokens are computed, by the policy's rule."""
    assert config.offload is not None
    policy, block_size, cost = config.offload.policy, config.cache.block_size, context_cost(model, config)
    free_tokens, state, host_dtype = config.scheduler.token_budget, model.state_bytes, config.offload.host_dtype
    bytes_of_kinds = [each.host_block_bytes(host_dtype) for each in kind_formats(model, config.cache)]

    def pays(again: int, start: int, copied: tuple[int, ...], with_state: bool) -> bool:
        rates = meter.rates()
        if policy != "plan" or rates is None:
            return policy != "recompute"
        computed = plan_restore(
            again * block_size,
            start=start,
            block_size=block_size,
            cost=cost,
            rates=rates,
            free_tokens=free_tokens,
            x_stored=False,
        )
        num_bytes = with_state * state + sum(map(mul, copied, bytes_of_kinds))
        return num_bytes / rates.link_bytes_per_second < computed.recompute_seconds

    return pays
