"""The counters of an engine, which its thread writes. Host only, no jax."""

from dataclasses import dataclass


@dataclass
class Counters:
    """Counters that only grow, with the names of EngineStats."""

    steps: int = 0
    narrow_steps: int = 0
    step_seconds: float = 0.0
    host_seconds: float = 0.0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    step_tokens: int = 0
    padded_tokens: int = 0
    stalled_seconds: float = 0.0
