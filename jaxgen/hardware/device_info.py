"""The facts about a device that decisions depend on, and the choice of the dtype. Host only, no jax."""

import platform
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from jaxgen.core.model_config import DType
from jaxgen.hardware.container import num_cores

_VECTOR_FEATURE = re.compile(r"(avx|amx|fma|asimd|sve|bf16|i8mm)\w*")
_BF16_FEATURES = {"avx512_bf16", "amx_bf16"}
_BF16_CAPABILITY = (8, 0)


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One device. ``kind``: its model, as JAX or the processor names it. ``num_cores``: cores of a CPU that this
    process may use, or multiprocessors of a GPU. ``features``: vector instructions of a CPU, sorted.
    ``compute_capability``: of an NVIDIA GPU."""

    platform: str
    kind: str
    num_cores: int
    features: tuple[str, ...] = ()
    compute_capability: tuple[int, int] | None = None

    @property
    def is_cpu(self) -> bool:
        return self.platform == "cpu"

    def computes_as(self, other: "DeviceInfo") -> bool:
        """Whether kernels made for one device fit the other, even if their names differ."""
        ours, theirs = ((device.platform, device.compute_capability, device.num_cores) for device in (self, other))
        return ours == theirs

    @property
    def title(self) -> str:
        """Name and size of the device, for reports."""
        part = "core" if self.is_cpu else "multiprocessor"
        return f"{self.kind}, {self.num_cores} {part}{'' if self.num_cores == 1 else 's'}"


def this_cpu(cpuinfo: Path = Path("/proc/cpuinfo")) -> DeviceInfo:
    """Return the processor of this machine. Without a ``cpuinfo`` file its features are unknown and left empty."""
    text = cpuinfo.read_text() if cpuinfo.is_file() else ""
    name = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    features = {flag for flag in flags[1].split() if _VECTOR_FEATURE.fullmatch(flag)} if flags else set()
    return DeviceInfo("cpu", name[1] if name else platform.machine(), num_cores(), tuple(sorted(features)))


def choose_dtype(checkpoint: DType, device: DeviceInfo, native_dtypes: Collection[str]) -> DType:
    """Return the dtype to compute a checkpoint in: its own, or float32 if that is faster. It never loses precision.

    ``native_dtypes``: dtypes of the native kernels that the device will have. Float32 holds every bfloat16 and float16
    exactly. A dtype that a CPU has no arithmetic for is converted by XLA at each use (docs/tuning.md has the times).
    GPUs before compute capability 8.0 have no bfloat16. They have float16, which cannot hold bfloat16's range.
    """
    capability = device.compute_capability
    if device.is_cpu:
        arithmetic = {"float32"} if _BF16_FEATURES.isdisjoint(device.features) else {"float32", "bfloat16"}
        fast = checkpoint in arithmetic or checkpoint in native_dtypes
    else:
        fast = checkpoint != "bfloat16" or capability is None or capability >= _BF16_CAPABILITY
    return checkpoint if fast else "float32"
