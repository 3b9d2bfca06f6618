"""Both directions between the device and host memory, for one stream of layers or for several that share them."""

import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from jaxgen.offload.link import Link, Transfer

HOST_MEMORY = "pinned_host"
HostArray = jax.Array | np.ndarray
"""In pinned memory, of the runtime; in pageable memory, numpy's."""


class Links:
    """A link each way, and how long the device had nothing to do before what it needs had landed."""

    def __init__(self, *, bytes_per_second: float | None = None, pinned: bool = True) -> None:
        """``bytes_per_second``: simulates slower links, in each direction. ``pinned`` False: host memory is pageable,
        for comparison."""
        self.landed = threading.Condition()
        self.put_on_host, put_on_device = _pinned_copies() if pinned else _pageable_copies()
        self.down = Link("layers-down", self.put_on_host, self.landed, bytes_per_second=bytes_per_second)
        self.up = Link("layers-up", put_on_device, self.landed, bytes_per_second=bytes_per_second)
        self.idle_seconds = 0.0
        """In which all that had been dispatched was computed, and a copy was waited for."""
        self.dispatched: Any = ()
        """What the last program of a layer puts out."""

    def simulate(self, bytes_per_second: float | None) -> None:
        """Hold copies back as links of this bandwidth would, both ways, from now on; None: do not."""
        self.down.bytes_per_second = self.up.bytes_per_second = bytes_per_second

    def wait(self, transfer: Transfer) -> Any:
        """The copies, when they have landed. Raises what a copy raised."""
        with self.landed:
            while not transfer.done:
                self.landed.wait()
        if transfer.error is not None:
            raise transfer.error
        return transfer.pieces

    def wait_idle(self, transfer: Transfer, dispatched: Any) -> Any:
        """The same, for copies without which the device cannot go on: they keep it idle once it has computed
        ``dispatched`` and what a layer dispatched last."""
        if transfer.done:
            return self.wait(transfer)
        jax.block_until_ready((dispatched, self.dispatched))
        began = time.perf_counter()
        pieces = self.wait(transfer)
        self.idle_seconds += time.perf_counter() - began
        return pieces


def _pinned_copies() -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    here = jax.devices()[0]
    to_host, to_device = SingleDeviceSharding(here, memory_kind=HOST_MEMORY), SingleDeviceSharding(here)
    return lambda x: jax.device_put(x, to_host), lambda x: jax.device_put(x, to_device)


def _pageable_copies() -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    here = SingleDeviceSharding(jax.devices()[0])
    # without may_alias=False a CPU would compute from numpy's own memory
    return lambda x: jax.tree.map(np.array, x), lambda x: jax.device_put(x, here, may_alias=False)
