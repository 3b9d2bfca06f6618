"""Runs plans whose KV cache is in host memory: each step brings it through the device, layer by layer (KVPR, arXiv
2411.17089).

The device holds the parameters, one layer's context, the copies under way and the blocks that are being written. With
two buffers, the next layer's context is copied while a layer computes: one buffer is the pool, the other is what has
been copied and not yet put there. It may hold two layers' context, no more: copies for layer i + 1 begin when layer
i - 1 has been computed.
"""

import time
from dataclasses import dataclass
from functools import partial

import jax
import numpy as np

from jaxgen.config import EngineConfig, ModelConfig
from jaxgen.layerwise import LayerPrograms, WidthPrograms, take_apart
from jaxgen.models import PackedParams
from jaxgen.offload.layer_store import LayerStore, StreamedBlock
from jaxgen.offload.layer_stream import HostPiece, Incoming, LayerStream, Stage, run_stages
from jaxgen.offload.layer_weights import Layers
from jaxgen.offload.links import Links
from jaxgen.offload.stream_rates import Split, StepSeconds, transfer_all
from jaxgen.programs import RowPrograms
from jaxgen.row_state import RowLoader, init_rows
from jaxgen.step import StepOutput
from jaxgen.step_batch import Packer, StepBatch
from jaxgen.step_plan import StepPlan


@dataclass(frozen=True, slots=True)
class Streaming:
    """How a context crosses the link.

    ``overlap`` False: a layer waits for all of its context, and the link for it. ``buffers`` 1, for comparison: the
    next layer's context is only asked for when a layer has been computed.
    """

    split: Split
    overlap: bool = True
    buffers: int = 2


@dataclass(slots=True, eq=False)
class LayeredStep:
    """A step on its way through the layers. ``project``, ``transfer``: the context that each of them needs, as inputs
    and as K and V. ``filled``: open blocks that it writes the last token of."""

    programs: WidthPrograms
    batch: StepBatch
    x: jax.Array
    """[T, E]: what the last layer that was dispatched put out."""
    project: tuple[StreamedBlock, ...]
    transfer: tuple[StreamedBlock, ...]
    filled: tuple[int, ...]


class StreamedDevice:
    """``jaxgen.device.Device`` for contexts in host memory; the number of blocks is what the host may hold."""

    def __init__(
        self,
        model: ModelConfig,
        config: EngineConfig,
        params: PackedParams,
        programs: LayerPrograms,
        rows: RowPrograms,
        *,
        num_open: int,
        bytes_per_second: float | None = None,
        layers: Layers | None = None,
        links: Links | None = None,
    ) -> None:
        """Takes the layers' parameters apart, which copies them.

        ``num_open``: as ``programs`` were compiled for, LayerStore.most_open or more. ``bytes_per_second``: simulates
        slower links. ``layers``: their parameters, where ``params`` are only the others. ``links``: those to use.
        """
        self.streaming = Streaming(transfer_all)
        self.seconds: StepSeconds | None = None
        """Of the last step, if nothing overlapped."""
        self._ends, taken_apart = take_apart(dict(params))
        self._layers: Layers = taken_apart if layers is None else layers
        self._programs, self._row_programs = programs, rows
        self._loader = RowLoader(config, model.vocab_size)
        self._token_budget, self._narrow_width = config.scheduler.token_budget, config.narrow_width
        self._packers = {width: Packer(config, width) for width in programs.widths}
        self._store: LayerStore[HostPiece] = LayerStore(config.cache.num_blocks, num_open, config.cache.block_size)
        links = Links(bytes_per_second=bytes_per_second) if links is None else links
        self.stream = LayerStream(programs, self._layers, self._store, links)
        self._pool = programs.make_pool()
        self._rows = init_rows(config, model.vocab_size)

    def run(self, plan: StepPlan) -> StepOutput:
        """Load the rows that the plan admits and run its step; what it returns may still be on its way.

        Raises what a copy raised; then nothing that is in memory may be relied on.
        """
        return self._run_overlapped(plan) if self.streaming.overlap else self._run_in_turn(plan)

    def wait(self) -> None:
        """Until everything dispatched has been computed, and all that is full is in host memory."""
        jax.block_until_ready((self._pool, self._rows))
        while self.stream.take_over_saved(wait=True):
            pass

    def begin(self, plan: StepPlan) -> LayeredStep:
        """Load the rows that the plan admits, open the blocks that it writes to, and embed its tokens."""
        self._rows = self._row_programs.load(self._rows, plan, self._loader)
        self.stream.take_over_saved(wait=False)
        while not self._store.has_room(plan.chunks):
            if not self.stream.take_over_saved(wait=True):
                break
        blocks, size = self._store.begin(plan.chunks), self._store.block_size
        split = self.streaming.split(len(blocks.streamed) * size) // size
        width = self._width_of(plan)
        programs, words = self._programs.widths[width], self._packers[width].pack(plan)
        places = np.array(blocks.places, np.int32)
        self._rows, batch, x = programs.begin(self._ends, self._pool, self._rows, words, places)
        return LayeredStep(programs, batch, x, blocks.streamed[:split], blocks.streamed[split:], blocks.filled)

    def ask(self, step: LayeredStep, layer: int) -> Incoming:
        """Begin to bring a layer's context; returns at once."""
        return self.stream.ask(layer, step.project, step.transfer)

    def compute(self, step: LayeredStep, layer: int, incoming: Incoming) -> None:
        """Dispatch a layer of the step, when its context has landed. Raises what a copy raised."""
        self._pool = self.stream.take(self._pool, incoming)
        self._pool, step.x = step.programs.layer(self._layers[layer], self._pool, step.x, step.batch, np.int32(layer))
        self.stream.links.dispatched = step.x

    def stage(self, step: LayeredStep, layer: int) -> Stage:
        """Both for one layer of a step."""

        def compute(incoming: Incoming) -> jax.Array:
            self.compute(step, layer, incoming)
            return step.x

        return Stage(partial(self.ask, step, layer), compute)

    def end(self, step: LayeredStep) -> StepOutput:
        """Dispatch the sampling, and begin to copy full blocks to the host."""
        self._rows, output = step.programs.end(self._ends, self._rows, step.x, step.batch)
        for block in step.filled:
            self.stream.save(self._pool, block)
        output.tokens.copy_to_host_async()
        return output

    def _width_of(self, plan: StepPlan) -> int:
        decodes_only = plan.num_tokens == len(plan.chunks)
        return self._narrow_width if decodes_only and self._narrow_width is not None else self._token_budget

    def _run_overlapped(self, plan: StepPlan) -> StepOutput:
        step = self.begin(plan)
        run_stages((self.stage(step, layer) for layer in range(len(self._layers))), self.streaming.buffers)
        return self.end(step)

    def _run_in_turn(self, plan: StepPlan) -> StepOutput:
        """One thing at a time, and how long each took in ``seconds``."""
        started, before = time.perf_counter(), self.stream.traffic
        step = self.begin(plan)
        step.x.block_until_ready()
        waited = device = 0.0
        for index in range(len(self._layers)):
            began = time.perf_counter()
            incoming = self.ask(step, index)
            self.stream.wait(incoming)
            landed = time.perf_counter()
            self.compute(step, index, incoming)
            step.x.block_until_ready()
            waited, device = waited + landed - began, device + time.perf_counter() - landed
        output = self.end(step)
        output.tokens.block_until_ready()
        other = time.perf_counter() - started - waited - device
        copied, size = self.stream.traffic.since(before), self._store.block_size
        projected = len(step.project) * size
        tokens = projected + len(step.transfer) * size
        self.seconds = StepSeconds(tokens, projected, copied.copies, copied.num_bytes, copied.seconds, device, other)
        return output
