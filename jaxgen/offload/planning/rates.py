"""Rates of this machine, measured while it works, to plan restores with. Host only, no jax."""

from dataclasses import dataclass, field

from jaxgen.offload.planning.restore_plan import Rates
from jaxgen.scheduling.average import Average
from jaxgen.scheduling.cost_model import StepSample
from jaxgen.scheduling.step_time import StepTimeEstimator

LEAST_SHARE = 0.02
"""Least share of a step's time that a projection before it takes: steps vary by more than a fast projection takes."""


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
    """Rates of copies and projections as lately measured, and step times by the engine's model of them."""

    steps: StepTimeEstimator
    restore: LinkRate = field(default_factory=LinkRate)
    save: LinkRate = field(default_factory=LinkRate)
    projection: Average = field(default_factory=Average)
    """Seconds per token."""

    def observe_projection(self, step: StepSample, projected: int) -> None:
        """Learn from a step that follows a projection of ``projected`` tokens: its excess over the model is theirs."""
        own = self.steps.model.wide.seconds(step.tokens, step.positions, step.contexts)
        self.projection.observe(max(step.seconds - own, LEAST_SHARE * step.seconds) / projected)

    def rates(self, projection_flops: float = 0.0) -> Rates | None:
        """Return the rates to plan with, or None before the first copy.

        ``projection_flops``: FLOPs to project a token.
        """
        model = self.steps.model
        if not model.most_seconds or not self.restore.bytes_per_second:
            return None
        return Rates(
            self.restore.bytes_per_second,
            projection_flops / self.projection.value if self.projection.value else 0.0,
            model.most_seconds,
            seconds_per_position=model.wide.per_position,
        )
