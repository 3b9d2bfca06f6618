"""One part of the check: its rows, its time, and what parts of one process share."""

import time
import traceback
from collections.abc import Callable
from functools import cache, cached_property, lru_cache
from typing import Protocol

import jax

from jaxgen.config import EngineConfig, ModelConfig
from jaxgen.kernels import Kernels
from jaxgen.models import PackedParams, init_params
from jaxgen.models.packing import pack_params
from jaxgen.programs import CompiledStep, compile_step
from scripts.device_check.report import CUT, UNAVAILABLE, Measurement


class UnavailableError(Exception):
    """Something that is not part of jaxgen, and that a row compares with or looks through, is not on this machine."""


class Recorder(Protocol):
    """Where rows go: a Report, or the way to the process that has it."""

    ceilings: dict[str, float]

    def begin(self, name: str) -> None: ...
    def record(
        self, name: str, found: Measurement | None, error: str | None = None, wall_seconds: float = 0.0
    ) -> None: ...
    def fail(self, failure: str) -> None: ...
    def add_ceiling(self, name: str, value: float) -> None: ...


class Part:
    """The rows of one part, within its budget of seconds."""

    def __init__(self, report: Recorder, budget_seconds: float):
        self.report = report
        self._budget = budget_seconds
        self._started = time.monotonic()
        self._latest = 0.0

    def measure(self, name: str, function: Callable[[], Measurement], *, free: bool = False) -> Measurement | None:
        """Run one row and record it; None if it raised, or was cut because one more row like the latest would exceed
        the budget. A ``free`` one takes no time, so is not cut. A row's error is recorded in it and ends nothing else.
        """
        spent = time.monotonic() - self._started
        if not free and spent + self._latest > self._budget:
            self.report.record(name, None, f"{CUT}{spent:.0f} s of {self._budget:.0f} s are spent")
            return None
        self.report.begin(name)
        started = time.monotonic()
        found, error = None, None
        try:
            found = function()
        except UnavailableError as missing:
            error = f"{UNAVAILABLE}{missing}"
        except Exception as raised:  # whatever a device raises: the other rows are wanted all the same
            said = f"{type(raised).__name__}: {raised}"
            error = f"{said[:2000]}\n{traceback.format_exc(limit=-3)[-2000:]}"
        wall = time.monotonic() - started
        if not free:
            self._latest = wall
        self.report.record(name, found, error, round(wall, 2))
        if found is not None and found.failure is not None:
            self.report.fail(f"{name}: {found.failure}")
        return found


class Shared:
    """What parts in one process need not make twice."""

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
