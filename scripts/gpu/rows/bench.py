"""The arguments of a row, and objects that rows in one process share."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

import jax

from jaxgen.core.config import EngineConfig
from jaxgen.core.model_config import ModelConfig
from jaxgen.kernels.kernels import Kernels
from jaxgen.models.dummy import dummy_params
from jaxgen.models.model import PackedParams
from jaxgen.runner.programs import CompiledStep, compile_step
from scripts.gpu.result.plan import Registers
from scripts.gpu.rows.sizes import Sizes

Options = tuple[tuple[str, str], ...]
"""Names and values of XLA's options for a program."""


class UnavailableError(Exception):
    """Software outside jaxgen that a row compares with, or a tool that it uses, is not on this machine."""


class Shared:
    """Objects that live as long as their process, for all its rows."""

    @cached_property
    def device(self) -> jax.Device:
        return jax.devices()[0]

    @staticmethod
    @lru_cache(maxsize=1)
    def params_of(model: ModelConfig, kernels: Kernels) -> PackedParams:
        """Make random parameters in the layout of the kernels. Only the latest are kept, since three may not fit."""
        return dummy_params(model, kernels)

    @staticmethod
    @cache
    def compiled_step(
        model: ModelConfig, config: EngineConfig, kernels: Kernels, compiler_options: Options = ()
    ) -> CompiledStep:
        """Compile a step. All are kept: they take little memory, but long to compile."""
        return compile_step(model, config, kernels, compiler_options=dict(compiler_options))


@dataclass(frozen=True)
class Bench:
    """The first argument of a row's entry.

    ``results``: the rows that it reads, as they are in the file. ``out``: directory for files that it writes.
    """

    sizes: Sizes
    shared: Shared
    registers: Registers
    ceilings: Mapping[str, float]
    results: Mapping[str, Mapping[str, Any]]
    out: Path
