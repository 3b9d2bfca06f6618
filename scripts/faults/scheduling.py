"""Faults of what is decided without a device: who runs, which blocks are whose, and what goes to the host."""

from scripts.faults.fault import Fault

SCHEDULER = (
    Fault(
        "chunk-beyond-the-budget",
        "scheduler",
        "jaxgen/scheduling/planner.py",
        "min(sequence.num_uncomputed, budget)",
        "min(sequence.num_uncomputed, budget + 1)",
        ("tests/scheduling/test_planner.py",),
    ),
    Fault(
        "prompts-before-decodes",
        "scheduler",
        "jaxgen/scheduling/scheduler.py",
        "(*short, *long)",
        "(*long, *short)",
        ("tests/scheduling/test_planner.py",),
    ),
    Fault(
        "answer-longer-by-one",
        "scheduler",
        "jaxgen/core/sequence.py",
        "FinishReason.LENGTH if length >= self.max_length",
        "FinishReason.LENGTH if length > self.max_length",
        ("tests/scheduling/test_ends.py",),
    ),
    Fault(
        "preempted-counts-as-computed",
        "scheduler",
        "jaxgen/cache/cache_manager.py",
        "sequence.num_computed = sequence.num_registered = 0",
        "sequence.num_registered = 0",
        ("tests/scheduling/test_preemption.py",),
    ),
    Fault(
        "shares-without-weights",
        "scheduler",
        "jaxgen/scheduling/service/fair_share.py",
        "+= chunk.length / request.tenant_weight",
        "+= chunk.length",
        ("tests/scheduling/service/test_fair_share.py",),
    ),
    Fault(
        "patience-without-end",
        "scheduler",
        "jaxgen/scheduling/service/queues.py",
        "or sequence.deadline > now:",
        "or sequence.deadline < now:",
        ("tests/scheduling/service/test_queues.py",),
    ),
    Fault(
        "waiting-puts-off-the-due-time",
        "scheduler",
        "jaxgen/scheduling/service/queues.py",
        "max(0.0, target - waited - prompt_seconds)",
        "max(0.0, target + waited - prompt_seconds)",
        ("tests/scheduling/service/test_queues.py",),
    ),
)

CACHE = (
    Fault(
        "hit-of-the-whole-prompt",
        "cache",
        "jaxgen/cache/prefix_cache.py",
        "range(first, (len(sequence.tokens) - 1) // self.block_size)",
        "range(first, len(sequence.tokens) // self.block_size)",
        ("tests/cache/test_prefix_cache.py",),
    ),
    Fault(
        "salt-ignored",
        "cache",
        "jaxgen/cache/prefix_cache.py",
        "root_key(sequence.request.cache_salt)",
        "root_key(None)",
        ("tests/cache/test_prefix_cache.py",),
    ),
    Fault(
        "shared-block-has-one-owner",
        "cache",
        "jaxgen/cache/block_pool.py",
        "self._owners[block] += 1",
        "self._owners[block] = 1",
        ("tests/cache/test_block_pool.py",),
    ),
    Fault(
        "last-used-is-evicted-first",
        "cache",
        "jaxgen/cache/block_pool.py",
        "self._cached.popitem(last=False)",
        "self._cached.popitem(last=True)",
        ("tests/cache/test_block_pool.py",),
    ),
    Fault(
        "background-evicts-what-it-shared",
        "cache",
        "jaxgen/cache/cache_manager.py",
        "own = sequence.num_shared if sequence.request.background",
        "own = 0 if sequence.request.background",
        ("tests/scheduling/test_levels.py",),
    ),
)

OFFLOAD = (
    Fault(
        "host-store-over-its-capacity",
        "offload",
        "jaxgen/offload/host_store.py",
        "if len(self._pieces) + len(self._reserved) == self.num_blocks",
        "if len(self._pieces) == self.num_blocks",
        ("tests/offload/test_host_store.py",),
    ),
    Fault(
        "evicted-block-is-not-saved",
        "offload",
        "jaxgen/offload/tier.py",
        "if waits and not self._save(block, key) and not",
        "if waits and not",
        ("tests/offload/test_tier.py",),
    ),
    Fault(
        "restore-of-the-wrong-end",
        "offload",
        "jaxgen/offload/tier.py",
        "keys[split.recompute :]",
        "keys[: len(keys) - split.recompute]",
        ("tests/offload/test_tier.py",),
    ),
    Fault(
        "stale-piece-of-a-block-written-anew",
        "offload",
        "jaxgen/layerwise/layer_store.py",
        "            self._pieces.pop(block, None)\n",
        "",
        ("tests/layerwise/test_layer_store.py",),
    ),
)

SIZING = (
    Fault(
        "plan-without-temporaries",
        "sizing",
        "jaxgen/sizing/memory_request.py",
        "self.memory.free_bytes - self.params_bytes - self.temporary_bytes",
        "self.memory.free_bytes - self.params_bytes",
        ("tests/sizing/test_memory.py",),
    ),
    Fault(
        "knee-without-latency",
        "sizing",
        "jaxgen/sizing/token_budget.py",
        "budget: budget / time**2 for",
        "budget: budget / time for",
        ("tests/sizing/test_token_budget.py",),
    ),
)
