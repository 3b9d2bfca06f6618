"""The device's part of offloading: run the saves and restores of plans between steps and next to them.

A save gathers a block, or a snapshot of states, into staging memory. The program that does so runs in the order of the
steps, so the next step may overwrite what it read. A link copies it to the host from staging memory. A restore copies
from the host into staging memory; a program between two steps then scatters K and V into the cache, projects layer
inputs, or puts a snapshot in its place. So no copy reads or writes a block of the cache itself.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import batched
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from jaxgen.core.host_dtype import HostDType
from jaxgen.core.sequence import Restore
from jaxgen.core.step_plan import Save, StepPlan
from jaxgen.offload.planning.rates import LinkRate, RateMeter
from jaxgen.offload.planning.staging import RESTORING_GROUPS, STATES_EACH_WAY
from jaxgen.offload.tiers.host_store import HostBlock
from jaxgen.offload.tiers.offload_tier import OffloadTier
from jaxgen.offload.transfer.block_format import ArrayFormat
from jaxgen.offload.transfer.copy_programs import compile_blocks, compile_states, host_piece
from jaxgen.offload.transfer.link import Link, Transfer
from jaxgen.offload.transfer.projection import Projection
from jaxgen.runner.model_runner import ModelRunner
from jaxgen.scheduling.average import Average

logger = logging.getLogger(__name__)

HOST_MEMORY = "pinned_host"
MEASURED_COPIES = 3
"""Copies that are timed; the first is slower and does not count."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Blocks that are copied together: as K and V, or as layer inputs of tokens from position ``start`` on.

    ``kind``: the number of the kind of cache that the blocks are of.
    ``snapshot``: the place of a snapshot, whose states are copied in place of blocks.
    """

    blocks: tuple[int, ...]
    pieces: tuple[Any, ...]
    start: int | None = None
    snapshot: int | None = None
    kind: int = 0


@dataclass(slots=True, eq=False)
class _Incoming:
    """A restore under way: the groups not submitted yet, and the number of groups being copied."""

    restore: Restore
    groups: deque[_Group]
    started: float
    under_way: int = field(default=0)
    failed: bool = field(default=False)

    @property
    def dropped(self) -> bool:
        return self.failed or self.restore.cancelled


class KVTransfer:
    """Copies blocks between device and host, from the engine's thread; links have threads of their own.

    Compiles its programs when it is made.
    """

    def __init__(
        self,
        device: ModelRunner,
        tier: OffloadTier,
        meter: RateMeter,
        *,
        groups: Sequence[int],
        host_dtype: HostDType = "auto",
        projection: Projection | None = None,
    ) -> None:
        """``groups``: blocks of each kind of cache that are gathered or scattered together. ``projection``: None unless
        the device's cache keeps inputs."""
        self._device = device
        self._tier = tier
        self._meter = meter
        self._projection = projection
        self.projected = 0
        """Tokens whose projection the last ``poll`` dispatched."""
        self._projecting_since = 0.0
        """When the last ``poll`` began to dispatch projections."""
        self._input_bytes = 0
        """Bytes of layer inputs copied to the device."""
        self._arrived = threading.Condition()
        here = jax.devices()[0]
        to_host, to_device = SingleDeviceSharding(here, memory_kind=HOST_MEMORY), SingleDeviceSharding(here)
        self.down = Link("save", lambda x: jax.device_put(x, to_host), self._arrived)
        self.up = Link("restore", lambda x: jax.device_put(x, to_device), self._arrived)
        self._to_gather: deque[tuple[Save, ...]] = deque()
        """Saves to gather; empty except while a plan is started or after that failed."""
        self._saving: deque[tuple[tuple[bytes, ...], Transfer]] = deque()
        self._incoming: deque[_Incoming] = deque()
        self._staged: deque[tuple[_Incoming, _Group, Transfer]] = deque()
        self._host_dtype, self._to_host = host_dtype, to_host
        self._copies = [compile_blocks(device.cache, group, host_dtype, kind) for kind, group in enumerate(groups)]
        self._most_staged = RESTORING_GROUPS * max(copies.group_bytes for copies in self._copies)
        snapshots = device.snapshots.arrays
        self._states = compile_states(snapshots) if snapshots else None

    def measure(self) -> None:
        """Time both links by copying some blocks to the host and back, and time the projection.

        The meter's earlier values of these are dropped.
        """
        copies = self._copies[0]
        pieces = copies.gather(self._device.cache, copies.ids(()), np.int32(copies.group))
        jax.block_until_ready(pieces)
        self._meter.save, self._meter.restore = LinkRate(), LinkRate()
        for link, rate in ((self.down, self._meter.save), (self.up, self._meter.restore)):
            for copy in range(MEASURED_COPIES):
                transfer = link.submit(pieces)
                with self._arrived:
                    while not transfer.done:
                        self._arrived.wait()
                if transfer.error is not None:
                    raise transfer.error
                if copy:
                    rate.observe(transfer.num_bytes, transfer.seconds)
            pieces = transfer.pieces
        if self._projection is not None:
            self._meter.projection = Average(self._projection.measure())

    def state_format(self) -> ArrayFormat | None:
        """Return the format of bytes of the snapshots in host memory; None: there are none."""
        snapshots = self._device.snapshots.arrays
        of_one = tuple(jax.ShapeDtypeStruct(array.shape[1:], array.dtype) for array in snapshots)
        return ArrayFormat(of_one, None, self._to_host) if snapshots else None

    def block_formats(self) -> tuple[ArrayFormat, ...]:
        """Return the format of bytes of each kind's blocks in host memory."""
        cache = self._device.cache
        inputs = None if cache.inputs is None else jax.ShapeDtypeStruct(cache.inputs.shape[1:], cache.inputs.dtype)
        pieces = [host_piece(cache, self._host_dtype, kind) for kind in range(len(cache.arrays))]
        return tuple([ArrayFormat(piece, inputs, self._to_host) for piece in pieces])

    def link_stats(self) -> dict[str, Any]:
        """Return bytes copied and seconds that the links were busy, each way, with the names of OffloadStats."""
        down, up = self.down, self.up
        return {
            "saved_bytes": down.num_bytes,
            "save_link_seconds": down.busy_seconds,
            "restored_bytes": up.num_bytes,
            "restored_input_bytes": self._input_bytes,
            "restore_link_seconds": up.busy_seconds,
        }

    @property
    def busy(self) -> bool:
        return bool(self._saving or self._incoming or self._staged)

    def start(self, plan: StepPlan) -> None:
        """Start the plan's saves and restores. Call it before the plan's step, which may overwrite blocks to save."""
        for restore in plan.restores:
            self._incoming.append(_Incoming(restore, deque(self._groups(restore)), time.perf_counter()))
        for save in plan.state_saves:
            assert self._states is not None, "who has no snapshots saves none"
            state = self._states.gather(self._device.snapshots.arrays, np.int32(save.block))
            self._saving.append(((save.key,), self.down.submit(((state, None),))))
        for kind, copies in enumerate(self._copies):
            self._to_gather.extend(batched([save for save in plan.saves if save.kind == kind], copies.group))
        while self._to_gather:
            saves = self._to_gather[0]
            copies = self._copies[saves[0].kind]
            ids = copies.ids(save.block for save in saves)
            gathered = copies.gather(self._device.cache, ids, np.int32(len(saves)))
            pieces = tuple(
                (kv, inputs if save.has_inputs else None) for (kv, inputs), save in zip(gathered, saves, strict=False)
            )
            self._saving.append((tuple(save.key for save in saves), self.down.submit(pieces)))
            self._to_gather.popleft()
        self._submit()

    def poll(self) -> list[tuple[Restore, bool]]:
        """Enter finished copies. Return the restores that have ended, and whether each is complete."""
        self.projected = 0
        while self._saving and self._saving[0][1].done:
            self._end_save(*self._saving.popleft())
        while self._staged and self._staged[0][2].done:
            self._end_group(*self._staged.popleft())
        self._submit()
        return list(self._ended())

    def wait(self, seconds: float) -> None:
        """Wait until a copy ends, for ``seconds`` at most. Projections are waited for first, and timed."""
        if self.projected:
            self._device.wait()
            self._meter.projection.observe((time.perf_counter() - self._projecting_since) / self.projected)
        first = [queue[0][-1] for queue in (self._saving, self._staged) if queue]
        with self._arrived:
            if first and not any(transfer.done for transfer in first):
                self._arrived.wait(seconds)

    def fail(self) -> None:
        """Forget all copies under way; what the links still have of them reaches nobody."""
        for queue in (self._to_gather, self._saving, self._incoming, self._staged):
            queue.clear()

    def _groups(self, restore: Restore) -> Iterator[_Group]:
        """Yield the groups of a restore in the order of their copies: those to project come first."""
        projected, size = restore.num_projected, 1 if self._projection is None else self._projection.group
        for first in range(0, projected, size):
            part = slice(first, min(first + size, projected))
            inputs = tuple(piece.inputs for piece in restore.pieces[part])
            yield _Group(restore.blocks[part], inputs, restore.start + first * self._device.cache.block_size)
        copied = [(0, restore.blocks[projected:], restore.pieces[projected:])]
        copied += [(window.kind, window.blocks, window.pieces) for window in restore.windows]
        for kind, blocks, pieces in copied:
            size = self._copies[kind].group
            for first in range(0, len(blocks), size):
                part = slice(first, first + size)
                yield _Group(blocks[part], tuple(piece.kv for piece in pieces[part]), kind=kind)
        if restore.state is not None:
            yield _Group((), (restore.state.piece.kv,), snapshot=restore.state.snapshot)

    def _submit(self) -> None:
        for incoming in self._incoming:
            if incoming.dropped:
                incoming.groups.clear()
            while incoming.groups and self._has_room(incoming.groups[0]):
                group = incoming.groups.popleft()
                incoming.under_way += 1
                self._staged.append((incoming, group, self.up.submit(group.pieces)))

    def _has_room(self, group: _Group) -> bool:
        if group.snapshot is not None:
            return sum(staged.snapshot is not None for _, staged, _ in self._staged) < STATES_EACH_WAY
        groups = [group, *[staged for _, staged, _ in self._staged]]
        return sum(map(self._staged_bytes, groups)) <= self._most_staged

    def _staged_bytes(self, group: _Group) -> int:
        copies = self._copies[group.kind]
        return len(group.blocks) * copies.group_bytes // copies.group

    def _end_save(self, keys: tuple[bytes, ...], transfer: Transfer) -> None:
        if transfer.error is None:
            self._meter.save.observe(transfer.num_bytes, transfer.seconds)
            for key, piece in zip(keys, transfer.pieces, strict=True):
                self._tier.saved(key, HostBlock(*piece))
            return
        if self._tier.is_open:  # copies that were under way by then may fail too
            logger.warning("no more KV cache goes to the host's memory: a copy to it failed: %r", transfer.error)
            self._tier.close()
        for key in keys:
            self._tier.saved(key, None)

    def _end_group(self, incoming: _Incoming, group: _Group, transfer: Transfer) -> None:
        incoming.under_way -= 1
        if incoming.dropped:
            return
        if transfer.error is not None:
            logger.warning("KV cache from the host's memory is computed again: a copy failed: %r", transfer.error)
            incoming.failed = True
            return
        self._meter.restore.observe(transfer.num_bytes, transfer.seconds)
        self._place(group, transfer)

    def _place(self, group: _Group, transfer: Transfer) -> None:
        """Put a group that was copied into the cache, or among the snapshots."""
        if group.snapshot is not None:
            assert self._states is not None, "who has no snapshots restores none"
            self._device.snapshots.update(self._states.scatter, np.int32(group.snapshot), *transfer.pieces)
            return
        if group.start is not None:
            assert self._projection is not None, "who keeps no inputs plans none"
            self._input_bytes += transfer.num_bytes
            if not self.projected:
                self._projecting_since = time.perf_counter()
            self.projected += len(group.blocks) * self._device.cache.block_size
            self._projection(group.blocks, group.start, transfer.pieces)
            return
        copies, count = self._copies[group.kind], len(group.blocks)
        pieces = transfer.pieces + (transfer.pieces[0],) * (copies.group - count)
        self._device.update_cache(copies.scatter, copies.ids(group.blocks), np.int32(count), *pieces)

    def _ended(self) -> Iterator[tuple[Restore, bool]]:
        under_way: deque[_Incoming] = deque()
        for incoming in self._incoming:
            if incoming.under_way or (incoming.groups and not incoming.dropped):
                under_way.append(incoming)
                continue
            whole = not incoming.dropped
            seconds = time.perf_counter() - incoming.started
            self._tier.release(incoming.restore, whole=whole, seconds=seconds)
            yield incoming.restore, whole
        self._incoming = under_way
