"""An engine in this process under the same loads, in real time; what its steps took is kept."""

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from typing import Any, Literal

from jaxgen.assembly.parameters import load_model
from jaxgen.assembly.resolve import resolve_on_device
from jaxgen.core.config import EngineOptions
from jaxgen.core.errors import RequestRefusedError
from jaxgen.core.model_config import DType
from jaxgen.core.step_plan import StepPlan
from jaxgen.engine import observer
from jaxgen.engine.start.build import build_engine
from jaxgen.engine.start.runners import compile_for
from jaxgen.runner.compilation_cache import persistent_compilation
from jaxgen.scheduling.cost_model import StepSample
from jaxgen.server.benchmark.requests import FIRST_ID
from jaxgen.sizing.compile_to_fit import compile_to_fit
from scripts.simulation.load import Due, Load
from scripts.simulation.record import Recorder


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """What a step computed and took, by the wide or the narrow program."""

    sample: StepSample
    narrow: bool


class MeasuredEngine(observer.Observer):
    """An engine, and what each of its steps took."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Arguments as of ``build_engine``."""
        self.engine = build_engine(*args, **kwargs, observers=[self])
        self.measured: list[MeasuredStep] = []

    @property
    def has_narrow(self) -> bool:
        """Whether steps of decodes only run a program of their own."""
        return self.engine.runner.uses_narrow(StepPlan(()))

    def read(self, step: observer.MeasuredStep) -> None:
        self.measured.append(MeasuredStep(step.sample, step.narrow))


@contextmanager
def measured_engine(model: str | None, dtype: DType | Literal["auto"]) -> Iterator[MeasuredEngine]:
    """Loaded and compiled as ``serve`` does by default; ``model`` None: the embedded one."""
    resolved = resolve_on_device(model, dtype=dtype)
    options = EngineOptions(seed=0)
    config = resolved.configure(options)
    with persistent_compilation(resolved.caches.compiled):
        kernels, params = load_model(resolved, block_size=config.cache.block_size, progress=False)
        config, compiled = compile_to_fit(
            *(options, resolved.model, config),
            lambda fitting: compile_for(resolved.model, fitting, kernels),
            *(resolved.memory, resolved.params_bytes),
        )
        yield MeasuredEngine(resolved.model, config, params, frozenset(), compiled=compiled)


class LiveRun:
    """One load. The engine's caller is in this thread, so nothing but the engine takes time."""

    def __init__(self, engine: MeasuredEngine, load: Load, seed: int) -> None:
        """``seed``: of the prompts' tokens; with another no prefix is found cached."""
        self.recorder = Recorder()
        self._engine = engine.engine
        self._load = load
        self._random = random.Random(seed)
        self._began = 0.0

    def run(self) -> Recorder:
        self._began = time.perf_counter()
        while self._step():
            pass
        return self.recorder

    def _step(self) -> bool:
        """False: nothing is left to do."""
        for due in self._load.take(self._now()):
            self._send(due)
        if self._engine.has_work:
            self._advance()
        elif self._load.next_due < inf:
            time.sleep(max(0.0, self._load.next_due - self._now()))
        else:
            return False
        return True

    def _send(self, due: Due) -> None:
        prompt = self._random.choices(range(FIRST_ID, self._engine.model.vocab_size), k=due.request.prompt_tokens)
        request_id = self.recorder.begin(due)
        try:
            self._engine.add(due.request.to_request(request_id, tuple(prompt)))
        except RequestRefusedError as error:
            self._load.ended(self._now(), self.recorder.refuse(request_id, self._now(), error))

    def _advance(self) -> None:
        events = self._engine.step()
        now = self._now()
        for event in events:
            if event.error is not None:
                raise RuntimeError(event.error)
            if event.token is not None:
                self.recorder.token(event.request_id, now)
            if event.finish_reason is not None:
                self._load.ended(now, self.recorder.end(event.request_id, now))

    def _now(self) -> float:
        return time.perf_counter() - self._began
