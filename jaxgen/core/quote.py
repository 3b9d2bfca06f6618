"""What latencies a request would have if it came now. Host only, no jax."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """Predicted seconds of a request that comes now, beside what runs and waits; nothing is kept free for it."""

    cached_tokens: int = 0
    """Tokens of its prompt that it should find in the prefix cache."""
    first_token: float = 0.0
    inter_token: float = 0.0
    """Between its tokens, in steps that compute no prompts."""
    longest_step: float = 0.0
    """The longest of the steps between its tokens, in which prompts are computed too."""
    spread: float = 1.0
    """Of 100 steps one takes more than so many times what was predicted."""

    @property
    def first_token_most(self) -> float:
        return self.spread * self.first_token

    @property
    def inter_token_most(self) -> float:
        return self.spread * self.longest_step
