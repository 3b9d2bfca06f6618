"""Compile a step, and plan again if it needs more memory than estimated."""

import logging
from collections.abc import Callable
from typing import Protocol

from jaxgen.core.config import EngineConfig, EngineOptions
from jaxgen.core.model_config import ModelConfig
from jaxgen.sizing.allocation import allocation_of
from jaxgen.sizing.device_memory import DeviceMemory
from jaxgen.sizing.memory import refit
from jaxgen.sizing.window_sizes import kinds_title

logger = logging.getLogger(__name__)


class Sized(Protocol):
    """Compiled programs, with the bytes that one needs in addition to its arguments."""

    @property
    def temporary_bytes(self) -> int: ...


def compile_to_fit[Programs: Sized](
    options: EngineOptions,
    model: ModelConfig,
    config: EngineConfig,
    compile_: Callable[[EngineConfig], Programs],
    memory: DeviceMemory,
    params_bytes: int,
) -> tuple[EngineConfig, Programs]:
    """Compile the step with ``compile_``; if its temporaries are larger than estimated, plan and compile again.

    The context length stays as it was planned first. Raises ConfigError if it does not fit.
    """
    compiled = compile_(config)
    sizes = {"params_bytes": params_bytes, "temporary_bytes": compiled.temporary_bytes}
    fitting = refit(options, model, config, memory, **sizes)
    if fitting != config:
        logger.info("a step needs more memory than estimated: compiling again, with fewer KV blocks")
        compiled = compile_(fitting)
    logger.info("device memory: %s", allocation_of(model, fitting, memory, **sizes).title(memory))
    if kinds := kinds_title(options, model, fitting):
        logger.info("KV cache: %s", kinds)
    return fitting, compiled
