"""The links between device and host memory, in both directions."""

import threading
import time
from typing import Any

import jax
from jax.sharding import SingleDeviceSharding

from jaxgen.offload.transfer.link import Link, Transfer

HOST_MEMORY = "pinned_host"


class Links:
    """A link in each direction, and the seconds in which the device was idle because it waited for a copy."""

    def __init__(self) -> None:
        self.arrived = threading.Condition()
        here = jax.devices()[0]
        to_host, to_device = SingleDeviceSharding(here, memory_kind=HOST_MEMORY), SingleDeviceSharding(here)
        self.down = Link("layers-down", lambda x: jax.device_put(x, to_host), self.arrived)
        self.up = Link("layers-up", lambda x: jax.device_put(x, to_device), self.arrived)
        self.idle_seconds = 0.0
        """Seconds in which all dispatched programs were done and a copy was waited for."""
        self.dispatched: Any = ()
        """Output of the last dispatched program of a layer."""

    def wait(self, transfer: Transfer) -> Any:
        """Wait for a transfer and return its copies. Raises what a copy raised."""
        with self.arrived:
            while not transfer.done:
                self.arrived.wait()
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
