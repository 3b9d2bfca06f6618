"""What a row is given, and what rows in one process need not make twice."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

import jax

from jaxgen.core.config import EngineConfig, ModelConfig
from jaxgen.kernels.choice import Kernels
from jaxgen.models import PackedParams, init_params
from jaxgen.models.placement import pack_params
from jaxgen.runner.programs import CompiledStep, compile_step
from scripts.gpu.plan import Registers
from scripts.gpu.sizes import Sizes


class UnavailableError(Exception):
    """Something that is not part of jaxgen, and that a row compares with or looks through, is not on this machine."""


class Shared:
    """What outlives a row, as long as its process does."""

    @cached_property
    def device(self) -> jax.Device:
        return jax.devices()[0]

    @staticmethod
    @lru_cache(maxsize=1)
    def params_of(model: ModelConfig, kernels: Kernels) -> PackedParams:
        """Random parameters as programs of the kernels read them; only the latest are kept, since two may not fit."""
        return jax.block_until_ready(pack_params(model, dict(init_params(model, seed=0)), kernels))

    @staticmethod
    @cache
    def compiled_step(model: ModelConfig, config: EngineConfig, kernels: Kernels) -> CompiledStep:
        """All are kept: they are small beside the seconds that they take."""
        return compile_step(model, config, kernels)


@dataclass(frozen=True)
class Bench:
    """What the entry of a row is called with, before the row's own arguments.

    ``results`` are the rows that it reads, as they are in the file; ``out`` is where files go that it leaves.
    """

    sizes: Sizes
    shared: Shared
    registers: Registers
    ceilings: Mapping[str, float]
    results: Mapping[str, Mapping[str, Any]]
    out: Path
