"""Describe the machine of a result: device, driver and versions."""

import platform
import subprocess
from pathlib import Path
from typing import Any

import jax

from jaxgen.hardware import nvidia
from scripts.gpu.result import target

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = (
    *("jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin", "flax", "orbax-checkpoint", "transformers", "numpy"),
    *("jaxtyping", "safetensors", "tokenizers", "ml_dtypes", "nvidia-cudnn-cu12"),
    "nvidia-cudnn-cu13",
)
_QUERIES = (
    *("name", "driver_version", "vbios_version", "pstate", "memory.total", "memory.used", "ecc.mode.current"),
    *("power.limit", "clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem", "temperature.gpu"),
)


def device_header(device: jax.Device) -> dict[str, Any]:
    """Describe the device and its driver; best called in the process that uses the device."""
    return {
        "target": target.describe(device),
        "nvidia_smi": output_of("nvidia-smi", f"--query-gpu={','.join(_QUERIES)}", "--format=csv"),
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed ones among PACKAGES."""
    return {"python": platform.python_version()} | nvidia.versions(PACKAGES)


def output_of(*command: str) -> str | None:
    """Return a command's output; None where the command is missing or fails."""
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
