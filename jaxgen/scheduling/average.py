"""A running mean of what is observed. Host only, no jax."""

from dataclasses import dataclass

NEWS = 0.1
"""Weight of each observation in a moving average."""


@dataclass(slots=True)
class Average:
    """An exponentially weighted mean; None before the first observation."""

    value: float | None = None

    def observe(self, news: float) -> None:
        self.value = news if self.value is None else self.value + NEWS * (news - self.value)
