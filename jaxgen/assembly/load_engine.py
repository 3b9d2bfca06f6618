"""Return the engine of a model, which loads and compiles when it is started."""

import logging
from pathlib import Path
from typing import Literal

from jaxgen.assembly.build import build_to_fit
from jaxgen.assembly.find_model import longrope_note
from jaxgen.assembly.resolve import resolve_on_device
from jaxgen.assembly.resolved_model import ResolvedModel
from jaxgen.assembly.text_settings import TextSettings, read_text_settings
from jaxgen.core.config import EngineConfig, EngineOptions, HubOptions, KernelChoice, LoadFormat
from jaxgen.core.model_config import DType
from jaxgen.core.model_info import EmbeddingFormat, ModelInfo, PoolingChoice
from jaxgen.core.quantization import Quantization
from jaxgen.engine.async_engine import AsyncEngine
from jaxgen.engine.engine import Engine
from jaxgen.runner.compilation_cache import persistent_compilation
from jaxgen.text.constraint import Constraints
from jaxgen.weights.huggingface.pooling import texts_differ
from jaxgen.weights.packaged.default_model import DEMO

logger = logging.getLogger(__name__)

TINY_NOTE = "a tiny random model made on the spot, whose text means nothing; name a real one with --model"


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
    resolved = resolve_on_device(
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
    loaded_tokenizer, texts = read_text_settings(
        resolved.directory,
        resolved.model.vocab_size,
        resolved.caches,
        tokenizer=tokenizer,
        chat_template=chat_template,
        generation_config=generation_config,
        pooling=pooling,
        hub=hub,
    )
    config = resolved.configure(options)
    _log_notes(resolved, config, texts)

    def build() -> Engine:
        with persistent_compilation(resolved.caches.compiled if compilation_cache else None):
            return build_to_fit(resolved, config, options, texts, progress=progress)

    info = ModelInfo(
        served_name or model or "jaxgen-default",
        config.scheduler.max_model_len,
        resolved.model.vocab_size,
        note=TINY_NOTE if model is None and resolved.directory != DEMO else "",
        chat=texts.chat,
        embedding=EmbeddingFormat(resolved.model.output_size, texts.pooling),
        defaults=texts.defaults,
        embedded=model is None,
        generates=resolved.model.generates,
    )
    return AsyncEngine(
        info, loaded_tokenizer, build, Constraints(loaded_tokenizer, resolved.model.vocab_size, texts.eos_token_ids)
    )


def _log_notes(resolved: ResolvedModel, config: EngineConfig, texts: TextSettings) -> None:
    """Log what is unusual about the model, and about the texts that it is served for."""
    if note := longrope_note(resolved.model, config.scheduler.max_model_len):
        logger.info("%s", note)
    if not resolved.model.generates:
        logger.info(
            "%s has no head (lm_head.weight): it is served for embeddings alone, pooled by: %s",
            resolved.directory,
            texts.pooling,
        )
    for warning in texts_differ(resolved.directory, config.scheduler.max_model_len):
        logger.warning("%s", warning)
