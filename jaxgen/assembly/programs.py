"""Compile an engine's programs, or read those of an earlier start, and name what their answers' bits depend on."""

import logging
import os
from pathlib import Path

import jax

from jaxgen.assembly.device import THREADS
from jaxgen.assembly.digest import identify, program_digest, sources_digest, xla_flags
from jaxgen.assembly.resolved_model import ResolvedModel
from jaxgen.assembly.text_settings import TextSettings
from jaxgen.core.config import EngineConfig
from jaxgen.core.identity import Identity, digest_of
from jaxgen.core.model_config import ModelConfig
from jaxgen.engine.start.runners import Compiled, compile_for, narrow_texts, program_texts
from jaxgen.hardware.nvidia import versions
from jaxgen.kernels.kernels import Kernels
from jaxgen.runner.cached_programs import cached_or_compiled, compiler_identity
from jaxgen.runner.programs import compile_step

logger = logging.getLogger(__name__)


def compile_programs(resolved: ResolvedModel, model: ModelConfig, kernels: Kernels, config: EngineConfig) -> Compiled:
    """Return the programs, as an earlier start has compiled them if all that they are made from is the same.

    ``model``: the resolved one, for the context that is served.
    """
    folder = resolved.caches.traced
    if folder is None or not resolved.device.is_cpu or config.streaming is not None or resolved.division is not None:
        return compile_for(model, config, kernels)
    key = {
        "model": repr(model),
        "config": repr(config),
        "kernels": [kernels.name, *kernels.build],
        "sources": sources_digest(),
        "versions": versions(("jax", "jaxlib", "flax", "numpy")),
        "compiler": compiler_identity(),
        "device": repr(resolved.device),
        "environment": _environment(),
        "flags": xla_flags(os.environ.get("XLA_FLAGS", "")),  # which may name a file of them
    }
    path = folder / f"{digest_of(key)}.json"
    return cached_or_compiled(path, kernels, lambda: compile_step(model, config, kernels))


def identity_of(
    resolved: ResolvedModel,
    model: ModelConfig,
    config: EngineConfig,
    compiled: Compiled,
    *,
    weights: str,
    texts: TextSettings,
) -> Identity:
    """Return what the bits of an engine's answers depend on, and log its digest.

    ``weights``: the digest of their files.
    """
    kernels = compiled.kernels
    identity = identify(
        resolved.device,
        model,
        config,
        kernels={
            "name": kernels.name,
            **dict(kernels.build),
            "operations": {name: choice.implementation for name, choice in kernels.choices.items()},
        },
        settings={name: getattr(jax.config, name) for name in ("jax_default_matmul_precision", "jax_enable_x64")},
        programs=program_texts(compiled),
        weights=weights,
        texts=texts.identity(),
    )
    logger.info("digest %s: engines of the same digest give the same bits", identity.digest)
    return identity


def findings_file(resolved: ResolvedModel, config: EngineConfig, identity: Identity, compiled: Compiled) -> Path | None:
    """Return the file for what an engine finds out by running its programs: on this kind of device, with as many
    threads. None: nothing is kept.

    On a GPU the narrow programs are part of its name: XLA may compile others, for which nothing is found yet.
    """
    if resolved.caches.starts is None or not identity.digest:
        return None
    key = {
        "digest": identity.digest,
        "config": repr(config),
        "device": repr(resolved.device),
        "environment": _environment(),
        "narrow": [] if resolved.device.is_cpu else [program_digest(text) for text in narrow_texts(compiled)],
    }
    return resolved.caches.starts / f"{digest_of(key)}.json"


def _environment() -> dict[str, str | None]:
    """Return the environment variables that change XLA's programs and their times."""
    return {name: os.environ.get(name) for name in (THREADS, "XLA_FLAGS")}
