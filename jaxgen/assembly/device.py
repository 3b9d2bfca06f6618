"""Prepare the device before JAX opens it, and ask for its free memory: a GPU's share of memory, a CPU's threads."""

import logging
import os

import jax
from jax._src import xla_bridge  # no public function tells whether a backend is initialized

from jaxgen.core.division import FLAG
from jaxgen.core.errors import ConfigError
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


def check_devices(wanted: int) -> None:
    """Raise ConfigError if JAX has fewer devices than a model is divided between."""
    there = jax.devices()
    if len(there) < wanted:
        virtual = f"; a CPU is {wanted} with JAX_NUM_CPU_DEVICES={wanted}" if there[0].platform == "cpu" else ""
        raise ConfigError(f"{FLAG} {wanted}: JAX has {len(there)} ({there[0].device_kind}), so use less{virtual}")


def device_memory(num_devices: int = 1, *, was_open: bool) -> DeviceMemory:
    """Return the free memory of each of JAX's first devices. ``was_open``: JAX had opened them before the engine was
    made."""
    devices, host = jax.devices()[:num_devices], host_memory()
    found = [free_memory(device, was_open=was_open) for device in devices]
    free = min((one for one in found if one is not None), default=host.available // num_devices)
    return DeviceMemory(devices[0].platform, free, host.total, host.limit)
