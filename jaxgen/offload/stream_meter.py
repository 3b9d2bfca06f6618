"""What the planner of streamed steps knows of its machine: rates measured at start, and the link as it is now. Host
only, no jax."""

from dataclasses import dataclass, field, replace

from jaxgen.offload.planner import ContextCost
from jaxgen.offload.rates import Average
from jaxgen.offload.stream_rates import StreamRates
from jaxgen.offload.streaming import StreamPlan


@dataclass(slots=True)
class StreamMeter:
    """``decodes`` and ``prompts``: rates of steps of decodes only, and of those with longer chunks, measured at start.
    ``cost``: of a token in one layer. ``chunk``: tokens of a copy."""

    decodes: StreamRates
    prompts: StreamRates
    cost: ContextCost
    chunk: int
    link_slowness: Average = field(default_factory=Average)
    """What the link takes now, as a multiple of what it took at start."""

    def rates(self, *, decodes: bool) -> StreamRates:
        """As they are now."""
        rates, slowness = self.decodes if decodes else self.prompts, self.link_slowness.value or 1.0
        return replace(
            rates,
            bytes_per_second=rates.bytes_per_second / slowness,
            copy_seconds=rates.copy_seconds * slowness,
        )

    def plan(self, tokens: int, *, decodes: bool) -> StreamPlan:
        """How a step that streams so many tokens brings them."""
        return self.rates(decodes=decodes).plan(tokens, self.cost, self.chunk)

    def seconds(self, tokens: int, project: int, *, decodes: bool) -> float:
        """Predicted, of a step that streams so many tokens and projects the first ``project`` of them."""
        rates = self.rates(decodes=decodes)
        unit = rates.unit(self.cost, self.chunk)
        return rates.stack(tokens).seconds(project, tokens - project, unit=unit, chunk=self.chunk)

    def observe_link(self, num_bytes: int, copies: int, seconds: float) -> None:
        """So much was copied in ``seconds`` in which the link was busy."""
        rates = self.decodes
        expected = num_bytes / rates.bytes_per_second + copies * rates.copy_seconds
        if expected > 0.0:
            self.link_slowness.observe(seconds / expected)
