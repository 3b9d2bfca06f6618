"""What the planner of streamed steps knows of its machine: rates measured at start, and what link and device do now.
Host only, no jax.

At start nothing overlaps. In steps that overlap the device may be slower, since threads that copy share its cores or
its memory; so what it takes is learned where it, and not the link, sets the pace of the layers.
"""

from dataclasses import dataclass, field, replace

from jaxgen.layerwise.rates import StreamRates
from jaxgen.layerwise.split_plan import StreamPlan
from jaxgen.offload.restore_plan import ContextCost
from jaxgen.scheduling.average import NEWS, Average

NEAR = 0.7
"""The device's part of the link's time from which on a step says something of the device."""
EXPLAINED = 1.05
"""A pace of so much of the link's time or less is the link's."""
DOUBT = 0.02
"""The part of what was learned that a step forgets whose pace is the link's: only by being given more to do can the
device show that it is fast again."""
MOST_CHANGE = 4.0
"""Of the device, up or down, that one step may tell of."""


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
    device_slowness: float = 1.0
    """The same of the device, in layers."""

    def rates(self, *, decodes: bool) -> StreamRates:
        """As they are now."""
        rates = self.decodes if decodes else self.prompts
        link, device = self.link_slowness.value or 1.0, self.device_slowness
        return replace(
            rates,
            bytes_per_second=rates.bytes_per_second / link,
            copy_seconds=rates.copy_seconds * link,
            device_seconds=rates.device_seconds * device,
            device_seconds_per_token=rates.device_seconds_per_token * device,
            project_seconds=rates.project_seconds * device,
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

    def observe_step(self, tokens: int, project: int, seconds: float, *, decodes: bool) -> None:
        """A step that streamed so many tokens, and projected the first ``project`` of them, took so long."""
        now = self.rates(decodes=decodes)
        if now.num_layers == 1:
            return  # there is no pace
        unit, stack, transfer = now.unit(self.cost, self.chunk), now.stack(tokens), tokens - project
        link = project * unit.x + transfer * unit.kv
        device = (project * unit.project if project else 0.0) + stack.device_seconds
        if device < NEAR * link:
            return
        first = unit.makespan(project, transfer, chunk=self.chunk) + stack.device_seconds
        step_time = (seconds - stack.other_seconds - first) / (stack.layers - 1)
        change = min(max(step_time / device, 1 / MOST_CHANGE), MOST_CHANGE)
        if step_time > EXPLAINED * link:
            self.device_slowness *= 1 + NEWS * (change - 1)
            return
        self.device_slowness *= 1 + NEWS * (min(change, 1.0) - 1)  # it is that fast at least
        self.device_slowness += DOUBT * (1 - self.device_slowness)
