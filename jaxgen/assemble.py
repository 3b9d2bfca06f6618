"""Build an engine from weights, tokenizer and device: the composition root of the package."""

import gc
import logging
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import jax

from jaxgen.cache.block_log import BlockEventSink
from jaxgen.core.cache_dirs import CacheDirs, open_cache_dirs
from jaxgen.core.config import (
    DType,
    EngineConfig,
    EngineOptions,
    HubOptions,
    KernelChoice,
    LoadFormat,
    ModelConfig,
)
from jaxgen.core.errors import NoRoomError, one_line
from jaxgen.core.identity import Identity, digest_of
from jaxgen.core.kv_dtype import parse_kv_dtype
from jaxgen.core.kv_events import FLAG as KV_EVENTS_FLAG
from jaxgen.core.kv_events import parse_kv_events
from jaxgen.core.model_info import EmbeddingFormat, ModelInfo, PoolingChoice
from jaxgen.core.quantization import Quantization
from jaxgen.core.tier_address import RedisAddress, S3Address, tier_address
from jaxgen.engine.async_engine import AsyncEngine
from jaxgen.engine.engine import Engine
from jaxgen.engine.runners import Compiled, compile_for, program_texts
from jaxgen.hardware.container import host_memory
from jaxgen.hardware.device_info import DeviceInfo
from jaxgen.hardware.nvidia import Gpu, find_gpu
from jaxgen.identify import identify
from jaxgen.kernels.choice import Kernels, choose, reference
from jaxgen.kernels.verdict import Verdict
from jaxgen.model_choice import dequantised_bytes, find_model, token_budget, tuning_folder, weight_bytes
from jaxgen.model_texts import ModelTexts, read_texts
from jaxgen.models import PackedParams
from jaxgen.models.dummy import dummy_params
from jaxgen.models.placement import placing
from jaxgen.opening import free_memory, is_open, judge_kernels, limit_threads, served_shapes, share_memory
from jaxgen.runner.compilation_cache import persistent_compilation
from jaxgen.runner.model_runner import device_info
from jaxgen.sizing.allocation import allocation_of
from jaxgen.sizing.device_memory import DeviceMemory
from jaxgen.sizing.memory import check_options, no_wider, refit, resolve, with_fewer_blocks
from jaxgen.sizing.token_budget import CPU_BUDGET
from jaxgen.terminal.extras import naming_extras, need
from jaxgen.terminal.progress import show_progress
from jaxgen.text.constraint import Constraints
from jaxgen.weights.contents import weights_digest
from jaxgen.weights.load import DEMO, load_params
from jaxgen.weights.weight_formats import parameter_bytes, placed_config

logger = logging.getLogger(__name__)

TINY_NOTE = "a tiny random model made on the spot, whose text means nothing; name a real one with --model"


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model and device that are found but not loaded: the model's directory, its configuration in the dtype to
    compute in, the device, its memory, and the cache directories."""

    directory: Path
    model: ModelConfig
    device: DeviceInfo
    memory: DeviceMemory
    caches: CacheDirs
    kernels: KernelChoice
    verdict: Verdict | None = None
    """Verdict on the kernels made for a GPU."""
    load_format: LoadFormat = "auto"

    @property
    def params_bytes(self) -> int:
        return weight_bytes(self.model, self.device, self.kernels)

    @property
    def tuning_folder(self) -> Path | None:
        return tuning_folder(self.caches, self.kernels)

    def resolve(self, options: EngineOptions) -> EngineConfig:
        """Return the configuration that meets ``options`` and fits, and log which rule chose the token budget."""
        budget = token_budget(self.model, self.device, self.kernels, self.caches)
        config = resolve(
            options,
            self.model,
            self.memory,
            token_budget=budget.tokens,
            params_bytes=self.params_bytes,
            dequantised_bytes=dequantised_bytes(self.model, self.device),
        )
        if options.token_budget is None:
            logger.info("token budget %d: %s", config.scheduler.token_budget, budget.reason)
        return config

    def load(self, *, block_size: int, progress: bool) -> tuple[Kernels, PackedParams]:
        """Return the device's kernels, and the parameters in their layout. Raises ConfigError."""
        kernels = reference(self.device) if self.kernels == "xla" else self._choose_kernels(block_size, progress)
        formats = {form for _, form in self.model.weight_formats}
        if numbers := sorted({form.title for form in formats if kernels.placed(form) is None}):
            logger.warning(
                "weights in %s become %s when they are loaded, and take as much memory and time as others: the %s "
                "kernels do not multiply them as they are",
                " and ".join(numbers),
                self.model.dtype,
                kernels.name,
            )
        if self.load_format == "dummy":
            logger.warning("weights are random numbers (--load-format dummy): answers mean nothing")
            return kernels, dummy_params(self.model, kernels)
        return kernels, load_params(self.directory, self.model, place=placing(self.model, kernels), progress=progress)

    def weights_digest(self, *, progress: bool) -> str:
        """Return the digest of the weight files, or that of random weights, which the configuration determines."""
        if self.load_format == "dummy":
            return digest_of({"load_format": self.load_format})
        return weights_digest(self.directory, self.caches.checksums, progress=progress)

    def _choose_kernels(self, block_size: int, progress: bool) -> Kernels:
        with ExitStack() as stack:
            folder = self.caches.kernels
            if folder is None:  # native kernels stay in memory when their file is deleted
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="jaxgen-kernels-")))
            return choose(self.device, self.model, block_size, folder, self.verdict, progress=progress)

    def build(
        self,
        config: EngineConfig,
        options: EngineOptions,
        texts: ModelTexts,
        *,
        ends: bool = True,
        progress: bool,
    ) -> Engine:
        """Load, compile and warm up. If the device runs out of memory, do so once more with fewer blocks.

        ``ends``: whether the tokens of ``texts`` that end answers do. Raises ConfigError.
        """
        events = _open_kv_events(options)
        try:
            return self._build(config, options, texts, events, ends=ends, progress=progress)
        except jax.errors.JaxRuntimeError as error:
            if not _is_out_of_memory(error):
                raise
            said = one_line(str(error))
        gc.collect()  # with the error went the frames that held the first try's arrays
        less, fewer = with_fewer_blocks(
            *(options, self.model, config, self.memory),
            params_bytes=self.params_bytes,
            dequantised_bytes=dequantised_bytes(self.model, self.device),
        )
        if fewer.cache.num_blocks == config.cache.num_blocks:
            raise _no_room(config, said)
        logger.warning(
            "the device ran out of memory with %d KV blocks, trying once more with %d: %s",
            config.cache.num_blocks,
            fewer.cache.num_blocks,
            said,
        )
        try:
            return replace(self, memory=less)._build(fewer, options, texts, events, ends=ends, progress=progress)
        except jax.errors.JaxRuntimeError as error:
            if not _is_out_of_memory(error):
                raise
            raise _no_room(fewer, one_line(str(error))) from error

    def _build(
        self,
        config: EngineConfig,
        options: EngineOptions,
        texts: ModelTexts,
        events: BlockEventSink | None,
        *,
        ends: bool,
        progress: bool,
    ) -> Engine:
        """Load, compile (twice if the step needs more memory than estimated) and warm up. Raises ConfigError."""
        kernels, params = self.load(block_size=config.cache.block_size, progress=progress)
        weights = self.weights_digest(progress=progress)
        params_bytes = parameter_bytes(placed_config(self.model, kernels.placed))
        if self.device.is_cpu and options.token_budget is None and not kernels.skips_padding:
            config = no_wider(config, options, CPU_BUDGET)
        with show_progress("compiling the step", 1, "program", bar=progress) as advance:
            model = self.model.within(config.scheduler.max_model_len)
            config, compiled = compile_to_fit(options, model, config, kernels, self.memory, params_bytes)
            advance(1)
        identity = self._identify(model, config, compiled, weights, texts)
        eos_token_ids = texts.eos_token_ids if ends else frozenset[int]()
        return Engine(model, config, params, eos_token_ids, compiled=compiled, identity=identity, events=events)

    def _identify(
        self, model: ModelConfig, config: EngineConfig, compiled: Compiled, weights: str, texts: ModelTexts
    ) -> Identity:
        kernels = compiled.kernels
        identity = identify(
            self.device,
            model,
            config,
            kernels={"name": kernels.name, **dict(kernels.build)},
            settings={name: getattr(jax.config, name) for name in ("jax_default_matmul_precision", "jax_enable_x64")},
            programs=program_texts(compiled),
            weights=weights,
            texts=texts.identity(),
        )
        logger.info("digest %s: engines of the same digest give the same bits", identity.digest)
        return identity


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
) -> ResolvedModel:
    """Find model, device and memory for a model directory or hub id (None: the embedded default).

    ``kernels``: see KernelChoice. ``quantization``: what weights become when they are loaded. ``load_format``: see
    LoadFormat. ``budgets``: token budgets of the steps that will run, if they are not the one of ``options``. Proves a
    GPU's kernels before it opens the GPU. Raises ConfigError.
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
        model,
        dtype,
        kernels,
        hub=hub,
        quantization=quantization,
        load_format=load_format,
        kv_dtype=kv_dtype,
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
    package = {RedisAddress: "redis", S3Address: "obstore"}.get(type(tier))
    if package is not None:
        need(package, f"--kv-tier {tier}")


def _is_out_of_memory(error: jax.errors.JaxRuntimeError) -> bool:
    return "RESOURCE_EXHAUSTED" in str(error)


def _no_room(config: EngineConfig, said: str) -> NoRoomError:
    """Return the error for a device that ran out of memory in spite of the plan. ``said``: the device's own words."""
    blocks = config.cache.num_blocks
    return NoRoomError(
        f"the device ran out of memory with {blocks} KV blocks: use --num-blocks {blocks // 2} or so, a smaller "
        f"--max-num-seqs, or end what else uses the device ({said})"
    )


def _open_kv_events(options: EngineOptions) -> BlockEventSink | None:
    """Return the publisher of KV events, if there is to be one. Raises ConfigError for an endpoint that is in use."""
    config = parse_kv_events(options.kv_events_config)
    if config is None:
        return None
    with naming_extras(KV_EVENTS_FLAG):
        from jaxgen.kv_events.publisher import ZmqPublisher
    return ZmqPublisher(config)


def device_memory(*, was_open: bool) -> DeviceMemory:
    """Return the free memory of the default device. ``was_open``: JAX had opened it before the engine was made."""
    device = jax.devices()[0]
    free, host = free_memory(device, was_open=was_open), host_memory()
    return DeviceMemory(device.platform, host.available if free is None else free, host.total, host.limit)


def compile_to_fit(
    options: EngineOptions,
    model: ModelConfig,
    config: EngineConfig,
    kernels: Kernels,
    memory: DeviceMemory,
    params_bytes: int,
) -> tuple[EngineConfig, Compiled]:
    """Compile the step; if the program's temporaries are larger than estimated, plan and compile again.

    The context length stays as it was planned first. Raises ConfigError if it does not fit.
    """
    compiled = compile_for(model, config, kernels)
    sizes = {"params_bytes": params_bytes, "temporary_bytes": compiled.temporary_bytes}
    fitting = refit(options, model, config, memory, **sizes)
    if fitting != config:
        logger.info("a step needs more memory than estimated: compiling again, with fewer KV blocks")
        compiled = compile_for(model, fitting, kernels)
    logger.info("device memory: %s", allocation_of(model, fitting, memory, **sizes).title(memory))
    return fitting, compiled


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
    """Return an engine, not started yet, for a model directory or hub id (None: the embedded default).

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
    )
    words, texts = read_texts(
        parts.directory,
        parts.model.vocab_size,
        parts.caches.tokenizers,
        tokenizer=tokenizer,
        chat_template=chat_template,
        generation_config=generation_config,
        pooling=pooling,
        hub=hub,
    )
    config = parts.resolve(options)

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
    )
    return AsyncEngine(info, words, build, Constraints(words, parts.model.vocab_size, texts.eos_token_ids))
