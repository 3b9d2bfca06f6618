"""What an engine counts, for metrics. Host only, no jax."""

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class OffloadStats:
    """What host memory does for the cache: sizes, and counters that only grow."""

    host_blocks_total: int = 0
    host_blocks: int = 0
    """Blocks there now."""
    saved_blocks: int = 0
    lost_blocks: int = 0
    """Evicted from the device before they could be copied."""
    host_evictions: int = 0
    host_hit_tokens: int = 0
    """Looked up, not found on the device, and found on the host."""
    planned_restore_tokens: int = 0
    planned_project_tokens: int = 0
    planned_recompute_tokens: int = 0
    """The three make up the hits: to come as K and V, as layer inputs, not at all."""
    restored_tokens: int = 0
    projected_tokens: int = 0
    """Came as K and V, and as layer inputs."""
    restores: int = 0
    """Sequences for which blocks were to be copied, alone or beside computing some."""
    recomputes: int = 0
    """Sequences that found blocks on the host and computed all of them."""
    failed_restores: int = 0
    failed_saves: int = 0
    predicted_seconds: float = 0.0
    """For the restores that ended well, and below: what they took."""
    restore_seconds: float = 0.0
    saved_bytes: int = 0
    save_link_seconds: float = 0.0
    """That the link was busy."""
    restored_bytes: int = 0
    restored_input_bytes: int = 0
    """Those of layer inputs among them."""
    restore_link_seconds: float = 0.0
    idle_seconds: float = 0.0
    """Of a device that streams: it had computed all that could be, and waited for a copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """A snapshot for metrics; counters only grow."""

    kernels: str = ""
    """What the step's attention, cache writes and products are made of."""
    kernels_reason: str = ""
    """Why of these; empty: they are the fastest."""
    num_running: int = 0
    num_waiting: int = 0
    blocks_total: int = 0
    blocks_free: int = 0
    """Blocks that nobody uses, with the cached ones."""
    blocks_cached: int = 0
    """Blocks that nobody uses and whose content may be hit by a prefix."""
    prefix_queries: int = 0
    """Tokens looked up in the prefix cache, and below: found there."""
    prefix_hits: int = 0
    steps: int = 0
    narrow_steps: int = 0
    """Those of decodes only that ran by the narrow program."""
    step_seconds: float = 0.0
    host_seconds: float = 0.0
    """Time that the engine's thread worked, not waiting for the device."""
    prompt_tokens: int = 0
    generation_tokens: int = 0
    step_tokens: int = 0
    """Tokens that steps computed, padding included, and below: those that were padding."""
    padded_tokens: int = 0
    stalled_seconds: float = 0.0
    """With requests, but nothing to compute before a copy from the host's memory ended."""
    longest_step_seconds: float = 0.0
    """What 99 of 100 full steps take at most, as far as is known: the longest time between two tokens of a request."""
    first_token_seconds_per_1000: float = 0.0
    """How long 1,000 tokens of a prompt take beside the requests that run now."""
    preemptions: int = 0
    compilations_after_ready: int = 0
    offload: OffloadStats | None = None
