"""Measured rates of this machine's link, steps and projection, for the planner. Host only, no jax."""

from dataclasses import dataclass, field

from jaxgen.offload.restore_plan import Rates
from jaxgen.scheduling.average import Average

LEAST_SHARE = 0.02
"""Least share of a step's time that the projection right before it is taken to need: the time of steps varies by more
than a fast projection takes."""


@dataclass(slots=True)
class StepFit:
    """Exponentially weighted least-squares fit of step time over the positions that a step's tokens attend to.

    ``positions`` is the sum, over a step's tokens, of the number of tokens before each.
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
        """Seconds per token and position; 0 if steps were too similar to fit it."""
        seconds, mean = self.seconds.value or 0.0, self.positions.value or 0.0
        variance = (self._square.value or 0.0) - mean**2
        if variance <= 1e-6 * mean**2 or variance <= 0.0:
            return 0.0
        return max(0.0, ((self._product.value or 0.0) - seconds * mean) / variance)

    @property
    def intercept(self) -> float | None:
        """Seconds of a step whose tokens have no tokens before them; None before the first observation."""
        if self.seconds.value is None:
            return None
        return max(self.seconds.value - self.slope * (self.positions.value or 0.0), 0.1 * self.seconds.value)


@dataclass(slots=True)
class LinkRate:
    """The rate of one direction of a link. It averages seconds per byte, because times add up and rates do not."""

    _seconds: Average = field(default_factory=Average)

    def observe(self, num_bytes: int, seconds: float) -> None:
        """Observe a copy of ``num_bytes`` that used the link for ``seconds``."""
        self._seconds.observe(max(seconds, 1e-9) / num_bytes)

    @property
    def bytes_per_second(self) -> float:
        """0 before the first copy."""
        return 1.0 / self._seconds.value if self._seconds.value else 0.0


@dataclass(slots=True)
class RateMeter:
    """Averages of the recent times of copies, steps and projections."""

    restore: LinkRate = field(default_factory=LinkRate)
    save: LinkRate = field(default_factory=LinkRate)
    step: StepFit = field(default_factory=StepFit)
    projection: Average = field(default_factory=Average)
    """Seconds per token."""

    def observe_step(self, seconds: float, positions: int, projected: int = 0) -> None:
        """Observe a step's seconds, which include the projection of ``projected`` tokens right before it.

        Steps without projection give the time of a step; the additional time of other steps is their projection's.
        """
        if not projected:
            self.step.observe(seconds, positions)
        elif self.step.intercept is not None:
            own = self.step.intercept + self.step.slope * positions
            self.projection.observe(max(seconds - own, LEAST_SHARE * seconds) / projected)

    def rates(self, projection_flops: float = 0.0) -> Rates | None:
        """Return the rates for the planner, or None until a step and a copy were timed.

        ``projection_flops``: FLOPs to project one token.
        """
        step_seconds = self.step.intercept
        if not step_seconds or not self.restore.bytes_per_second:
            return None
        return Rates(
            self.restore.bytes_per_second,
            projection_flops / self.projection.value if self.projection.value else 0.0,
            step_seconds,
            seconds_per_position=self.step.slope,
        )
