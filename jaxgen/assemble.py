"""Build an engine from weights, tokenizer and device: the composition root of the package."""

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import jax

from jaxgen.core.cache_dirs import open_cache_dirs
from jaxgen.core.config import (
    DType,
    EngineOptions,
    HubOptions,
    KernelChoice,
    LoadFormat,
)
from jaxgen.core.kv_dtype import parse_kv_dtype
from jaxgen.core.kv_events import FLAG as KV_EVENTS_FLAG
from jaxgen.core.kv_events import parse_kv_events
from jaxgen.core.model_info import EmbeddingFormat, ModelInfo, PoolingChoice
from jaxgen.core.quantization import Quantization
from jaxgen.core.tier_address import DirectoryAddress, RedisAddress, S3Address, check_key, tier_address
from jaxgen.engine.async_engine import AsyncEngine
from jaxgen.engine.engine import Engine
from jaxgen.hardware.container import host_memory
from jaxgen.hardware.nvidia import Gpu, find_gpu
from jaxgen.kernels.verdict import Verdict
from jaxgen.model_choice import find_model, longrope_note, token_budget, weight_bytes
from jaxgen.model_texts import read_texts
from jaxgen.offload.kv_tier.directory import check_directory
from jaxgen.opening import free_memory, is_open, judge_kernels, limit_threads, served_shapes, share_memory
from jaxgen.resolved_model import ResolvedModel
from jaxgen.runner.compilation_cache import persistent_compilation
from jaxgen.runner.model_runner import device_info
from jaxgen.sizing.device_memory import DeviceMemory
from jaxgen.sizing.memory import check_options
from jaxgen.terminal.extras import need
from jaxgen.text.constraint import Constraints
from jaxgen.weights.gguf.conversions import kept_conversion
from jaxgen.weights.huggingface.pooling import texts_differ
from jaxgen.weights.packaged.default_model import DEMO
from jaxgen.weights.packaged.files import packaged_file

logger = logging.getLogger(__name__)

TINY_NOTE = "a tiny random model made on the spot, whose text means nothing; name a real one with --model"


def find_parts(
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
    verdict = None
    if gpu is None and device.compute_capability is not None:
        gpu = Gpu(device, driver="")  # JAX took a GPU that find_gpu did not find: it is open, and kernels are unproven
    if gpu is not None:
        budget = token_budget(config, device, kernels, caches).tokens
        room = None
        if gpu.memory_bytes is not None:
            used = int(gpu.memory_bytes * options.gpu_memory_utilization)
            room = used - weight_bytes(config, device, kernels)
        shapes = served_shapes(config, options, budget, budgets, room)
        verdict = judge_kernels(gpu, config, kernels, shapes, caches.proofs)
    opened = device_info()
    if not opened.computes_as(device):  # the driver has a GPU that JAX did not take
        verdict = Verdict("unavailable", f"JAX opened {opened.title}, they were proven for {device.title}")
        directory, config = find(device=opened)
    memory = device_memory(was_open=was_open)
    return ResolvedModel(directory, config, opened, memory, caches, kernels, verdict, load_format)


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


def device_memory(*, was_open: bool) -> DeviceMemory:
    """Return the free memory of the default device. ``was_open``: JAX had opened it before the engine was made."""
    device = jax.devices()[0]
    free, host = free_memory(device, was_open=was_open), host_memory()
    return DeviceMemory(device.platform, host.available if free is None else free, host.total, host.limit)


def load_engine(
    model: str | None = None,
    *,
    served_name: str | None = None,
    dtype: DType | Literal["auto"] = "auto",
    kernels: KernelChoice = "auto",
    quantization: Quantization = "none",
    load_format: LoadFormat = "auto",
    options: EngineOptions | None = None,
    hub: HubOptions | None = None,
    tokenizer: str | None = None,
    generation_config: str = "auto",
    chat_template: Path | str | None = None,
    pooling: PoolingChoice = "auto",
    cache_dir: Path | str | None = None,
    compilation_cache: bool = True,
    progress: bool = False,
) -> AsyncEngine:
    """Return an engine, not started yet, for a model directory, GGUF file or hub id (None: the embedded default).

    Reads configuration and tokenizer and plans memory here; loads and compiles in the engine's thread after ``start``.
    ``load_format`` "dummy": weights are random, and the model needs no files of them.
    ``tokenizer``: a directory or hub id, also of the chat template; None: the model's own. ``generation_config``: see
    ``read_sampling_defaults``. ``chat_template``: the name of one of jaxgen's own, or a file; None: the tokenizer's
    own. ``pooling``: of embeddings.
    ``cache_dir`` (None: the user's) keeps compiled programs, unless ``compilation_cache`` is off, and other files for
    the next start. Raises ConfigError that names the invalid flag or file.
    """
    options = options or EngineOptions()
    parts = find_parts(
        model,
        dtype=dtype,
        kernels=kernels,
        quantization=quantization,
        load_format=load_format,
        cache_dir=cache_dir,
        options=options,
        hub=hub,
        progress=progress,
    )
    words, texts = read_texts(
        parts.directory,
        parts.model.vocab_size,
        parts.caches,
        tokenizer=tokenizer,
        chat_template=chat_template,
        generation_config=generation_config,
        pooling=pooling,
        hub=hub,
    )
    config = parts.resolve(options)
    if note := longrope_note(parts.model, config.scheduler.max_model_len):
        logger.info("%s", note)
    if not parts.model.generates:
        logger.info(
            "%s has no head (lm_head.weight): it is served for embeddings alone, pooled by: %s",
            parts.directory,
            texts.pooling,
        )
    for warning in texts_differ(parts.directory, config.scheduler.max_model_len):
        logger.warning("%s", warning)

    def build() -> Engine:
        with persistent_compilation(parts.caches.compiled if compilation_cache else None):
            return parts.build(config, options, texts, progress=progress)

    info = ModelInfo(
        served_name or model or "jaxgen-default",
        config.scheduler.max_model_len,
        parts.model.vocab_size,
        note=TINY_NOTE if model is None and parts.directory != DEMO else "",
        chat=texts.chat,
        embedding=EmbeddingFormat(parts.model.output_size, texts.pooling),
        defaults=texts.defaults,
        embedded=model is None,
        generates=parts.model.generates,
    )
    return AsyncEngine(info, words, build, Constraints(words, parts.model.vocab_size, texts.eos_token_ids))
