"""Load a resolved model, compile its programs and build an engine: what follows once model and device are found."""

import gc
import logging
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import jax

from jaxgen.cache.block_log import BlockEventSink
from jaxgen.core.cache_dirs import CacheDirs
from jaxgen.core.config import (
    EngineConfig,
    EngineOptions,
    KernelChoice,
    LoadFormat,
    ModelConfig,
)
from jaxgen.core.digested_files import DigestedFiles
from jaxgen.core.errors import NoRoomError, one_line
from jaxgen.core.identity import Identity, digest_of
from jaxgen.core.kv_events import FLAG as KV_EVENTS_FLAG
from jaxgen.core.kv_events import parse_kv_events
from jaxgen.engine.engine import Engine
from jaxgen.engine.runners import Compiled, compile_for, program_texts
from jaxgen.hardware.device_info import DeviceInfo
from jaxgen.hardware.free_memory import return_free_memory
from jaxgen.hardware.nvidia import versions
from jaxgen.identify import identify, sources_digest, xla_flags
from jaxgen.kernels.choice import choose, reference
from jaxgen.kernels.kernels import Kernels
from jaxgen.kernels.verdict import Verdict
from jaxgen.model_choice import dequantised_bytes, token_budget, tuning_folder, weight_bytes
from jaxgen.model_texts import ModelTexts
from jaxgen.models.dummy import dummy_params
from jaxgen.models.model import PackedParams
from jaxgen.models.placement import abstract_packed_params, placing
from jaxgen.models.prepared_params import read_prepared, write_prepared
from jaxgen.opening import THREADS
from jaxgen.runner.cached_programs import cached_or_compiled, compiler_identity
from jaxgen.runner.programs import compile_step
from jaxgen.sizing.compile_to_fit import compile_to_fit
from jaxgen.sizing.device_memory import DeviceMemory
from jaxgen.sizing.memory import no_wider, resolve, with_fewer_blocks
from jaxgen.sizing.token_budget import CPU_BUDGET
from jaxgen.terminal.extras import naming_extras
from jaxgen.terminal.progress import show_progress
from jaxgen.weights.contents import Checksum, weights_digest
from jaxgen.weights.load import load_params
from jaxgen.weights.weight_formats import parameter_bytes, placed_config

logger = logging.getLogger(__name__)


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
            dequantised_bytes=dequantised_bytes(self.model, self.device, self.kernels),
        )
        if options.token_budget is None:
            logger.info("token budget %d: %s", config.scheduler.token_budget, budget.reason)
        return config

    def load(self, *, block_size: int, progress: bool) -> tuple[Kernels, PackedParams]:
        """Return the device's kernels, and the parameters in their layout. Raises ConfigError."""
        kernels = self._choose_kernels(block_size, progress)
        files = None if self._prepared is None else self.weight_files(progress=progress)
        return kernels, self._load(kernels, files, progress)

    def _load(self, kernels: Kernels, files: DigestedFiles | None, progress: bool) -> PackedParams:
        """Return the parameters in the layout of these kernels. Raises ConfigError, also where ``files`` change."""
        formats = {form for _, parts in self.model.weight_formats for form in parts.forms}
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
            return dummy_params(self.model, kernels)
        place, path = placing(self.model, kernels), self._prepared_path(kernels, files)
        params = None if path is None else read_prepared(path, abstract_packed_params(self.model, kernels))
        if params is None:
            params = load_params(self.directory, self.model, place=place, progress=progress)
            if files is not None:
                files.check()
            if path is not None:
                write_prepared(path, params)
        return params

    def _load_with_digest(self, kernels: Kernels, progress: bool) -> tuple[PackedParams, str]:
        """Return the parameters, and the digest of the files that they were read from. Raises ConfigError."""
        files = self.weight_files(progress=progress)
        return self._load(kernels, files, progress), files.digest

    @property
    def _prepared(self) -> Path | None:
        """The folder of weights as programs read them; None: none are kept."""
        return self.caches.prepared if self.device.is_cpu and self.load_format != "dummy" else None

    def _prepared_path(self, kernels: Kernels, files: DigestedFiles | None) -> Path | None:
        """Return the file of prepared weights, which is named by all that prepares them; None: none are kept."""
        if self._prepared is None or files is None:
            return None
        key = {
            "weights": files.digest,
            "model": repr(self.model),
            "kernels": [kernels.name, *kernels.build],
            "sources": sources_digest(),
            "versions": versions(("jaxlib",)),
        }
        return self._prepared / digest_of(key)

    def weight_files(self, *, progress: bool) -> DigestedFiles:
        """Return the weight files with their digest, or that of random weights, which the configuration determines.

        Another look at them reads no file again that has not changed. Raises ConfigError.
        """
        what = f"the weights in {self.directory}"
        if self.load_format == "dummy":
            return DigestedFiles.of(what, lambda: digest_of({"load_format": self.load_format}))
        known: dict[Path, Checksum] = {}
        take = partial(weights_digest, self.directory, self.caches.checksums, known=known, progress=progress)
        return DigestedFiles.of(what, take)

    def _choose_kernels(self, block_size: int, progress: bool) -> Kernels:
        if self.kernels == "xla":
            return reference(self.device)
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
            message = one_line(str(error))
        gc.collect()  # with the error went the frames that held the first try's arrays
        less, fewer = with_fewer_blocks(
            *(options, self.model, config, self.memory),
            params_bytes=self.params_bytes,
            dequantised_bytes=dequantised_bytes(self.model, self.device, self.kernels),
        )
        if fewer.cache.num_blocks == config.cache.num_blocks:
            raise _no_room(config, message)
        logger.warning(
            "the device ran out of memory with %d KV blocks, trying once more with %d: %s",
            config.cache.num_blocks,
            fewer.cache.num_blocks,
            message,
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
        kernels = self._choose_kernels(config.cache.block_size, progress)
        params_bytes = parameter_bytes(placed_config(self.model, kernels.placed))
        if self.device.is_cpu and options.token_budget is None and not kernels.skips_padding:
            config = no_wider(config, options, CPU_BUDGET)
        with ThreadPoolExecutor(1) as beside, show_progress("compiling the step", None, "program", bar=progress):
            loading = beside.submit(self._load_with_digest, kernels, progress)
            if not self.device.is_cpu:
                loading.result()  # XLA times kernels on a GPU, and takes memory there
            model = self.model.within(config.scheduler.max_model_len)
            compile_ = partial(self._compile, model, kernels)
            config, compiled = compile_to_fit(options, model, config, compile_, self.memory, params_bytes)
            params, weights = loading.result()
        identity = self._identify(model, config, compiled, weights, texts)
        eos_token_ids = texts.eos_token_ids if ends else frozenset[int]()
        engine = Engine(
            *(model, config, params, eos_token_ids),
            compiled=compiled,
            identity=identity,
            events=events,
            findings=self._findings(config, identity),
        )
        return_free_memory()  # compilers and readers of weights leave hundreds of megabytes
        return engine

    def _compile(self, model: ModelConfig, kernels: Kernels, config: EngineConfig) -> Compiled:
        """Return the programs, as an earlier start has compiled them if all that they are made from is the same."""
        folder = self.caches.traced
        if folder is None or not self.device.is_cpu or config.streaming is not None:
            return compile_for(model, config, kernels)
        key = {
            "model": repr(model),
            "config": repr(config),
            "kernels": [kernels.name, *kernels.build],
            "sources": sources_digest(),
            "versions": versions(("jax", "jaxlib", "flax", "numpy")),
            "compiler": compiler_identity(),
            "device": repr(self.device),
            "environment": _environment(),
            "flags": xla_flags(os.environ.get("XLA_FLAGS", "")),  # which may name a file of them
        }
        path = folder / f"{digest_of(key)}.json"
        return cached_or_compiled(path, kernels, lambda: compile_step(model, config, kernels))

    def _findings(self, config: EngineConfig, identity: Identity) -> Path | None:
        """Return the file for what an engine finds out by running its programs: on this kind of device, with as many
        threads."""
        if self.caches.starts is None or not identity.digest:
            return None
        key = {
            "digest": identity.digest,
            "config": repr(config),
            "device": repr(self.device),
            "environment": _environment(),
        }
        return self.caches.starts / f"{digest_of(key)}.json"

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


def _environment() -> dict[str, str | None]:
    """Return the environment variables that change XLA's programs and their times."""
    return {name: os.environ.get(name) for name in (THREADS, "XLA_FLAGS")}


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
