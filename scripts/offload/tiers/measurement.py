"""Measure contexts that only a KV tier has: fetched, computed, or as the planner decides."""

import random
from dataclasses import dataclass, replace
from math import isfinite
from statistics import median
from typing import Any
from unittest.mock import patch

from jaxgen.core.config import CacheConfig, EngineConfig, ModelConfig, OffloadConfig, OffloadPolicy, SchedulerConfig
from jaxgen.core.tier_address import TierAddress
from jaxgen.engine.engine import Engine
from jaxgen.kernels.choice import Kernels
from jaxgen.models import init_params
from jaxgen.offload.build import context_cost
from jaxgen.offload.kv_tier import build as kv_tier_build
from jaxgen.offload.kv_tier.prefetcher import Prefetcher
from jaxgen.offload.rates import LinkRate
from jaxgen.runner.programs import compile_step
from jaxgen.scheduling.average import Average
from scripts.offload.restore import BLOCK_SIZE, first_token, settle
from scripts.offload.tiers.delayed import DelayedStore

CONTEXTS = 4
"""Asked for in turn. Device and host memory hold three, so that the next one is in the tier alone."""
POLICIES: tuple[OffloadPolicy, ...] = ("recompute", "transfer", "plan")
TIER_BYTES = 8 * 2**30
PROBE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Asked:
    seconds: float
    """From the request to its first token."""
    computed: int
    """Tokens."""
    read: int
    """Blocks."""


class Measurement:
    """An engine with a KV tier behind a delayed link, which has computed all contexts once."""

    def __init__(self, model: ModelConfig, kernels: Kernels, tier: TierAddress, tokens: int, budget: int) -> None:
        blocks = -(-tokens // BLOCK_SIZE)
        config = EngineConfig(
            CacheConfig(BLOCK_SIZE, blocks + 4),
            SchedulerConfig(budget, 1, tokens + BLOCK_SIZE),
            seed=0,
            max_logit_bias=4,
            offload=OffloadConfig(2 * blocks + 2, tier=tier, tier_bytes=TIER_BYTES),
        )
        compiled = compile_step(model, config, kernels)
        self.store = DelayedStore(kv_tier_build.open_store(tier, TIER_BYTES))
        with patch.object(kv_tier_build, "open_store", lambda *_: self.store):
            self.engine = Engine(model, config, dict(init_params(model, 0)), frozenset(), compiled=compiled)
        rng = random.Random(0)
        self.contexts = [tuple(rng.choices(range(1, min(500, model.vocab_size)), k=tokens)) for _ in range(CONTEXTS)]
        self._count = 0
        offload = self.engine.offload
        assert offload is not None
        assert isinstance(offload.tier.fetcher, Prefetcher)
        self._offload, self._fetcher = offload, offload.tier.fetcher
        for _ in range(2 * CONTEXTS):  # the second time all steps are known
            self.ask("recompute")

    def ask(self, policy: OffloadPolicy) -> Asked:
        """Ask for the next context, and return what its first token took."""
        engine, cost = self.engine, context_cost(self.engine.model, self.engine.config)
        assert engine.config.offload is not None
        config = replace(engine.config, offload=replace(engine.config.offload, policy=policy))
        self._fetcher._planner = kv_tier_build.make_fetch_planner(config, self._fetcher.tier, self._offload.meter, cost)
        self._count += 1
        computed, read = engine.stats().prompt_tokens, self._fetcher.tier.stats.read_blocks
        seconds = first_token(engine, str(self._count), self.contexts[self._count % CONTEXTS])
        settle(engine)
        return Asked(seconds, engine.stats().prompt_tokens - computed, self._fetcher.tier.stats.read_blocks - read)

    def link(self, bytes_per_second: float, latency: float) -> None:
        """Delay calls so from now on, and learn what a start would learn of it."""
        self.store.bytes_per_second, self.store.latency = bytes_per_second, latency
        tier = self._fetcher.tier
        tier.rate, tier.call_seconds = LinkRate(), Average()
        assert tier.probe(PROBE_SECONDS), "the store did not answer"

    def measure(self, bytes_per_second: float, latency: float, repeats: int) -> dict[str, Any]:
        """Return the medians of the policies, asked in turn, over a link."""
        self.link(bytes_per_second, latency)
        found: dict[str, list[Asked]] = {policy: [] for policy in POLICIES}
        for _ in range(repeats):
            for policy in POLICIES:
                found[policy].append(self.ask(policy))
        tier = self._fetcher.tier
        return {
            "link": bytes_per_second if isfinite(bytes_per_second) else None,
            "latency": latency,
            "measured_rate": tier.rate.bytes_per_second,
            "measured_call": tier.call_seconds.value,
            "tokens": len(self.contexts[0]),
            "bytes": len(self.contexts[0]) * context_cost(self.engine.model, self.engine.config).kv_bytes,
            "seconds": {policy: [round(one.seconds, 4) for one in asked] for policy, asked in found.items()},
            "median": {policy: round(median(one.seconds for one in asked), 4) for policy, asked in found.items()},
            "computed": {policy: [one.computed for one in asked] for policy, asked in found.items()},
            "read_blocks": {policy: [one.read for one in asked] for policy, asked in found.items()},
            "timeouts": tier.stats.timeouts,
            "errors": tier.stats.errors,
        }
