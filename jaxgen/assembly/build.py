"""Build the engine of a resolved model: load, compile and warm up, again with fewer blocks if memory runs out."""

import gc
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import jax

from jaxgen.assembly.kernels import choose_kernels
from jaxgen.assembly.parameters import load_parameters, weight_files
from jaxgen.assembly.programs import compile_programs, findings_file, identity_of
from jaxgen.assembly.resolved_model import ResolvedModel
from jaxgen.assembly.text_settings import TextSettings
from jaxgen.cache.block_log import BlockEventSink
from jaxgen.core.config import EngineConfig, EngineOptions
from jaxgen.core.errors import NoRoomError, one_line
from jaxgen.engine.engine import Engine
from jaxgen.engine.start.build import build_engine
from jaxgen.hardware.free_memory import return_free_memory
from jaxgen.kernels.kernels import Kernels
from jaxgen.kv_events.config import FLAG as KV_EVENTS_FLAG
from jaxgen.kv_events.config import parse_kv_events
from jaxgen.models.model import PackedParams
from jaxgen.sizing.compile_to_fit import compile_to_fit
from jaxgen.sizing.memory import with_fewer_blocks
from jaxgen.sizing.step_bounds import no_wider
from jaxgen.sizing.token_budget import CPU_BUDGET
from jaxgen.terminal.extras import naming_extras
from jaxgen.terminal.progress import show_progress
from jaxgen.weights.encodings.weight_formats import parameter_bytes, placed_config

logger = logging.getLogger(__name__)


def build_to_fit(
    resolved: ResolvedModel,
    config: EngineConfig,
    options: EngineOptions,
    texts: TextSettings,
    *,
    ends: bool = True,
    progress: bool,
) -> Engine:
    """Load, compile and warm up. If the device runs out of memory, do so once more with fewer blocks.

    ``ends``: whether the tokens of ``texts`` that end answers do. Raises ConfigError.
    """
    events = _open_kv_events(options)
    try:
        return _build(resolved, config, options, texts, events, ends=ends, progress=progress)
    except jax.errors.JaxRuntimeError as error:
        if not _is_out_of_memory(error):
            raise
        message = one_line(str(error))
    gc.collect()  # with the error went the frames that held the first try's arrays
    less, fewer = with_fewer_blocks(
        *(options, resolved.model, config, resolved.memory),
        params_bytes=resolved.params_bytes,
        dequantised_bytes=resolved.dequantised_bytes,
    )
    if fewer.cache == config.cache:
        raise _no_room(config, message)
    logger.warning(
        "the device ran out of memory with %d KV blocks, trying once more with %d: %s",
        config.cache.num_blocks,
        fewer.cache.num_blocks,
        message,
    )
    try:
        return _build(replace(resolved, memory=less), fewer, options, texts, events, ends=ends, progress=progress)
    except jax.errors.JaxRuntimeError as error:
        if not _is_out_of_memory(error):
            raise
        raise _no_room(fewer, one_line(str(error))) from error


def _build(
    resolved: ResolvedModel,
    config: EngineConfig,
    options: EngineOptions,
    texts: TextSettings,
    events: BlockEventSink | None,
    *,
    ends: bool,
    progress: bool,
) -> Engine:
    """Load, compile (twice if the step needs more memory than estimated) and warm up. Raises ConfigError."""
    kernels = choose_kernels(resolved, config.cache.block_size, progress=progress)
    params_bytes = parameter_bytes(placed_config(resolved.model, kernels.placed))
    if resolved.device.is_cpu and options.token_budget is None and not kernels.skips_padding:
        config = no_wider(config, options, CPU_BUDGET)
    if not (resolved.device.is_cpu or kernels.wants_narrow):
        options, config = replace(options, single_shape=True), replace(config, narrow_width=None)
    with ThreadPoolExecutor(1) as loader, show_progress("compiling the step", None, "program", bar=progress):
        loading = loader.submit(_load_with_digest, resolved, kernels, progress=progress)
        if not resolved.device.is_cpu:
            loading.result()  # XLA times kernels on a GPU, and takes memory there
        model = resolved.model.within(config.scheduler.max_model_len)
        compile_ = partial(compile_programs, resolved, model, kernels)
        config, compiled = compile_to_fit(options, model, config, compile_, resolved.memory, params_bytes)
        params, weights = loading.result()
    identity = identity_of(resolved, model, config, compiled, weights=weights, texts=texts)
    eos_token_ids = texts.eos_token_ids if ends else frozenset[int]()
    engine = build_engine(
        *(model, config, params, eos_token_ids),
        compiled=compiled,
        identity=identity,
        events=events,
        findings=findings_file(resolved, config, identity, compiled),
    )
    return_free_memory()  # compilers and readers of weights leave hundreds of megabytes
    return engine


def _load_with_digest(resolved: ResolvedModel, kernels: Kernels, *, progress: bool) -> tuple[PackedParams, str]:
    """Return the parameters, and the digest of the files that they were read from. Raises ConfigError."""
    files = weight_files(resolved, progress=progress)
    return load_parameters(resolved, kernels, files, progress=progress), files.digest


def _is_out_of_memory(error: jax.errors.JaxRuntimeError) -> bool:
    return "RESOURCE_EXHAUSTED" in str(error)


def _no_room(config: EngineConfig, message: str) -> NoRoomError:
    """Return the error for a device that ran out of memory in spite of the plan. ``message``: the device's."""
    blocks = config.cache.num_blocks
    return NoRoomError(
        f"the device ran out of memory with {blocks} KV blocks: use --num-blocks {blocks // 2} or so, a smaller "
        f"--max-num-seqs, or end what else uses the device ({message})"
    )


def _open_kv_events(options: EngineOptions) -> BlockEventSink | None:
    """Return the publisher of KV events, if there is to be one. Raises ConfigError for an endpoint that is in use."""
    config = parse_kv_events(options.kv_events_config)
    if config is None:
        return None
    with naming_extras(KV_EVENTS_FLAG):
        from jaxgen.kv_events.publisher import ZmqPublisher
    return ZmqPublisher(config)
