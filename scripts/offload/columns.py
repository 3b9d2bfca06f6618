"""Several batches that pass through each layer in turn, with parameters in host memory too: the column-by-column
schedule of KVPR (arXiv 2411.17089) and FlexGen (arXiv 2303.06865), for throughput.

A layer's parameters cross the link once a step, whatever the number of batches, spread among the contexts of the layer
before it. While a batch computes a layer, the link brings what the next batch needs there; after the last batch, what
the first one needs of the next layer. The first layer's parameters for the next step come during the last layer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

import jax

from jaxgen.core.config import EngineConfig, ModelConfig
from jaxgen.core.step_plan import StepPlan
from jaxgen.layerwise.layer_stream import Incoming, Stage, run_stages
from jaxgen.layerwise.layer_weights import LayerWeights
from jaxgen.layerwise.links import Links
from jaxgen.layerwise.model_runner import LayeredStep, LayerwiseRunner, Streaming
from jaxgen.layerwise.programs import LayerPrograms, take_apart
from jaxgen.layerwise.rates import Split, StreamRates
from jaxgen.layerwise.split_plan import Column, plan_column
from jaxgen.models import PackedParams
from jaxgen.offload.restore_plan import ContextCost, TokenSeconds
from jaxgen.runner.programs import RowPrograms
from jaxgen.runner.step import StepOutput

Begun = tuple[LayerwiseRunner, LayeredStep]


class Columns:
    """A LayerwiseRunner for each batch, with blocks, pool and rows of its own; programs, links and weights are shared.

    Each batch has its own scheduler; a step takes a plan of each.
    """

    def __init__(
        self,
        model: ModelConfig,
        config: EngineConfig,
        params: PackedParams,
        programs: LayerPrograms,
        rows: RowPrograms,
        *,
        batches: int,
        num_open: int,
        links: Links | None = None,
    ) -> None:
        """``config``: of each batch. ``num_open``: as LayerwiseRunner has it."""
        self.links = Links() if links is None else links
        ends, layers = take_apart(dict(params), self.links.put_on_host)
        self.weights = LayerWeights(layers, self.links)
        self._devices = tuple(
            LayerwiseRunner(
                model, config, dict(ends), programs, rows, num_open=num_open, layers=self.weights, links=self.links
            )
            for _ in range(batches)
        )

    def use(self, streaming: Streaming) -> None:
        """How contexts cross the link from now on; ``overlap`` must be True."""
        if not streaming.overlap:
            raise ValueError("columns are there to overlap")
        for device in self._devices:
            device.streaming = streaming

    def wait(self) -> None:
        """Until everything dispatched has been computed, and all that is full is in host memory."""
        for device in self._devices:
            device.wait()

    def run(self, plans: Sequence[StepPlan]) -> list[StepOutput | None]:
        """Run the step of each batch's plan; what it returns may still be on its way. None for a plan without chunks.

        Raises what a copy raised; then nothing that is in memory may be relied on.
        """
        begun = [
            (device, device.begin(plan)) if plan.chunks else None
            for device, plan in zip(self._devices, plans, strict=True)
        ]
        working = [one for one in begun if one is not None]
        if working:
            run_stages(self._stages(working), self._devices[0].streaming.buffers)
        return [None if one is None else one[0].end(one[1]) for one in begun]

    def _stages(self, working: list[Begun]) -> Iterator[Stage]:
        for layer in range(len(self.weights)):
            for part, (device, step) in enumerate(working):
                yield self._stage(device.stage(step, layer), layer, part, len(working))

    def _stage(self, stage: Stage, layer: int, part: int, parts: int) -> Stage:
        """With the weights: a part of the next layer's is asked for, and before the first batch this layer's taken."""

        def ask() -> Incoming:
            incoming = stage.ask()
            self.weights.ask(layer + 1, part, parts)
            return incoming

        def compute(incoming: Incoming) -> jax.Array:
            if part == 0:
                self.weights.take(layer)
            return stage.compute(incoming)

        return replace(stage, ask=ask, compute=compute)


def column_of(rates: StreamRates, tokens: int, batches: int, weight_bytes: int) -> Column:
    """What passes a layer when each batch streams so many tokens, by rates measured with one batch."""
    weight_seconds = weight_bytes / rates.bytes_per_second
    return Column(batches, weight_seconds, rates.stack(tokens).device_seconds)


def planned_split(rates: StreamRates, cost: ContextCost, chunk: int, batches: int, weight_bytes: int) -> Split:
    """As ``plan_column`` says; ``cost``: of a token in one layer, ``chunk``: tokens of a copy."""

    @cache
    def split(tokens: int) -> int:
        column = column_of(rates, tokens, batches, weight_bytes)
        plan = plan_column(tokens, unit=rates.unit(cost, chunk), chunk=chunk, limit=tokens, column=column)
        return plan.if_it_pays().project

    return split


def step_seconds(
    rates: StreamRates, column: Column, unit: TokenSeconds, project: int, transfer: int, chunk: int
) -> float:
    """Predicted for a step in which each batch projects and transfers so many tokens of every layer.

    The first context is waited for, all behind it takes the pace of the busier resource.
    """
    other = column.batches * rates.other_seconds
    first = unit.makespan(project, transfer, chunk=chunk)
    return other + first + rates.num_layers * column.seconds(project, transfer, unit=unit)
