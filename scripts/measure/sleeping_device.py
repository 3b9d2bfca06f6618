"""A device that computes nothing: a step takes the seconds that a function says, asleep."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxgen.core.config import EngineConfig, ModelConfig
from jaxgen.core.step_plan import StepPlan
from jaxgen.engine.engine import Engine
from jaxgen.engine.start.join import join_engine
from jaxgen.engine.start.warm_up import warm_up
from jaxgen.kernels.choice import REFERENCE
from jaxgen.kernels.kernels import Kernels
from jaxgen.runner.step import Logprobs, StepOutput

StepSeconds = Callable[[StepPlan], float]
TOKEN = 1
"""What every row samples."""


def sleeping_engine(model: ModelConfig, config: EngineConfig, step_seconds: StepSeconds) -> Engine:
    """Return an engine whose device sleeps; nothing is compiled or loaded."""
    runner = SleepingRunner(model, config, step_seconds)
    return join_engine(model, config, runner, warm_up(runner, model, config))


class Awaited(np.ndarray):
    """Tokens that are there at ``due``, by ``time.monotonic``."""

    due = 0.0

    def block_until_ready(self) -> None:
        time.sleep(max(0.0, self.due - time.monotonic()))


class SleepingRunner:
    """A ``jaxgen.runner.interface.Runner``: a step begins when it is dispatched, or when the one before it ends if that
    is later."""

    runs_ahead = True
    copies_blocks = False
    kernels: Kernels = REFERENCE

    def __init__(self, model: ModelConfig, config: EngineConfig, step_seconds: StepSeconds) -> None:
        rows, budget = config.scheduler.max_num_seqs, config.scheduler.token_budget
        self._step_seconds = step_seconds
        self._due = 0.0
        self._rows = rows
        self._logprobs, self._prompt_logprobs = _zeros(rows), _zeros(budget)
        self._hidden: Any = np.zeros((budget, model.hidden_size), np.float32)

    def reset(self) -> None:
        pass

    def load(self, plan: StepPlan) -> None:
        pass

    def run(self, plan: StepPlan, *, narrow: bool | None = None) -> StepOutput:
        del narrow
        self._due = max(self._due, time.monotonic()) + self._step_seconds(plan)
        tokens: Any = np.full(self._rows, TOKEN, np.int32).view(Awaited)
        tokens.due = self._due
        return StepOutput(tokens, self._logprobs, self._prompt_logprobs, self._hidden)

    def rehearse(self, plan: StepPlan, *, narrow: bool | None = None) -> StepOutput:
        return self.run(plan, narrow=narrow)

    def wait(self) -> None:
        time.sleep(max(0.0, self._due - time.monotonic()))

    def first_not_finite(self, plan: StepPlan) -> int:
        raise NotImplementedError("zeros are finite")

    def uses_narrow(self, plan: StepPlan) -> bool:
        del plan
        return False

    def disable_narrow(self) -> None:
        pass

    def offload_stats(self) -> None:
        pass


def _zeros(n: int) -> Logprobs:
    zeros: Any = np.zeros(n, np.float32)
    none: Any = np.zeros((n, 1), np.int32)
    return Logprobs(zeros, zeros.astype(np.int32), none, none.astype(np.float32))
