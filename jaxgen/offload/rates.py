"""What is measured of this machine while it works, for the planner. Host only, no jax."""

from dataclasses import dataclass, field

from jaxgen.offload.planner import Rates

NEWS = 0.1
"""Weight of each observation in a moving average."""


@dataclass(slots=True)
class Average:
    """An exponentially weighted mean; None before the first observation."""

    value: float | None = None

    def observe(self, news: float) -> None:
        self.value = news if self.value is None else self.value + NEWS * (news - self.value)


@dataclass(slots=True)
class StepFit:
    """Least squares, exponentially weighted, of step time over the positions that a step's tokens attend to.

    ``positions`` is the sum over a step's tokens of how many tokens are before each.
    """

    seconds: Average = field(default_factory=Average)
    positions: Average = field(default_factory=Average)
    _product: Average = field(default_factory=Average)
    _square: Average = field(default_factory=Average)

    def observe(self, seconds: float, positions: int) -> None:
        self.seconds.observe(seconds)
        self.positions.observe(positions)
        self._product.observe(seconds * positions)
        self._square.observe(float(positions) ** 2)

    @property
    def slope(self) -> float:
        """Seconds for each token and position; 0 where steps were too much alike to tell."""
        seconds, mean = self.seconds.value or 0.0, self.positions.value or 0.0
        variance = (self._square.value or 0.0) - mean**2
        if variance <= 1e-6 * mean**2 or variance <= 0.0:
            return 0.0
        return max(0.0, ((self._product.value or 0.0) - seconds * mean) / variance)

    @property
    def intercept(self) -> float | None:
        """Seconds of a step whose tokens have nothing before them; None before the first observation."""
        if self.seconds.value is None:
            return None
        return max(self.seconds.value - self.slope * (self.positions.value or 0.0), 0.1 * self.seconds.value)


@dataclass(slots=True)
class RateMeter:
    """Moving averages of the link's rates, bytes per second, and of the steps' times."""

    restore: Average = field(default_factory=Average)
    save: Average = field(default_factory=Average)
    step: StepFit = field(default_factory=StepFit)

    def observe_restore(self, num_bytes: int, seconds: float) -> None:
        self.restore.observe(num_bytes / max(seconds, 1e-9))

    def observe_save(self, num_bytes: int, seconds: float) -> None:
        self.save.observe(num_bytes / max(seconds, 1e-9))

    def rates(self) -> Rates | None:
        """What the planner may count on; None as long as no step or no copy was timed."""
        step_seconds = self.step.intercept
        if not step_seconds or not self.restore.value:
            return None
        return Rates(self.restore.value, 0.0, step_seconds, seconds_per_position=self.step.slope)
