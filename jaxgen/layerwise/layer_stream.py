"""Copy each layer's context from host memory while the layer before it computes, and copy new blocks to the host."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import batched

import jax
import numpy as np

from jaxgen.layerwise.layer_pool import LayerPool
from jaxgen.layerwise.links import Links
from jaxgen.layerwise.planning.layer_store import LayerStore, SavedBlock, StreamedBlock
from jaxgen.layerwise.programs import LayerPrograms
from jaxgen.models.model import PackedParams
from jaxgen.offload.transfer.link import Transfer


@dataclass(frozen=True, slots=True)
class HostPiece:
    """A block's content in host memory: of each layer that attends K and V, [1, 2, K, B, row], and inputs, [B, E], if
    kept."""

    kv: tuple[jax.Array, ...]
    inputs: tuple[jax.Array, ...]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Copies to the device so far: number of groups, their bytes, and the seconds that the link was busy."""

    copies: int
    num_bytes: int
    seconds: float

    def since(self, before: "Traffic") -> "Traffic":
        """Return the copies since ``before``."""
        return Traffic(self.copies - before.copies, self.num_bytes - before.num_bytes, self.seconds - before.seconds)


@dataclass(frozen=True, slots=True)
class _Copy:
    """A group of blocks of one layer that is being copied to the device: as inputs, or as K and V."""

    blocks: tuple[StreamedBlock, ...]
    as_inputs: bool
    transfer: Transfer


@dataclass(frozen=True, slots=True)
class Incoming:
    """The copies that were begun for one layer."""

    layer: int
    copies: tuple[_Copy, ...]


class LayerStream:
    """Copies blocks between a LayerStore's host memory and a LayerPool. Used by one thread; links have their own."""

    def __init__(
        self,
        programs: LayerPrograms,
        layers: tuple[PackedParams, ...],
        places: Mapping[int, int],
        store: LayerStore[HostPiece],
    ) -> None:
        """``layers``: parameters of the layers. ``places``: the layers with a context, and its place in a HostPiece."""
        self._programs = programs
        self._layers = layers
        self._places = places
        self._store = store
        self.links = Links()
        self.down, self.up = self.links.down, self.links.up
        self._saving: deque[tuple[SavedBlock, Transfer]] = deque()
        self._copies = 0
        self.saved_blocks = 0
        """Blocks copied to the host so far."""

    @property
    def traffic(self) -> Traffic:
        """Copies to the device so far; exact when none is under way."""
        return Traffic(self._copies, self.up.num_bytes, self.up.busy_seconds)

    def forget(self, store: LayerStore[HostPiece]) -> None:
        """Use this store from now on, and drop the saves under way for the one before it."""
        self._saving.clear()
        self._store = store

    def ask(self, layer: int, project: tuple[StreamedBlock, ...], transfer: tuple[StreamedBlock, ...]) -> Incoming:
        """Begin to copy a layer's context: inputs of ``project``, then K and V of ``transfer``. Returns at once.

        A layer with a state has no context.
        """
        if layer not in self._places:
            return Incoming(layer, ())
        copies, place = [], self._places[layer]
        for blocks, as_inputs in ((project, True), (transfer, False)):
            for group in batched(blocks, self._programs.group):
                pieces = [self._store.piece(streamed.block) for streamed in group]
                content = tuple((piece.inputs if as_inputs else piece.kv)[place] for piece in pieces)
                copies.append(_Copy(group, as_inputs, self.up.submit(content)))
        self._copies += len(copies)
        return Incoming(layer, tuple(copies))

    def wait(self, incoming: Incoming) -> None:
        """Wait until all copies of a layer have ended; the time counts as idle time of the device."""
        for copy in incoming.copies:
            self.links.wait_idle(copy.transfer, ())

    def take(self, pool: LayerPool, incoming: Incoming) -> LayerPool:
        """Return the pool with all of ``incoming`` as the layer's context.

        The program of each copy is dispatched when the copy has ended. Raises what a copy raised.
        """
        programs = self._programs
        for copy in incoming.copies:
            pieces = self.links.wait_idle(copy.transfer, pool)
            count = len(copy.blocks)
            pieces += (pieces[0],) * (programs.group - count)
            ids, starts = np.zeros((2, programs.group), np.int32)
            ids[:count] = [streamed.block for streamed in copy.blocks]
            if not copy.as_inputs:
                pool = programs.scatter(pool, ids, np.int32(count), *pieces)
                continue
            starts[:count] = [streamed.start for streamed in copy.blocks]
            arguments = ids, starts, np.int32(count), np.int32(incoming.layer)
            pool = programs.project[incoming.layer](self._layers[incoming.layer], pool, *arguments, *pieces)
        return pool

    def save(self, pool: LayerPool, block: int) -> None:
        """Begin to copy a full open block to the host; programs dispatched later may overwrite it."""
        saved = self._store.save(block)
        kv, inputs = self._programs.gather(pool, np.int32(saved.place))
        self._saving.append((saved, self.down.submit((kv, inputs))))

    def fill(self, pool: LayerPool, block: int) -> None:
        """Give a block that no step wrote some content in host memory, and wait for the copy. For measurements."""
        transfer = self.down.submit(self._programs.gather(pool, np.int32(self._store.num_blocks)))
        self._store.put(block, HostPiece(*self.links.wait(transfer)))

    def take_over_saved(self, *, wait: bool) -> bool:
        """Enter blocks that have reached the host in the store; ``wait``: for at least one. False if there was none."""
        if wait and self._saving:
            self.links.wait(self._saving[0][1])
        any_saved = False
        while self._saving and self._saving[0][1].done:
            saved, transfer = self._saving.popleft()
            self._store.saved(saved, HostPiece(*self.links.wait(transfer)))
            self.saved_blocks += 1
            any_saved = True
        return any_saved
