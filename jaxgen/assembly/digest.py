"""Gather what the bits of an engine's answers depend on. Imports no jax.

Bits do not depend on these, so they are left out: threads and cores of a CPU, directories, prefix caching, offloading
in the cache's own numbers, and limits of the server. The narrow program is left out too, since it is used only where
its bits equal those of the wide one.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from jaxgen.core.config import EngineConfig
from jaxgen.core.identity import DIGITS, Identity, digest_of
from jaxgen.core.model_config import ModelConfig
from jaxgen.hardware.device_info import DeviceInfo
from jaxgen.hardware.nvidia import libraries, versions

_PACKAGES = ("jaxgen", "jax", "jaxlib", "tokenizers", "llguidance")
_GPU_PACKAGES = (
    *(f"jax-cuda{major}-{part}" for major in (12, 13) for part in ("plugin", "pjrt")),
    *(f"nvidia-{name}{suffix}" for name in ("cublas", "cuda-nvcc", "cudnn") for suffix in ("-cu12", "-cu13", "")),
)
_VARIABLES = ("NVIDIA_TF32_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG")
"""Environment variables by which NVIDIA's libraries compute other bits."""
_NO_BITS = re.compile(
    r"xla_(gpu_)?dump_.*|xla_detailed_logging|xla_hlo_profile|xla_force_host_platform_device_count"
    r"|xla_cpu_multi_thread_eigen|xla_gpu_cuda_data_dir|xla_gpu_kernel_cache_file"
    r"|xla_gpu_per_fusion_autotune_cache_dir|xla_gpu_experimental_autotune_cache_mode|xla_gpu_load_autotune_results_from"
)
"""XLA's flags that change no bits, or only by results of autotuning, which are in the text of compiled programs."""
_ELSEWHERE = {"server", "terminal", "tools"}
"""Rooms that compute nothing of an answer's tokens."""
_METADATA = re.compile(r', metadata=\{(?:[^"{}]|"(?:[^"\\]|\\.)*")*\}')
_FIRST_COMPUTATION = re.compile(r"^(?:%|ENTRY )", re.MULTILINE)
_BACKEND_CONFIG = "backend_config="
_PALLAS = 'custom_call_target="mosaic_gpu'
_FINGERPRINT = re.compile(r'fingerprint_before_lhs="\w*"')
"""Of the whole program with the code of its Pallas kernels."""


def identify(
    device: DeviceInfo,
    model: ModelConfig,
    config: EngineConfig,
    *,
    kernels: Mapping[str, Any],
    settings: Mapping[str, Any],
    programs: Iterable[str],
    weights: str,
    texts: Mapping[str, Any],
    environment: Mapping[str, str] = os.environ,
) -> Identity:
    """Return the identity of an engine.

    ``kernels``: their name, how they were compiled, and whose each operation's are. ``settings``: of JAX. ``programs``:
    the compiled texts of a GPU's, which show the results of autotuning; a CPU's have none, and show its number of
    cores. ``weights``: the digest of their files. ``texts``: how requests become tokens and answers end.
    """
    packages = _PACKAGES if device.is_cpu else (*_PACKAGES, *_GPU_PACKAGES)
    return Identity(
        {
            "versions": versions(packages) | ({} if device.is_cpu else libraries()),
            "sources": sources_digest(),
            "device": _device(device),
            "kernels": dict(kernels),
            "xla": {
                "flags": xla_flags(environment.get("XLA_FLAGS", "")),
                "environment": {name: environment[name] for name in _VARIABLES if name in environment},
                "settings": dict(settings),
            },
            "model": _model(model),
            "steps": _steps(config),
            "programs": [] if device.is_cpu else [program_digest(text) for text in programs],
            "weights": weights,
            "texts": dict(texts),
        }
    )


def xla_flags(text: str) -> dict[str, str]:
    """Return the value of each flag in XLA_FLAGS that may change bits; of a path, the digest of what is there.

    As XLA reads it: a text that does not begin with a dash names a file of flags, and the last value of a flag counts.
    """
    if text and not text.lstrip().startswith("-"):
        text = _content(text.strip())
    pairs = (word.lstrip("-").partition("=") for word in text.split())
    named = {name: value if given else "true" for name, given, value in pairs}
    return {
        name: hashlib.sha256(_content(value).encode()).hexdigest()[:DIGITS] if "/" in value else value
        for name, value in sorted(named.items())
        if not _NO_BITS.fullmatch(name)
    }


def program_digest(text: str) -> str:
    """Return the digest of a compiled program's text, without what tells where it was made.

    Tables of source files and metadata are left out, and fields of the compiler's choices, whose order in the text is
    arbitrary, are sorted. Code of Pallas kernels names their source files, and is left out too: it follows from
    jaxgen's sources, JAX's version, the model, the steps and the device, which are parts of their own.
    """
    head = _FINGERPRINT.sub("", text.partition("\n")[0])
    start = _FIRST_COMPUTATION.search(text)
    body = text[start.start() :] if start else text
    lines = (_without_places(line) for line in _METADATA.sub("", body).splitlines())
    return hashlib.sha256("\n".join((head, *lines)).encode()).hexdigest()[:DIGITS]


def _without_places(line: str) -> str:
    """Return an instruction with its fields sorted, of a Pallas kernel without its code."""
    before, separator, after = line.partition(_BACKEND_CONFIG)
    if not separator or _PALLAS in before:
        return before
    try:
        value, end = json.JSONDecoder().raw_decode(after)
    except ValueError:  # some are not JSON, and have one order
        return line
    return f"{before}{separator}{json.dumps(value, sort_keys=True)}{after[end:]}"


def _content(path: str) -> str:
    """Return the text of a file, or the path where there is none."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return path


def _device(device: DeviceInfo) -> dict[str, Any]:
    """Return what of a device decides bits: of a CPU not its cores, of a GPU all, as kernels divide work by them."""
    facts: dict[str, Any] = {"platform": device.platform, "kind": device.kind}
    if device.is_cpu:
        return {**facts, "features": list(device.features)}
    return {**facts, "compute_capability": device.compute_capability, "multiprocessors": device.num_cores}


def _model(model: ModelConfig) -> dict[str, Any]:
    kinds = sorted({form.title for _, parts in model.weight_formats for form in parts.forms})
    return {
        "dtype": model.dtype,
        "kv_cache_dtype": model.kv_dtype,
        "quantization": kinds,
        "fp8_inputs": model.fp8_inputs,
        "tensor_parallel_size": model.num_devices,
        "config": digest_of(repr(model)),
    }


def _steps(config: EngineConfig) -> dict[str, Any]:
    """Return the flags that shape the programs, and those by which numbers are kept with fewer bits."""
    scheduler, cache, streaming = config.scheduler, config.cache, config.streaming
    windows = {"windows": list(cache.windows), "window_blocks": list(cache.window_blocks)} if cache.windows else {}
    states = {} if cache.num_snapshots is None else {"num_snapshots": cache.num_snapshots}
    return {
        "token_budget": scheduler.token_budget,
        "max_num_seqs": scheduler.max_num_seqs,
        "max_model_len": scheduler.max_model_len,
        "block_size": cache.block_size,
        "num_blocks": cache.num_blocks,
        **windows,
        **states,
        "max_logit_bias": config.max_logit_bias,
        "keep_inputs": cache.keep_inputs,
        "kv_host_dtype": "auto" if config.offload is None else config.offload.host_dtype,
        "streaming": None if streaming is None else asdict(streaming),
    }


def sources_digest() -> str:
    """Return the digest of jaxgen's own sources that decide bits."""
    return _sources(Path(__file__).parent.parent)


@cache
def _sources(package: Path) -> str:
    """Return a digest of the Python sources that decide bits: a version alone does not tell two checkouts apart."""
    rooms = [package, package.parent / "pallas_kernels", package / "weights"]  # a checkout links weights
    digest = hashlib.sha256()
    for path in sorted({path for room in rooms for path in room.rglob("*.py")}):
        name = path.relative_to(package.parent)
        if name.parts[1] not in _ELSEWHERE:
            digest.update(f"{name.as_posix()}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:DIGITS]
