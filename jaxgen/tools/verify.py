"""Verify that a request's bits do not depend on its neighbours, for a model as it would be served."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from jaxgen.assembly.build import build_to_fit
from jaxgen.assembly.resolve import resolve_on_device
from jaxgen.assembly.resolved_model import ResolvedModel
from jaxgen.assembly.text_settings import own_text_settings
from jaxgen.core.config import EngineOptions, HubOptions, KernelChoice, LoadFormat
from jaxgen.core.model_config import DType
from jaxgen.core.quantization import Quantization
from jaxgen.runner.compilation_cache import persistent_compilation
from jaxgen.tools.determinism import Scenario, Verifier

VERIFY_CONTEXT = 512
"""Default for the longest sequence of ``verify_determinism``."""
_LEAST_BUDGET, _LEAST_BLOCK = 8, 8


def verify_determinism(
    model: str | None = None,
    *,
    hub: HubOptions | None = None,
    dtype: DType | Literal["auto"] = "auto",
    kernels: KernelChoice = "auto",
    quantization: Quantization = "none",
    load_format: LoadFormat = "auto",
    options: EngineOptions | None = None,
    cache_dir: Path | str | None = None,
    requests: int,
    seed: int,
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[dict[str, Any], list[Scenario]]:
    """Return the settings that were verified and the result of each scenario; see jaxgen.tools.determinism.

    By default sequences are short, yet longer than a step, with blocks for two of the longest. For a model of a short
    context, steps and blocks are smaller than in service. Raises ConfigError.
    """
    options = options or EngineOptions()
    resolved = resolve_on_device(
        model,
        hub=hub,
        dtype=dtype,
        kernels=kernels,
        quantization=quantization,
        load_format=load_format,
        cache_dir=cache_dir,
        options=options,
    )
    options = _verify_options(resolved, options)
    with persistent_compilation(resolved.caches.compiled):
        engine = build_to_fit(
            resolved,
            resolved.configure(options),
            options,
            own_text_settings(resolved.directory),
            ends=False,
            progress=False,
        )
    scenarios = Verifier(engine, requests=requests, seed=seed, progress=progress).verify()
    facts = {
        "model": model or "the embedded default",
        "dtype": resolved.model.dtype,
        "kv_cache_dtype": resolved.model.kv_dtype,
        "device": resolved.device.kind,
        "token_budget": engine.config.scheduler.token_budget,
        "max_num_seqs": engine.config.scheduler.max_num_seqs,
        "max_model_len": engine.config.scheduler.max_model_len,
        "num_blocks": engine.config.cache.num_blocks,
        "steps": engine.stats().steps,
        "narrow_steps": engine.stats().narrow_steps,
        "digest": engine.identity.digest,
        "digest_parts": engine.identity.parts,
    }
    return facts, scenarios


def _verify_options(resolved: ResolvedModel, options: EngineOptions) -> EngineOptions:
    """Return the options that the flags leave open, so that prompts are cut and sequences are preempted."""
    config = resolved.configure(options)
    scheduler, cache = config.scheduler, config.cache
    longest = options.max_model_len or min(scheduler.max_model_len, max(VERIFY_CONTEXT, 2 * scheduler.token_budget))
    budget = options.token_budget or min(scheduler.token_budget, max(longest // 2, _LEAST_BUDGET))
    block_size = options.block_size or min(cache.block_size, max(_power_of_two(longest // 8), _LEAST_BLOCK))
    room_for_two = 2 * -(-longest // block_size)
    return replace(
        options,
        token_budget=budget,
        max_num_seqs=options.max_num_seqs or min(scheduler.max_num_seqs, budget),
        max_model_len=longest,
        block_size=block_size,
        num_blocks=options.num_blocks or min(cache.num_blocks * cache.block_size // block_size, room_for_two),
    )


def _power_of_two(number: int) -> int:
    """Return the largest power of two that is not above ``number``, which is 1 or more."""
    return 1 << (max(number, 1).bit_length() - 1)
