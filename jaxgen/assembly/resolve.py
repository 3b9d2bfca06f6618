"""Find the model, the device and its memory for an engine, without loading anything."""

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import jax

from jaxgen.assembly.device import check_devices, device_memory, is_open, limit_threads, share_memory
from jaxgen.assembly.divide import check_division, divide
from jaxgen.assembly.find_model import find_model
from jaxgen.assembly.kernels import judge_kernels, served_shapes
from jaxgen.assembly.model_sizes import token_budget, weight_bytes
from jaxgen.assembly.resolved_model import ResolvedModel
from jaxgen.core.config import EngineOptions, HubOptions, KernelChoice, LoadFormat
from jaxgen.core.kv_dtype import parse_kv_dtype
from jaxgen.core.model_config import DType, ModelConfig
from jaxgen.core.quantization import Quantization
from jaxgen.core.tier_address import DirectoryAddress, RedisAddress, S3Address
from jaxgen.files.cache_dirs import CacheDirs, open_cache_dirs
from jaxgen.hardware.nvidia import Gpu, find_gpu
from jaxgen.kernels.proving.verdict import NOTHING_PROVEN, Finding, Verdict
from jaxgen.kv_events.config import FLAG as KV_EVENTS_FLAG
from jaxgen.kv_events.config import parse_kv_events
from jaxgen.offload.tiers.kv_tier.address import check_key, tier_address
from jaxgen.offload.tiers.kv_tier.directory import check_directory
from jaxgen.runner.model_runner import device_info
from jaxgen.sizing.memory import check_options
from jaxgen.terminal.extras import need
from jaxgen.weights.gguf.conversions import kept_conversion
from jaxgen.weights.packaged.files import packaged_file

logger = logging.getLogger(__name__)

UNPROVEN = "operations that no proof has found right"


def resolve_on_device(
    model: str | None = None,
    *,
    dtype: DType | Literal["auto"] = "auto",
    kernels: KernelChoice = "auto",
    quantization: Quantization = "none",
    load_format: LoadFormat = "auto",
    cache_dir: Path | str | None = None,
    options: EngineOptions | None = None,
    hub: HubOptions | None = None,
    budgets: Sequence[int] | None = None,
    progress: bool = True,
) -> ResolvedModel:
    """Find model, device and memory for a model directory, GGUF file or hub id (None: the embedded default).

    ``kernels``: see KernelChoice. ``quantization``: what weights become when they are loaded. ``load_format``: see
    LoadFormat. ``budgets``: token budgets of the steps that will run, if they are not the one of ``options``.
    ``progress``: whether bars may show how far the conversion of a GGUF file is. Proves a GPU's kernels before it opens
    the GPU. Raises ConfigError.
    """
    options, caches, was_open = options or EngineOptions(), open_cache_dirs(cache_dir), is_open()
    check_options(options)
    check_division(options)
    _check_tier(options)
    if parse_kv_events(options.kv_events_config) is not None:
        need("zmq", KV_EVENTS_FLAG)
    share_memory(options.gpu_memory_utilization)
    limit_threads()
    gpu = find_gpu(jax.config.jax_platforms)
    device = device_info() if gpu is None else gpu.device
    kv_dtype = parse_kv_dtype(options.kv_cache_dtype)
    find = partial(
        find_model,
        packaged_file(model, hub, caches, progress=progress),
        dtype,
        kernels,
        hub=hub,
        quantization=quantization,
        load_format=load_format,
        kv_dtype=kv_dtype,
        of_gguf=partial(kept_conversion, caches=caches, quantization=quantization, progress=progress),
    )
    directory, config = find(device=device)
    division = divide(config, options)
    verdict = NOTHING_PROVEN
    if gpu is None and device.compute_capability is not None:
        gpu = Gpu(device, driver="")  # JAX took a GPU that find_gpu did not find: it is open, and kernels are unproven
    if gpu is not None:
        verdict = _prove_kernels(gpu, division.part if division else config, options, kernels, caches, budgets)
    opened = device_info()
    check_devices(options.tensor_parallel_size)
    if not opened.computes_as(device):  # the driver has a GPU that JAX did not take
        reason = f"JAX opened {opened.title}, they were proven for {device.title}"
        verdict = Verdict(otherwise=Finding("unavailable", reason))
        directory, config = find(device=opened)
        division = divide(config, options)
    memory = device_memory(options.tensor_parallel_size, was_open=was_open)
    part = division.part if division else config
    if division is not None:
        logger.info("the model is divided between %d devices, of which the log tells one's share", division.ranks)
    return ResolvedModel(directory, part, opened, memory, caches, kernels, verdict, load_format, division)


def _prove_kernels(
    gpu: Gpu,
    model: ModelConfig,
    options: EngineOptions,
    kernels: KernelChoice,
    caches: CacheDirs,
    budgets: Sequence[int] | None,
) -> Verdict:
    """Return the verdict on the GPU's kernels in the shapes that will be served."""
    room = None
    if gpu.memory_bytes is not None:
        room = int(gpu.memory_bytes * options.gpu_memory_utilization) - weight_bytes(model, gpu.device, kernels)
    # Which of the two it will be, the proof says.
    may_be = [token_budget(model, gpu.device, kernels, caches, padded) for padded in (None, UNPROVEN)]
    return judge_kernels(gpu, model, kernels, served_shapes(model, options, may_be, budgets, room), caches.proofs)


def _check_tier(options: EngineOptions) -> None:
    """Raise ConfigError for a KV tier that cannot be; a directory that is missing is made when something is written."""
    tier = tier_address(options.kv_tier, options.kv_tier_dir, options.kv_tier_password)
    if options.kv_tier_key is not None:
        check_key(options.kv_tier_key, tier)
    if isinstance(tier, DirectoryAddress):
        check_directory(tier.path, keyed=options.kv_tier_key is not None)
    package = {RedisAddress: "redis", S3Address: "obstore"}.get(type(tier))
    if package is not None:
        need(package, f"--kv-tier {tier}")
