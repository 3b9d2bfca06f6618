"""Run plans with a KV cache in host memory: each step copies the context that it reads to the device, layer by layer
(KVPR, arXiv 2411.17089).

The device holds the parameters, one layer's context, the copies under way and the blocks that are being written. With
two buffers, the next layer's context is copied while a layer computes: one buffer is the pool, the other holds the
copies that are not in the pool yet. The device holds the context of two layers at most: copies for layer i + 1 begin
when layer i - 1 has been computed. Layers that have a state in place of K and V have no context, so these numbers do
not count them: copies go on while they compute.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import batched

import jax
import numpy as np

from jaxgen.core.config import EngineConfig
from jaxgen.core.model_config import ModelConfig
from jaxgen.core.stats import OffloadStats
from jaxgen.core.step_plan import StepPlan
from jaxgen.kernels.kernels import Kernels
from jaxgen.layerwise.layer_stream import HostPiece, Incoming, LayerStream, Traffic
from jaxgen.layerwise.layered_step import LayeredStep
from jaxgen.layerwise.planning.layer_store import LayerStore, StreamedBlock
from jaxgen.layerwise.planning.meter import StreamMeter
from jaxgen.layerwise.planning.rates import Split, transfer_all
from jaxgen.layerwise.programs import LayerPrograms, take_apart
from jaxgen.models.layer_pattern import kv_places
from jaxgen.models.model import PackedParams
from jaxgen.models.placement import pack_params
from jaxgen.runner.finite import is_finite
from jaxgen.runner.packer import Packer
from jaxgen.runner.programs import RowPrograms
from jaxgen.runner.row_state import RowLoader, init_rows
from jaxgen.runner.state_snapshots import DeviceSnapshots, StatePrograms, states_on_device, states_on_host
from jaxgen.runner.step import StepOutput


@dataclass(frozen=True)
class CompiledLayers:
    """All programs of a LayerwiseRunner."""

    layers: LayerPrograms
    rows: RowPrograms
    states: StatePrograms | None = None
    """None: there are no snapshots of states."""

    @property
    def kernels(self) -> Kernels:
        return self.layers.kernels

    @property
    def temporary_bytes(self) -> int:
        return self.layers.temporary_bytes


@dataclass(frozen=True, slots=True)
class Streaming:
    """The share of a context that comes as inputs. ``prompts``: in steps with longer chunks than decodes; None:
    ``split``."""

    split: Split
    prompts: Split | None = None

    def split_of(self, plan: StepPlan) -> Split:
        return self.split if self.prompts is None or plan.decodes_only else self.prompts


class LayerwiseRunner:
    """``ModelRunner`` for a KV cache in host memory; the number of blocks is the number in host memory.

    ``run`` returns when its step is done, since the host copies blocks for every layer.
    """

    runs_ahead = False
    copies_blocks = False
    _rehearses = False

    def __init__(
        self,
        model: ModelConfig,
        config: EngineConfig,
        params: PackedParams,
        programs: LayerPrograms,
        rows: RowPrograms,
        *,
        num_open: int,
        states: StatePrograms | None = None,
    ) -> None:
        """Take the layers' parameters apart, which copies them one by one and empties ``params``.

        ``num_open``: as ``programs`` were compiled for, LayerStore.most_open or more. ``states``: None: plans have no
        copies of states.
        """
        self.streaming = Streaming(transfer_all)
        self.meter: StreamMeter | None = None
        """Predicts the time of each step and learns the rates of link and device; without it no steps are counted."""
        self._ends, self._layers = take_apart(pack_params(model, params, programs.kernels), model)
        self._programs, self._row_programs = programs, rows
        self._loader = RowLoader(config, model.vocab_size)
        self._token_budget, self._narrow_width = config.scheduler.token_budget, config.narrow_width
        self._packers = {width: Packer(config, width) for width in programs.widths}
        self._model, self._config, self._num_open = model, config, num_open
        self._store = self._make_store()
        self._places = kv_places(model)
        self.stream = LayerStream(programs, self._layers, self._places, self._store)
        self._snapshots = DeviceSnapshots(model, config, states, programs.kernels)
        self._counters = OffloadStats()
        self.reset()

    @property
    def num_layers(self) -> int:
        return len(self._layers)

    @property
    def num_contexts(self) -> int:
        """The number of layers with K and V, whose context is copied."""
        return len(self._places)

    @property
    def block_size(self) -> int:
        return self._config.cache.block_size

    @property
    def kernels(self) -> Kernels:
        """The kernels of the programs."""
        return self._programs.kernels

    def reset(self) -> None:
        """Forget everything but the parameters, also after a step or a copy that failed."""
        for name in ("_pool", "_rows"):  # first, since two of each may not fit
            self.__dict__.pop(name, None)
        self._store = self._make_store()
        self.stream.forget(self._store)
        self._snapshots.reset()
        self._pool = self._programs.make_pool()
        self._rows = init_rows(self._config, self._model.vocab_size)

    def disable_narrow(self) -> None:
        """Run all plans with the wide program."""
        self._narrow_width = None

    def uses_narrow(self, plan: StepPlan) -> bool:
        """Whether the plan has decodes only and there is a narrow program for that number."""
        return self._narrow_width is not None and plan.decodes_only and plan.num_tokens <= self._narrow_width

    def load(self, plan: StepPlan) -> None:
        """Copy states as the plan says, and load the rows that it admits."""
        if plan.state_loads:
            self._pool = self._pool.with_states(self._snapshots.load(self._pool.cache.states, plan.state_loads))
        self._rows = self._row_programs.load(self._rows, plan, self._loader)

    def run(self, plan: StepPlan, *, narrow: bool | None = None) -> StepOutput:
        """Load the rows that the plan admits and run its step; return when it is done.

        ``narrow``: which program runs it. Raises what a copy raised; then the content of cache and rows is undefined
        until ``reset``.
        """
        before, started = self.stream.traffic, time.perf_counter()
        step = self.begin(plan, narrow=narrow)
        if self._rehearses:
            step.filled = ()
        self._compute_all(step)
        output = self.end(step)
        output.tokens.block_until_ready()
        self._count(plan, step, self.stream.traffic.since(before), time.perf_counter() - started)
        return output

    def _compute_all(self, step: LayeredStep) -> None:
        """Dispatch all layers of a step, each once its context has arrived, which is copied ahead."""
        contexts = iter(self._places)
        coming = self.ask(step, next(contexts))
        before: jax.Array | None = None
        for layer in range(self.num_layers):
            if layer not in self._places:
                self.compute(step, layer, Incoming(layer, ()))
                continue
            arrived, following = coming, next(contexts, None)
            if following is not None:
                if before is not None:
                    before.block_until_ready()  # two buffers: the layer before has released one of them
                coming = self.ask(step, following)
            self.compute(step, layer, arrived)
            before = step.x

    @contextmanager
    def rehearsal(self) -> Iterator[None]:
        """See Runner. Blocks that the step fills stay open, as the next run writes them too."""
        states = states_on_host(self._pool.cache.states)
        self._rehearses = True
        try:
            yield
        finally:
            self._rehearses = False
        self._pool = self._pool.with_states(())  # first, since two of each may not fit
        self._pool = self._pool.with_states(states_on_device(states))

    def first_not_finite(self, plan: StepPlan) -> int:
        """Return the first layer whose output has NaN or infinity, see ``Runner.first_not_finite``."""
        step = self.begin(plan, narrow=False)
        for layer in range(self.num_layers):
            if not is_finite(step.x, plan.num_tokens):
                return layer - 1
            self.compute(step, layer, self.ask(step, layer))
        return self.num_layers - int(not is_finite(step.x, plan.num_tokens))

    def offload_stats(self) -> OffloadStats:
        """Return a snapshot for metrics: streamed tokens count as hits, and steps that stream as restores."""
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
        """Wait until all dispatched programs are done and all full blocks are in host memory."""
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
        if self._narrow_width is not None and (self.uses_narrow(plan) if narrow is None else narrow):
            width = self._narrow_width
        programs, words = self._programs.widths[width], self._packers[width].pack(plan)
        places = np.array(blocks.places, np.int32)
        self._rows, batch, x = programs.begin(self._ends, self._pool, self._rows, words, places)
        project, transfer = blocks.streamed[:split], blocks.streamed[split:]
        return LayeredStep(programs, batch, x, project, transfer, blocks.filled, plan.snapshots)

    def ask(self, step: LayeredStep, layer: int) -> Incoming:
        """Begin to copy a layer's context, and return at once."""
        return self.stream.ask(layer, step.project, step.transfer)

    def compute(self, step: LayeredStep, layer: int, incoming: Incoming) -> None:
        """Dispatch a layer of the step once its context has arrived. Raises what a copy raised."""
        self._pool = self.stream.take(self._pool, incoming)
        program = step.programs.layers[layer]
        self._pool, step.x = program(self._layers[layer], self._pool, step.x, step.batch, np.int32(layer))
        self.stream.links.dispatched = step.x

    def end(self, step: LayeredStep) -> StepOutput:
        """Dispatch the sampling, take the snapshots of states, and begin to copy full blocks to the host."""
        self._rows, output = step.programs.end(self._ends, self._rows, step.x, step.batch)
        self._snapshots.take(self._pool.cache.states, step.snapshots)
        for block in step.filled:
            self.stream.save(self._pool, block)
        output.tokens.copy_to_host_async()
        return output

    def fill(self, blocks: Iterable[int]) -> None:
        """Put blocks into host memory, with some content, as if steps had written them. For measurements."""
        for block in blocks:
            self.stream.fill(self._pool, block)

    def projects_to_bits(self, blocks: Iterable[StreamedBlock]) -> bool:
        """Whether K and V projected from the inputs of these full blocks have the same bits as those on the host.

        Overwrites the device's blocks of one layer, which each step copies again.
        """
        groups = list(batched(blocks, self._programs.group))
        for layer, place in self._places.items():
            for group in groups:
                self._pool = self.stream.take(self._pool, self.stream.ask(layer, group, ()))
                for streamed in group:
                    projected, stored = (
                        self._pool.cache.data[streamed.block],
                        self._store.piece(streamed.block).kv[place],
                    )
                    if np.asarray(projected).tobytes() != np.asarray(stored).tobytes():
                        return False
        return True

    def _make_store(self) -> LayerStore[HostPiece]:
        cache = self._config.cache
        return LayerStore(cache.num_blocks, self._num_open, cache.block_size, window=self._model.widest_window)

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
