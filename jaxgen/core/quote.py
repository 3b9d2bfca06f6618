"""Predicted latencies of a request that would come now. Host only, no jax."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """Predicted seconds of a request that comes now, at the current load; nothing is reserved for it."""

    cached_tokens: int = 0
    """Tokens of its prompt that it should find in the prefix cache."""
    first_token: float = 0.0
    inter_token: float = 0.0
    """Between its tokens, in steps that compute no prompts."""
    longest_step: float = 0.0
    """The longest of the steps between its tokens, in which prompts are computed too."""
    spread: float = 1.0
    """99th percentile of the measured over the predicted time of steps."""

    @property
    def first_token_most(self) -> float:
        return self.spread * self.first_token

    @property
    def inter_token_most(self) -> float:
        return self.spread * self.longest_step
