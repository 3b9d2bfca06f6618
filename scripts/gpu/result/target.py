"""Describe the device for compilers on other machines: XLA's own description of its target, and CUDA's attributes."""

import ctypes
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

_CUDA_ATTRIBUTES = {
    "threads_per_block_limit": 1,
    "block_dim_limit_x": 5,
    "block_dim_limit_y": 6,
    "block_dim_limit_z": 7,
    "shared_memory_per_block": 8,
    "threads_per_warp": 10,
    "registers_per_block_limit": 12,
    "clock_rate_khz": 13,
    "core_count": 16,
    "memory_clock_rate_khz": 36,
    "memory_bus_width_bits": 37,
    "l2_cache_size": 38,
    "threads_per_core_limit": 39,
    "compute_capability_major": 75,
    "compute_capability_minor": 76,
    "shared_memory_per_core": 81,
    "registers_per_core_limit": 82,
    "shared_memory_per_block_optin": 97,
}
"""Names of XLA's GpuDeviceInfoProto, with numbers of CUdevice_attribute in cuda.h."""


def describe(device: jax.Device) -> dict[str, Any]:
    """Return what is known of the device. ``gpu_target_config``: a GpuTargetConfigProto as text, for
    ``jax.experimental.topologies.get_topology_desc(target_config=...)``. ``missing``: reasons by name of values that
    are not available."""
    result: dict[str, Any] = {"platform_version": device.client.platform_version}
    missing: dict[str, str] = {}
    sources: dict[str, Callable[[], Any]] = {
        "gpu_target_config": lambda: _xla_dump(device),
        "cuda": lambda: _cuda_attributes(device.local_hardware_id or 0),
        "memory_bytes_limit": lambda: (device.memory_stats() or {})["bytes_limit"],
    }
    for name, source in sources.items():
        try:
            result[name] = source()
        except Exception as error:  # one source may fail in any way; the others are still read
            missing[name] = f"{type(error).__name__}: {error}"[:500]
    return result | {"missing": missing}


def _xla_dump(device: jax.Device) -> str:
    """Return the *.gpu_target_config.pbtxt that XLA writes next to the dump of any program compiled for a GPU.

    Raises FileNotFoundError where XLA writes none.
    """
    with tempfile.TemporaryDirectory() as directory:
        unique = time.time_ns() % 2**20  # a program from the cache would not be dumped
        lowered = jax.jit(lambda x: x + unique).lower(jax.device_put(jnp.zeros(8), device))
        lowered.compile(compiler_options={"xla_dump_to": directory})
        names = sorted(path.name for path in Path(directory).iterdir())
        dumps = [name for name in names if name.endswith("gpu_target_config.pbtxt")]
        if not dumps:
            raise FileNotFoundError(f"XLA dumped no target description for {device.platform}, only {names}")
        return (Path(directory) / dumps[0]).read_text()


def _cuda_attributes(ordinal: int) -> dict[str, int]:
    """Return attributes of the ordinal-th device from the CUDA driver. Raises OSError without a driver."""
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *args: Any) -> None:
        if status := getattr(cuda, name)(*args):
            raise RuntimeError(f"{name} returned CUresult {status}")

    device, value, total = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), ordinal)
    call("cuDeviceTotalMem_v2", ctypes.byref(total), device)
    result = {"device_memory_size": total.value}
    for name, number in _CUDA_ATTRIBUTES.items():
        call("cuDeviceGetAttribute", ctypes.byref(value), number, device)
        result[name] = value.value
    call("cuDriverGetVersion", ctypes.byref(value))
    return result | {"driver_cuda_version": value.value}
