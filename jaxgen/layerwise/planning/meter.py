"""Rates of link and device for the planner of streamed steps: measured at start, and corrected by the steps since.
Host only, no jax.

At start nothing overlaps. In steps that overlap the device may be slower, since threads that copy share its cores or
its memory. So its rates are corrected by steps in which the device, and not the link, sets the pace of the layers.
"""

from dataclasses import dataclass, field, replace

from jaxgen.layerwise.planning.rates import StreamRates
from jaxgen.layerwise.planning.split_plan import StreamPlan
from jaxgen.offload.planning.restore_plan import ContextCost
from jaxgen.scheduling.average import NEWS, Average

NEAR = 0.7
"""Least ratio of the device's time to the link's at which a step is used to correct the device's rates."""
EXPLAINED = 1.05
"""Largest ratio of the time per layer to the link's time at which the link is taken to set the pace."""
DOUBT = 0.02
"""Share of the device's correction that a step drops if the link sets its pace.

The device then gets more work. Without it the device could not show that it is fast again.
"""
MOST_CHANGE = 4.0
"""Largest factor, up or down, by which one step may find the device slower or faster."""


@dataclass(slots=True)
class StreamMeter:
    """Rates of streamed steps. ``decodes``, ``prompts``: rates measured at start, of steps of decodes only and of steps
    with longer chunks. ``cost``: of a token in one layer. ``chunk``: tokens in a copy."""

    decodes: StreamRates
    prompts: StreamRates
    cost: ContextCost
    chunk: int
    link_slowness: Average = field(default_factory=Average)
    """Time of the link now, as a multiple of its time at start."""
    device_slowness: float = 1.0
    """Time of the device in layers now, as a multiple of its time at start."""

    def rates(self, *, decodes: bool) -> StreamRates:
        """Return the current rates."""
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
        """Return the plan of a step that streams this number of tokens."""
        return self.rates(decodes=decodes).plan(tokens, self.cost, self.chunk)

    def seconds(self, tokens: int, project: int, *, decodes: bool) -> float:
        """Predict the seconds of a step that streams ``tokens`` and projects the first ``project`` of them."""
        rates = self.rates(decodes=decodes)
        unit = rates.unit(self.cost, self.chunk)
        return rates.stack(tokens).seconds(project, tokens - project, unit=unit, chunk=self.chunk)

    def observe_link(self, num_bytes: int, copies: int, seconds: float) -> None:
        """Observe copies of ``num_bytes`` in total, during which the link was busy for ``seconds``."""
        rates = self.decodes
        expected = num_bytes / rates.bytes_per_second + copies * rates.copy_seconds
        if expected > 0.0:
            self.link_slowness.observe(seconds / expected)

    def observe_step(self, tokens: int, project: int, seconds: float, *, decodes: bool) -> None:
        """Observe the seconds of a step that streamed ``tokens`` and projected the first ``project`` of them."""
        now = self.rates(decodes=decodes)
        if now.num_layers == 1:
            return  # one layer has no pace
        unit, stack, transfer = now.unit(self.cost, self.chunk), now.stack(tokens), tokens - project
        link = project * unit.x + transfer * unit.kv
        device = (project * unit.project if project else 0.0) + stack.device_seconds
        if device < NEAR * link:
            return
        first = unit.makespan(project, transfer, chunk=self.chunk) + stack.device_seconds
        per_layer = (seconds - stack.other_seconds - first) / (stack.layers - 1)
        change = min(max(per_layer / device, 1 / MOST_CHANGE), MOST_CHANGE)
        if per_layer > EXPLAINED * link:
            self.device_slowness *= 1 + NEWS * (change - 1)
            return
        self.device_slowness *= 1 + NEWS * (min(change, 1.0) - 1)  # the device is at least that fast
        self.device_slowness += DOUBT * (1 - self.device_slowness)
