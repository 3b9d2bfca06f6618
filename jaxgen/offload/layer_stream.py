"""Brings each layer's context from host memory while the layer before it computes, and takes new blocks there."""

import threading
from collections import deque
from dataclasses import dataclass
from itertools import batched
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from jaxgen.layer_pool import LayerPool
from jaxgen.layerwise import LayerPrograms
from jaxgen.models import PackedParams
from jaxgen.offload.layer_store import LayerStore, SavedBlock, StreamedBlock
from jaxgen.offload.link import Link, Transfer

HOST_MEMORY = "pinned_host"


@dataclass(frozen=True, slots=True)
class HostPiece:
    """A block's content in host memory: K and V of each layer, [1, 2, K, B, D], and inputs, [B, E], if kept."""

    kv: tuple[jax.Array, ...]
    inputs: tuple[jax.Array, ...]


@dataclass(frozen=True, slots=True)
class Traffic:
    """What has been copied to the device so far: how many groups, their bytes, and the seconds that took the link."""

    copies: int
    num_bytes: int
    seconds: float

    def since(self, before: "Traffic") -> "Traffic":
        """What came after ``before``."""
        return Traffic(self.copies - before.copies, self.num_bytes - before.num_bytes, self.seconds - before.seconds)


@dataclass(frozen=True, slots=True)
class _Copy:
    """A group of blocks of one layer on its way to the device: as inputs, or as K and V."""

    blocks: tuple[StreamedBlock, ...]
    as_inputs: bool
    transfer: Transfer


@dataclass(frozen=True, slots=True)
class Incoming:
    """What was asked for one layer."""

    layer: int
    copies: tuple[_Copy, ...]


class LayerStream:
    """The links between a LayerStore's host memory and a LayerPool. Used by one thread, beside the links' own."""

    def __init__(
        self,
        programs: LayerPrograms,
        layers: tuple[PackedParams, ...],
        store: LayerStore[HostPiece],
        *,
        bytes_per_second: float | None = None,
    ) -> None:
        """``layers``: parameters. ``bytes_per_second``: simulates slower links, in each direction."""
        self._programs = programs
        self._layers = layers
        self._store = store
        self._landed = threading.Condition()
        here = jax.devices()[0]
        to_host, to_device = SingleDeviceSharding(here, memory_kind=HOST_MEMORY), SingleDeviceSharding(here)
        down = Link(
            "layers-down", lambda x: jax.device_put(x, to_host), self._landed, bytes_per_second=bytes_per_second
        )
        up = Link("layers-up", lambda x: jax.device_put(x, to_device), self._landed, bytes_per_second=bytes_per_second)
        self.down, self.up = down, up
        self._saving: deque[tuple[SavedBlock, Transfer]] = deque()
        self._copies = 0
        self.saved_blocks = 0
        """Copied to the host so far."""

    @property
    def traffic(self) -> Traffic:
        """Exact when nothing is on its way."""
        return Traffic(self._copies, self.up.num_bytes, self.up.busy_seconds)

    def forget(self, store: LayerStore[HostPiece]) -> None:
        """Work for this store from now on; what is being saved for the one before it is dropped."""
        self._saving.clear()
        self._store = store

    def ask(self, layer: int, project: tuple[StreamedBlock, ...], transfer: tuple[StreamedBlock, ...]) -> Incoming:
        """Begin to bring a layer's context: inputs of ``project``, then K and V of ``transfer``. Returns at once."""
        copies = []
        for blocks, as_inputs in ((project, True), (transfer, False)):
            for group in batched(blocks, self._programs.group):
                pieces = [self._store.piece(one.block) for one in group]
                content = tuple((piece.inputs if as_inputs else piece.kv)[layer] for piece in pieces)
                copies.append(_Copy(group, as_inputs, self.up.submit(content)))
        self._copies += len(copies)
        return Incoming(layer, tuple(copies))

    def wait(self, incoming: Incoming) -> None:
        """Until all of it has been copied."""
        for copy in incoming.copies:
            self._wait_for(copy.transfer)

    def take(self, pool: LayerPool, incoming: Incoming) -> LayerPool:
        """The pool with all of it as the layer's context; each copy's program is dispatched when it has landed.

        Raises what a copy raised.
        """
        programs = self._programs
        for copy in incoming.copies:
            pieces = self._wait_for(copy.transfer)
            count = len(copy.blocks)
            pieces += (pieces[0],) * (programs.group - count)
            ids, starts = np.zeros((2, programs.group), np.int32)
            ids[:count] = [one.block for one in copy.blocks]
            if not copy.as_inputs:
                pool = programs.scatter(pool, ids, np.int32(count), *pieces)
                continue
            assert programs.project is not None, "asked for only where inputs are kept"
            starts[:count] = [one.start for one in copy.blocks]
            pool = programs.project(self._layers[incoming.layer], pool, ids, starts, np.int32(count), *pieces)
        return pool

    def save(self, pool: LayerPool, block: int) -> None:
        """Begin to copy a full open block to the host; what is dispatched later may overwrite it."""
        saved = self._store.save(block)
        kv, inputs = self._programs.gather(pool, np.int32(saved.place))
        self._saving.append((saved, self.down.submit((kv, inputs))))

    def fill(self, pool: LayerPool, block: int) -> None:
        """Give a block that no step wrote some content in host memory, and wait for it. For measurements."""
        transfer = self.down.submit(self._programs.gather(pool, np.int32(self._store.num_blocks)))
        self._store.put(block, HostPiece(*self._wait_for(transfer)))

    def take_over_saved(self, *, wait: bool) -> bool:
        """Enter in the store what has reached the host. ``wait`` for one at least; False if there is none."""
        if wait and self._saving:
            self._wait_for(self._saving[0][1])
        any_saved = False
        while self._saving and self._saving[0][1].done:
            saved, transfer = self._saving.popleft()
            self._store.saved(saved, HostPiece(*self._wait_for(transfer)))
            self.saved_blocks += 1
            any_saved = True
        return any_saved

    def _wait_for(self, transfer: Transfer) -> Any:
        with self._landed:
            while not transfer.done:
                self._landed.wait()
        if transfer.error is not None:
            raise transfer.error
        return transfer.pieces
