"""Runs plans whose KV cache is in host memory: each step brings it through the device, layer by layer (KVPR, arXiv
2411.17089).

The device holds the parameters, one layer's context, the copies under way and the blocks that are being written. With
two buffers, the next layer's context is copied while a layer computes: one buffer is the pool, the other is what has
been copied and not yet put there. It may hold two layers' context, no more: copies for layer i + 1 begin when layer
i - 1 has been computed.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import numpy as np

from jaxgen.config import EngineConfig, ModelConfig
from jaxgen.layerwise import LayerPrograms, WidthPrograms, take_apart
from jaxgen.models import PackedParams
from jaxgen.offload.layer_store import LayerStore
from jaxgen.offload.layer_stream import HostPiece, Incoming, LayerStream
from jaxgen.offload.stream_rates import Split, StepSeconds, transfer_all
from jaxgen.programs import RowPrograms
from jaxgen.row_state import RowLoader, init_rows
from jaxgen.step import StepOutput
from jaxgen.step_batch import Packer, StepBatch
from jaxgen.step_plan import StepPlan

Ask = Callable[[int], Incoming]


@dataclass(frozen=True, slots=True)
class Streaming:
    """How a context crosses the link. ``overlap`` False: a layer waits for all of its context, and the link for it."""

    split: Split
    overlap: bool = True


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
    ) -> None:
        """Takes the layers' parameters apart, which copies them.

        ``num_open``: as ``programs`` were compiled for, LayerStore.most_open or more.
        ``bytes_per_second``: simulates slower links.
        """
        self.streaming = Streaming(transfer_all)
        self.seconds: StepSeconds | None = None
        """Of the last step, if nothing overlapped."""
        self._ends, self._layers = take_apart(dict(params))
        self._programs, self._row_programs = programs, rows
        self._loader = RowLoader(config, model.vocab_size)
        self._token_budget, self._narrow_width = config.scheduler.token_budget, config.narrow_width
        self._packers = {width: Packer(config, width) for width in programs.widths}
        self._store: LayerStore[HostPiece] = LayerStore(config.cache.num_blocks, num_open, config.cache.block_size)
        self.stream = LayerStream(programs, self._layers, self._store, bytes_per_second=bytes_per_second)
        self._pool = programs.make_pool()
        self._rows = init_rows(config, model.vocab_size)

    def run(self, plan: StepPlan) -> StepOutput:
        """Load the rows that the plan admits and run its step; what it returns may still be on its way.

        Raises what a copy raised; then nothing that is in memory may be relied on.
        """
        self._rows = self._row_programs.load(self._rows, plan, self._loader)
        self.stream.take_over_saved(wait=False)
        while not self._store.has_room(plan.chunks):
            if not self.stream.take_over_saved(wait=True):
                break
        return self._step(plan)

    def wait(self) -> None:
        """Until everything dispatched has been computed, and all that is full is in host memory."""
        jax.block_until_ready((self._pool, self._rows))
        while self.stream.take_over_saved(wait=True):
            pass

    def _step(self, plan: StepPlan) -> StepOutput:
        started, before = time.perf_counter(), self.stream.traffic
        blocks, size = self._store.begin(plan.chunks), self._store.block_size
        split = self.streaming.split(len(blocks.streamed) * size) // size
        ask = partial(self.stream.ask, project=blocks.streamed[:split], transfer=blocks.streamed[split:])
        asked = deque([ask(0)] if self.streaming.overlap else [])
        width = self._width_of(plan)
        programs, words = self._programs.widths[width], self._packers[width].pack(plan)
        places = np.array(blocks.places, np.int32)
        self._rows, batch, x = programs.begin(self._ends, self._pool, self._rows, words, places)
        if self.streaming.overlap:
            x = self._overlapped(programs, x, batch, ask, asked)
        else:
            x, waited, device = self._in_turn(programs, x.block_until_ready(), batch, ask)
        self._rows, output = programs.end(self._ends, self._rows, x, batch)
        for block in blocks.filled:
            self.stream.save(self._pool, block)
        output.tokens.copy_to_host_async()
        if not self.streaming.overlap:
            output.tokens.block_until_ready()
            other = time.perf_counter() - started - waited - device
            copied = self.stream.traffic.since(before)
            tokens, projected = len(blocks.streamed) * size, split * size
            self.seconds = StepSeconds(
                tokens, projected, copied.copies, copied.num_bytes, copied.seconds, device, other
            )
        return output

    def _width_of(self, plan: StepPlan) -> int:
        decodes_only = plan.num_tokens == len(plan.chunks)
        return self._narrow_width if decodes_only and self._narrow_width is not None else self._token_budget

    def _overlapped(
        self, programs: WidthPrograms, x: jax.Array, batch: StepBatch, ask: Ask, asked: deque[Incoming]
    ) -> jax.Array:
        for index, params in enumerate(self._layers):
            if index + 1 < len(self._layers):
                x.block_until_ready()  # so that no more than two layers' context is copied and not in the pool
                asked.append(ask(index + 1))
            self._pool = self.stream.take(self._pool, asked.popleft())
            self._pool, x = programs.layer(params, self._pool, x, batch, np.int32(index))
        return x

    def _in_turn(
        self, programs: WidthPrograms, x: jax.Array, batch: StepBatch, ask: Ask
    ) -> tuple[jax.Array, float, float]:
        """Beside the last layer's output, seconds of waiting for copies, and of the device."""
        waited = device = 0.0
        for index, params in enumerate(self._layers):
            began = time.perf_counter()
            incoming = ask(index)
            self.stream.wait(incoming)
            landed = time.perf_counter()
            self._pool = self.stream.take(self._pool, incoming)
            self._pool, x = programs.layer(params, self._pool, x, batch, np.int32(index))
            x.block_until_ready()
            waited, device = waited + landed - began, device + time.perf_counter() - landed
        return x, waited, device
