"""Runs plans whose KV cache is in host memory: each step brings it through the device, layer by layer (KVPR, arXiv
2411.17089).

The device holds the parameters, one layer's context, the copies under way and the blocks that are being written. With
two buffers, the next layer's context is copied while a layer computes: one buffer is the pool, the other is what has
been copied and not yet put there. It may hold two layers' context, no more: copies for layer i + 1 begin when layer
i - 1 has been computed.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import batched

import jax
import numpy as np

from jaxgen.core.config import EngineConfig, ModelConfig
from jaxgen.core.stats import OffloadStats
from jaxgen.core.step_plan import StepPlan
from jaxgen.kernels.choice import Kernels
from jaxgen.layerwise.layer_store import LayerStore, StreamedBlock
from jaxgen.layerwise.layer_stream import HostPiece, Incoming, LayerStream, Stage, Traffic, run_stages
from jaxgen.layerwise.layer_weights import Layers
from jaxgen.layerwise.links import Links
from jaxgen.layerwise.meter import StreamMeter
from jaxgen.layerwise.programs import LayerPrograms, WidthPrograms, take_apart
from jaxgen.layerwise.rates import Split, StepSeconds, transfer_all
from jaxgen.models import PackedParams
from jaxgen.models.batch import StepBatch
from jaxgen.models.placement import pack_params
from jaxgen.runner.packer import Packer
from jaxgen.runner.programs import RowPrograms
from jaxgen.runner.row_state import RowLoader, init_rows
from jaxgen.runner.step import StepOutput


@dataclass(frozen=True)
class CompiledLayers:
    """All programs of a LayerwiseRunner."""

    layers: LayerPrograms
    rows: RowPrograms

    @property
    def temporary_bytes(self) -> int:
        return self.layers.temporary_bytes


@dataclass(frozen=True, slots=True)
class Streaming:
    """How a context crosses the link.

    ``overlap`` False: a layer waits for all of its context, and the link for it. ``prompts``: the split of steps that
    hold more than decodes; None: the same. ``buffers`` 1, for comparison: the next layer's context is only asked for
    when a layer has been computed.
    """

    split: Split
    overlap: bool = True
    prompts: Split | None = None
    buffers: int = 2

    def split_of(self, plan: StepPlan) -> Split:
        return self.split if self.prompts is None or plan.decodes_only else self.prompts


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


class LayerwiseRunner:
    """``ModelRunner`` for contexts in host memory; the number of blocks is what the host may hold.

    ``run`` returns when its step is done, since the host has a part in every layer.
    """

    runs_ahead = False

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
        """Takes the layers' parameters apart, which copies them one by one and empties ``params``.

        ``num_open``: as ``programs`` were compiled for, LayerStore.most_open or more. ``bytes_per_second``: simulates
        slower links. ``layers``: their parameters, where ``params`` are only the others. ``links``: those to use.
        """
        self.streaming = Streaming(transfer_all)
        self.seconds: StepSeconds | None = None
        """Of the last step, if nothing overlapped."""
        self.meter: StreamMeter | None = None
        """Set: it predicts what each step takes and learns what the link does; only from then on are steps counted."""
        self._ends, taken_apart = take_apart(pack_params(model, params, programs.kernels))
        self._layers: Layers = taken_apart if layers is None else layers
        self._programs, self._row_programs = programs, rows
        self._loader = RowLoader(config, model.vocab_size)
        self._token_budget, self._narrow_width = config.scheduler.token_budget, config.narrow_width
        self._packers = {width: Packer(config, width) for width in programs.widths}
        self._model, self._config, self._num_open = model, config, num_open
        self._store = self._make_store()
        links = Links(bytes_per_second=bytes_per_second) if links is None else links
        self.stream = LayerStream(programs, self._layers, self._store, links)
        self._counters = OffloadStats()
        self.reset()

    @property
    def kernels(self) -> Kernels:
        """What the programs are built of."""
        return self._programs.kernels

    def reset(self) -> None:
        """Forget everything but the parameters, whatever a step or a copy that failed has left."""
        self.__dict__.pop("_pool", None)  # first, since two may not fit
        self._store = self._make_store()
        self.stream.forget(self._store)
        self._pool = self._programs.make_pool()
        self._rows = init_rows(self._config, self._model.vocab_size)

    def disable_narrow(self) -> None:
        """Run every plan by the one shape."""
        self._narrow_width = None

    def uses_narrow(self, plan: StepPlan) -> bool:
        """Whether the plan holds decodes only and there is a program for these."""
        return self._narrow_width is not None and plan.decodes_only

    def load(self, plan: StepPlan) -> None:
        """Load the rows that the plan admits."""
        self._rows = self._row_programs.load(self._rows, plan, self._loader)

    def run(self, plan: StepPlan, *, narrow: bool | None = None, again: bool = False) -> StepOutput:
        """Load the rows that the plan admits and run its step; returns when it is done.

        ``narrow`` says by which program, ``again`` that the same plan will be run once more.
        Raises what a copy raised; then nothing that is in memory may be relied on before ``reset``.
        """
        before, started = self.stream.traffic, time.perf_counter()
        step = self.begin(plan, narrow=narrow)
        if again:
            step.filled = ()
        output = self._run_overlapped(step) if self.streaming.overlap else self._run_in_turn(step, started, before)
        output.tokens.block_until_ready()
        self._count(plan, step, self.stream.traffic.since(before), time.perf_counter() - started)
        return output

    def offload_stats(self) -> OffloadStats:
        """A snapshot for metrics: tokens streamed stand for those found, steps for restores."""
        down, up = self.stream.down, self.stream.up
        return replace(
            self._counters,
            host_blocks_total=self._store.num_blocks,
            host_blocks=len(self._store),
            saved_blocks=self.stream.saved_blocks,
            saved_bytes=down.num_bytes,
            save_link_seconds=down.busy_seconds,
            restored_bytes=up.num_bytes,
            idle_seconds=self.stream.links.idle_seconds,
            restore_link_seconds=up.busy_seconds,
        )

    def wait(self) -> None:
        """Until everything dispatched has been computed, and all that is full is in host memory."""
        jax.block_until_ready((self._pool, self._rows))
        while self.stream.take_over_saved(wait=True):
            pass

    def begin(self, plan: StepPlan, *, narrow: bool | None = None) -> LayeredStep:
        """Load the rows that the plan admits, open the blocks that it writes to, and embed its tokens."""
        self.load(plan)
        self.stream.take_over_saved(wait=False)
        while not self._store.has_room(plan.chunks, plan.idle):
            if not self.stream.take_over_saved(wait=True):
                break
        blocks, size = self._store.begin(plan.chunks, plan.idle), self._store.block_size
        split = self.streaming.split_of(plan)(len(blocks.streamed) * size) // size
        width = self._token_budget
        if self._narrow_width is not None and (plan.decodes_only if narrow is None else narrow):
            width = self._narrow_width
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

    def fill(self, blocks: Iterable[int]) -> None:
        """Have blocks in host memory as if steps had written them, with some content. For measurements."""
        for block in blocks:
            self.stream.fill(self._pool, block)

    def projects_to_bits(self, blocks: Iterable[StreamedBlock]) -> bool:
        """Whether K and V projected from the inputs of these full blocks have the bits of those on the host.

        Overwrites what the device has of a layer, which every step brings anew.
        """
        groups = list(batched(blocks, self._programs.group))
        for layer in range(len(self._layers)):
            for group in groups:
                self._pool = self.stream.take(self._pool, self.stream.ask(layer, group, ()))
                for one in group:
                    found, written = self._pool.cache.data[one.block], self._store.piece(one.block).kv[layer]
                    if np.asarray(found).tobytes() != np.asarray(written).tobytes():
                        return False
        return True

    @property
    def itemsize(self) -> int:
        """Bytes of an element of the cache, and of the layers' inputs."""
        return self._pool.cache.data.dtype.itemsize

    def _make_store(self) -> LayerStore[HostPiece]:
        cache = self._config.cache
        return LayerStore(cache.num_blocks, self._num_open, cache.block_size, window=self._model.sliding_window)

    def _count(self, plan: StepPlan, step: LayeredStep, copied: Traffic, seconds: float) -> None:
        if self.meter is None:
            return
        counters, size = self._counters, self._store.block_size
        project, transfer = len(step.project) * size, len(step.transfer) * size
        counters.host_hit_tokens += project + transfer
        counters.planned_project_tokens += project
        counters.projected_tokens += project
        counters.planned_restore_tokens += transfer
        counters.restored_tokens += transfer
        if not copied.copies:
            return
        counters.restores += 1
        counters.predicted_seconds += self.meter.seconds(project + transfer, project, decodes=plan.decodes_only)
        counters.restore_seconds += seconds
        self.meter.observe_link(copied.num_bytes, copied.copies, copied.seconds)
        self.meter.observe_step(project + transfer, project, seconds, decodes=plan.decodes_only)

    def _run_overlapped(self, step: LayeredStep) -> StepOutput:
        run_stages((self.stage(step, layer) for layer in range(len(self._layers))), self.streaming.buffers)
        return self.end(step)

    def _run_in_turn(self, step: LayeredStep, started: float, before: Traffic) -> StepOutput:
        """One thing at a time, and how long each took since the step was ``started`` in ``seconds``."""
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
