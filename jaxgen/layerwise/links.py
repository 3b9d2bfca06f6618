"""The links between device and host memory, in both directions, for one stream of layers or several that share them."""

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
"""An array in host memory: JAX's in pinned memory, numpy's in pageable memory."""


class Links:
    """A link in each direction, and the seconds in which the device was idle because it waited for a copy."""

    def __init__(self, *, bytes_per_second: float | None = None, pinned: bool = True) -> None:
        """``bytes_per_second``: simulates slower links, in each direction. ``pinned`` False: host memory is pageable,
        for comparison."""
        self.landed = threading.Condition()
        self.put_on_host, put_on_device = _pinned_copies() if pinned else _pageable_copies()
        self.down = Link("layers-down", self.put_on_host, self.landed, bytes_per_second=bytes_per_second)
        self.up = Link("layers-up", put_on_device, self.landed, bytes_per_second=bytes_per_second)
        self.idle_seconds = 0.0
        """Seconds in which all dispatched programs were done and a copy was waited for."""
        self.dispatched: Any = ()
        """Output of the last dispatched program of a layer."""

    def simulate(self, bytes_per_second: float | None) -> None:
        """Delay copies, both ways and from now on, as links of this bandwidth would; None: do not."""
        self.down.bytes_per_second = self.up.bytes_per_second = bytes_per_second

    def wait(self, transfer: Transfer) -> Any:
        """Wait for a transfer and return its copies. Raises what a copy raised."""
        with self.landed:
            while not transfer.done:
                self.landed.wait()
        if transfer.error is not None:
            raise transfer.error
        return transfer.pieces

    def wait_idle(self, transfer: Transfer, dispatched: Any) -> Any:
        """Wait as ``wait`` does, for copies without which the device cannot go on, and count its idle time.

        The device is idle once it has computed ``dispatched`` and the output that a layer dispatched last.
        """
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
