"""Counters and sizes of an engine, for metrics. Host only, no jax."""

from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Protocol

from jaxgen.core.operations import Choices


@dataclass(slots=True)
class SchedulerCounters:
    """Counters of a scheduler; they only grow, also over its failures."""

    preemptions: int = 0
    """How often a sequence lost its row and blocks before its end."""
    prefix_queries: int = 0
    """Tokens of admitted sequences that were looked up in the prefix cache."""
    prefix_hits: int = 0
    """Of these, tokens that were found."""
    leaks: int = 0
    """How often rows or blocks were taken, or places in a queue, although no sequence lived."""
    snapshots_taken: int = 0
    """Snapshots that were taken of sequences' states."""
    snapshots_evicted: int = 0
    """Snapshots that were given up for others."""
    state_recomputed_tokens: int = 0
    """Tokens whose K and V the prefix cache had, and that were computed again because no snapshot had the state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotStats:
    """Snapshots of sequences' states in the prefix cache; counters only grow."""

    total: int = 0
    """Snapshots that the device can hold."""
    held: int = 0
    """Snapshots that it holds now."""
    taken: int = 0
    evicted: int = 0
    """Snapshots that were given up for others."""
    recomputed_tokens: int = 0
    """Tokens whose K and V the prefix cache had, and that were computed again because no snapshot had the state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationStats:
    """Drafts of tokens, and how many were right; counters only grow."""

    drafts: int = 0
    """Chunks with drafts."""
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_by_place: tuple[int, ...] = ()
    """Accepted tokens that were the first draft of their chunk, the second, and so on."""

    def counted(self, drafted: int, accepted: int) -> "SpeculationStats":
        """Return the counters after a chunk with drafts, of which the first ``accepted`` were right."""
        places = zip_longest(self.accepted_by_place, [1] * accepted, fillvalue=0)
        return SpeculationStats(
            drafts=self.drafts + 1,
            draft_tokens=self.draft_tokens + drafted,
            accepted_tokens=self.accepted_tokens + accepted,
            accepted_by_place=tuple([before + new for before, new in places]),
        )


@dataclass(slots=True, kw_only=True)
class OffloadStats:
    """Sizes and counters of the KV cache in host memory; counters only grow."""

    host_blocks_total: int = 0
    host_blocks: int = 0
    """Blocks in host memory now; a snapshot counts as the blocks that would have its bytes. With several kinds of cache
    they are places, of which a block of each kind takes a whole number."""
    host_snapshots: int = 0
    """Snapshots of states in host memory now."""
    saved_snapshots: int = 0
    lost_snapshots: int = 0
    """Snapshots evicted from the device before they could be copied."""
    restored_snapshots: int = 0
    saved_blocks: int = 0
    lost_blocks: int = 0
    """Blocks evicted from the device before they could be copied."""
    host_evictions: int = 0
    host_hit_tokens: int = 0
    """Tokens that were looked up, not found on the device, and found in host memory."""
    planned_restore_tokens: int = 0
    """Of the hits, tokens planned to be copied as K and V."""
    planned_project_tokens: int = 0
    """Of the hits, tokens planned to be copied as layer inputs and projected."""
    planned_recompute_tokens: int = 0
    """Of the hits, tokens planned to be recomputed."""
    restored_tokens: int = 0
    """Tokens that arrived as K and V."""
    projected_tokens: int = 0
    """Tokens that arrived as layer inputs."""
    restores: int = 0
    """Restores that copy blocks, whether they recompute others or not."""
    recomputes: int = 0
    """Sequences that found blocks in host memory and recomputed all of them."""
    failed_restores: int = 0
    failed_saves: int = 0
    predicted_seconds: float = 0.0
    """Predicted seconds of the restores that succeeded."""
    restore_seconds: float = 0.0
    """Measured seconds of the same restores."""
    saved_bytes: int = 0
    save_link_seconds: float = 0.0
    """Seconds in which the link from the device was busy."""
    restored_bytes: int = 0
    restored_input_bytes: int = 0
    """Of the restored bytes, those of layer inputs."""
    restore_link_seconds: float = 0.0
    """Seconds in which the link to the device was busy."""
    idle_seconds: float = 0.0
    """Seconds in which a device that streams its KV cache had nothing to compute and waited for a copy."""


@dataclass(slots=True, kw_only=True)
class KVTierStats:
    """Counters of a KV tier, in blocks unless their name says otherwise; they only grow."""

    hit_blocks: int = 0
    """Blocks looked up and found."""
    missed_blocks: int = 0
    """Blocks looked up that were not there, or lie behind one that was not."""
    read_blocks: int = 0
    read_bytes: int = 0
    read_seconds: float = 0.0
    written_blocks: int = 0
    written_bytes: int = 0
    dropped_writes: int = 0
    """Blocks not written because too many waited, or the tier had failed."""
    errors: int = 0
    """Calls of the tier that failed."""
    damaged_blocks: int = 0
    """Blocks read that were not what was written."""
    timeouts: int = 0
    """Sequences that stopped waiting for blocks, and computed them."""
    compared_blocks: int = 0
    """Blocks computed again and compared with the tier's."""
    differing_blocks: int = 0
    """Of these, blocks with other bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVEventStats:
    """Batches of events of KV blocks; counters only grow."""

    batches: int = 0
    dropped_batches: int = 0
    """Of these, batches that were not sent, because too many waited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KindStats:
    """Blocks of a kind of cache, counted as in EngineStats; ``name``: see CacheKind."""

    name: str
    blocks_total: int = 0
    blocks_free: int = 0
    blocks_cached: int = 0


class Pace(Protocol):
    """Predicted seconds of a request that comes now."""

    @property
    def longest_step(self) -> float:
        """99th percentile of a step's seconds at the current load, with prompts of 1,000 tokens.

        It is the request's longest wait for a token after the first.
        """
        ...

    @property
    def longest_full_step(self) -> float:
        """99th percentile of a step's seconds if as many sequences run as a step may have."""
        ...

    @property
    def first_token(self) -> float:
        """Seconds to the first token of a prompt of 1,000 tokens, after the prompts that wait."""
        ...


@dataclass(frozen=True, slots=True)
class FixedPace:
    """Predictions that are what they are."""

    longest_step: float = 0.0
    longest_full_step: float = 0.0
    first_token: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """A snapshot for metrics; counters only grow."""

    kernels: str = ""
    """Name of the kernels for the step's attention, cache writes and matrix products."""
    kernels_reason: str = ""
    """Why operations do not have faster ones; empty: these are the fastest."""
    kernel_choices: Choices = field(default_factory=dict)
    """The kernels of each operation."""
    num_running: int = 0
    num_waiting: int = 0
    block_size: int = 0
    """Tokens of a block of the KV cache."""
    blocks_total: int = 0
    blocks_free: int = 0
    """Blocks without an owner, including cached ones."""
    blocks_cached: int = 0
    """Blocks without an owner whose content the prefix cache can find."""
    kinds: tuple[KindStats, ...] = ()
    """All kinds of cache, of a model that has several; the counts above are those of the first."""
    prefix_queries: int = 0
    """Tokens looked up in the prefix cache."""
    prefix_hits: int = 0
    """Tokens found in the prefix cache."""
    steps: int = 0
    narrow_steps: int = 0
    """Steps of decodes only that the narrow program ran."""
    step_seconds: float = 0.0
    host_seconds: float = 0.0
    """Seconds in which the engine's thread worked and did not wait for the device."""
    prompt_tokens: int = 0
    generation_tokens: int = 0
    step_tokens: int = 0
    """Tokens that steps computed, including padding."""
    padded_tokens: int = 0
    """Padding among the tokens that steps computed."""
    stalled_seconds: float = 0.0
    """Seconds in which there was nothing to compute and the engine waited for a copy to or from host memory."""
    pace: Pace = FixedPace()
    preemptions: int = 0
    leaks: int = 0
    """How often an idle engine found rows or blocks taken, and began with an empty cache."""
    compilations_after_ready: int = 0
    snapshots: SnapshotStats | None = None
    """None: the model has no states."""
    speculation: SpeculationStats | None = None
    """None: there are no drafts."""
    offload: OffloadStats | None = None
    kv_tier: KVTierStats | None = None
    kv_events: KVEventStats | None = None
