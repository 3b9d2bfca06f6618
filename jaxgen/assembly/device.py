"""Prepare the device before JAX opens it, and ask for its free memory: a GPU's share of memory, a CPU's threads."""

import logging
import os

import jax
from jax._src import xla_bridge  # no public function tells whether a backend is initialized

from jaxgen.hardware.container import allowed_cores, host_memory, num_cores
from jaxgen.sizing.device_memory import DeviceMemory

logger = logging.getLogger(__name__)

_FRACTIONS = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
"""Environment variables that JAX reads when it opens a GPU: at most one of them may be set."""
THREADS = "NPROC"
"""Environment variable from which XLA takes the number of its threads, when JAX opens a CPU."""


def is_open() -> bool:
    """Whether JAX has opened its devices in this process."""
    return xla_bridge.backends_are_initialized()


def share_memory(fraction: float) -> None:
    """Set the fraction of GPU memory that JAX will take, unless the environment sets one or JAX is open already."""
    if not is_open() and not any(name in os.environ for name in _FRACTIONS):
        os.environ[_FRACTIONS[0]] = str(fraction)


def limit_threads() -> None:
    """Let XLA's CPU have no more threads than a container's quota of time fills, unless the environment says how many.

    With more, threads that wait for each other use up the quota, and all stand still until the next period.
    """
    if not is_open() and THREADS not in os.environ and (cores := num_cores()) < allowed_cores():
        os.environ[THREADS] = str(cores)
        logger.info("threads that compute, as many as the container's quota of processor time fills: %d", cores)


def free_memory(device: jax.Device, *, was_open: bool) -> int | None:
    """Return the free bytes of JAX's memory pool on an accelerator, or None if JAX does not tell.

    ``was_open``: JAX opened the device before the engine existed, so the pool has another size; logged.
    """
    stats = device.memory_stats() if device.platform != "cpu" else None
    if not stats:
        return None
    free: int = stats["bytes_limit"] - stats["bytes_in_use"]
    if was_open:
        logger.info(
            "JAX was in use before the engine, which plans with the %.2f GiB that are free of what JAX took of the %s "
            "then, whatever gpu_memory_utilization says",
            free / 2**30,
            device.device_kind,
        )
    return free


def device_memory(*, was_open: bool) -> DeviceMemory:
    """Return the free memory of the default device. ``was_open``: JAX had opened it before the engine was made."""
    device = jax.devices()[0]
    free, host = free_memory(device, was_open=was_open), host_memory()
    return DeviceMemory(device.platform, host.available if free is None else free, host.total, host.limit)
