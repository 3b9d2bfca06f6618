"""Find the NVIDIA GPU that JAX would take, and the installed ptxas, without opening the GPU.

A process that has opened a GPU holds most of its memory, and ends with a kernel that faults there. So facts that are
needed before that come from the driver's library, which creates no context for them. Host only, no jax.
"""

import ctypes
import re
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from jaxgen.hardware.device_info import DeviceInfo

PLUGINS = {12: "jax_cuda12_plugin", 13: "jax_cuda13_plugin"}
"""JAX's plugins, by the major version of CUDA."""
LEAST_PTXAS = (12, 9, 86)
"""The ptxas of CUDA 12.9.1. Those of 12.8.0 to 12.9.0 compile masks of attention kernels incorrectly, so JAX's own
kernel refuses them (jax.experimental.pallas.ops.gpu.attention_mgpu); older ones have not been tried."""
_PTXAS_PACKAGES = {12: "nvidia-cuda-nvcc-cu12", 13: "nvidia-cuda-nvcc"}
_LIBRARIES = ("cuda_runtime", "cublas", "cudnn")
_MULTIPROCESSOR_COUNT, _MAJOR, _MINOR = 16, 75, 76
"""Numbers of device attributes (CUdevice_attribute)."""
_MODULE_VERSION = Path("/sys/module/nvidia/version")


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU and its driver: the CUDA version that the driver supports and, if known, its kernel module's version.

    ``memory_bytes``: all of the GPU's memory; None: unknown.
    """

    device: DeviceInfo
    driver: str
    memory_bytes: int | None = None


def find_gpu(platforms: str | None) -> Gpu | None:
    """Return the first GPU that this process may see, or None if JAX would not take it.

    ``platforms``: JAX's setting jax_platforms, which may forbid GPUs.
    """
    allowed = not platforms or not {"cuda", "gpu"}.isdisjoint(platforms.split(","))
    if not allowed or plugin() is None:
        return None
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    return _ask(driver)


def _ask(driver: ctypes.CDLL) -> Gpu | None:
    """Return the first device that a driver's library reports, or None if it has none."""
    device, supported = ctypes.c_int(), ctypes.c_int()
    name = ctypes.create_string_buffer(256)
    calls = (
        driver.cuInit(0),
        driver.cuDriverGetVersion(ctypes.byref(supported)),
        driver.cuDeviceGet(ctypes.byref(device), 0),
        driver.cuDeviceGetName(name, len(name), device),
    )
    if any(calls):
        return None
    values = []
    for attribute in (_MULTIPROCESSOR_COUNT, _MAJOR, _MINOR):
        value = ctypes.c_int()
        if driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device):
            return None
        values.append(value.value)
    cores, major, minor = values
    info = DeviceInfo("gpu", name.value.decode(), cores, compute_capability=(major, minor))
    module = ""
    with suppress(OSError):
        module = _MODULE_VERSION.read_text().strip()
    memory = ctypes.c_size_t()
    known = driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device) == 0
    return Gpu(info, f"{supported.value} {module}".strip(), memory.value if known else None)


def plugin() -> int | None:
    """Return the major version of CUDA for which JAX's plugin is installed, or None without a plugin."""
    return next((major for major, module in sorted(PLUGINS.items(), reverse=True) if find_spec(module)), None)


def ptxas() -> tuple[int, ...] | None:
    """Return the version of ptxas, the compiler of kernels, or None if it is not found."""
    major = plugin()
    return None if major is None else _ptxas(_PTXAS_PACKAGES[major])


def compiler_trouble() -> str | None:
    """Return why the installed ptxas may compile kernels incorrectly; None: it does not, or it is not found."""
    installed = ptxas()
    if installed is None or installed >= LEAST_PTXAS:
        return None
    return (
        f"ptxas {'.'.join(map(str, installed))} is older than that of CUDA 12.9.1 and may compile them wrongly: "
        f"pip install 'nvidia-cuda-nvcc-cu12>={'.'.join(map(str, LEAST_PTXAS))}'"
    )


def _ptxas(package: str) -> tuple[int, ...] | None:
    """Return the version of ``package``, or else of the ptxas in PATH."""
    with suppress(PackageNotFoundError):
        return _numbers(version(package))
    command = shutil.which("ptxas")
    if command is None:
        return None
    try:
        output = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"V(\d+\.\d+\.\d+)", output)
    return _numbers(match[1]) if match else None


def libraries() -> dict[str, str]:
    """Return the versions of ptxas and of CUDA's libraries as this process finds them, whatever installed them."""
    versions, major = {}, plugin()
    if compiler := ptxas():
        versions["ptxas"] = ".".join(map(str, compiler))
    with suppress(ImportError):
        of_plugin = import_module(f"jax_cuda{major}_plugin._versions")
        for name in _LIBRARIES:
            with suppress(AttributeError, RuntimeError):  # one that is missing
                versions[name] = str(getattr(of_plugin, f"{name}_get_version")())
    return versions


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:3])


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of the installed ones among ``packages``."""
    result = {}
    for package in packages:
        with suppress(PackageNotFoundError):
            result[package] = version(package)
    return result
