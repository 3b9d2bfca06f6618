"""A runner without a device, and engines on it, whose tokens and times a test works out by hand. No jax."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from jaxgen.core.config import CacheConfig, EngineConfig, SchedulerConfig
from jaxgen.core.decoder_config import llama_config
from jaxgen.core.decoder_parts import RopeConfig
from jaxgen.core.request import FinishReason, Request, TokenEvent
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.core.sequence import Restore
from jaxgen.core.step_plan import Outcome, StepPlan
from jaxgen.engine.engine import Engine
from jaxgen.engine.observer import MeasuredStep, Observer
from jaxgen.engine.start.join import join_engine
from jaxgen.scheduling.cost_model import StepSample
from jaxgen.scheduling.step_time import StepTimeEstimator

MODEL = llama_config(
    vocab_size=100,
    hidden_size=8,
    intermediate_size=8,
    num_layers=1,
    num_heads=1,
    num_kv_heads=1,
    head_dim=8,
    max_position=64,
    dtype="float32",
    norm_eps=1e-5,
    rope=RopeConfig(),
)
STEP_SECONDS = 0.5


class Clock:
    """Time that passes only when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True)
class FakeTokens:
    """The tokens of a step. To wait for them takes the step's seconds."""

    runner: "FakeRunner"
    tokens: Sequence[int]

    def block_until_ready(self) -> None:
        self.runner.log.append("wait")
        self.runner.clock.now += STEP_SECONDS

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.array(self.tokens, np.int32)


@dataclass
class FakeRunner:
    """Samples the number of tokens before the sampled one. ``errors`` are raised by the next runs."""

    clock: Clock = field(default_factory=Clock)
    runs_ahead: bool = True
    copies_blocks: bool = False
    kernels: Any = field(
        default_factory=lambda: SimpleNamespace(name="fake", reason="", choices={}, skips_padding=False)
    )
    log: list[str] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)

    def reset(self) -> None:
        self.log.append("reset")

    def load(self, plan: StepPlan) -> None:
        self.log.append("load")

    def run(self, plan: StepPlan, *, narrow: bool | None = None) -> Any:
        self.log.append("run")
        if self.errors:
            raise self.errors.pop(0)
        return SimpleNamespace(tokens=FakeTokens(self, [chunk.end for chunk in plan.chunks if chunk.samples]))

    def rehearsal(self) -> AbstractContextManager[None]:
        return nullcontext()

    def wait(self) -> None:
        self.log.append("wait for all")

    def first_not_finite(self, plan: StepPlan) -> int:
        raise AssertionError("only a start asks a runner for this")

    def uses_narrow(self, plan: StepPlan) -> bool:
        return False

    def disable_narrow(self) -> None: ...

    def offload_stats(self) -> None: ...


class Witness(Observer):
    """Notes in a runner's log what it is told."""

    def __init__(self, log: list[str]) -> None:
        self.log = log
        self.steps: list[MeasuredStep] = []

    def queued(self, sequence: Any, now: float) -> None:
        self.log.append(f"queued {sequence.request_id}")

    def planned(self, plan: StepPlan, now: float) -> None:
        self.log.append(f"planned {plan.num_tokens}")

    def restored(self, restore: Restore, *, whole: bool) -> None:
        self.log.append("restored")

    def read(self, step: MeasuredStep) -> None:
        self.log.append("read")
        self.steps.append(step)

    def completed(self, step: MeasuredStep, outcomes: Sequence[Outcome], events: Sequence[TokenEvent]) -> None:
        self.log.append(f"completed {[event.token for event in events]}")

    def ended(self, sequence: Any, reason: str) -> None:
        self.log.append(f"ended {sequence.request_id} {reason}")

    def failed(self) -> None:
        self.log.append("failed")


def loop_of(
    runner: FakeRunner, *, run_ahead: bool = True, background_tokens: int | None = None, **parts: Any
) -> tuple[Engine, Witness]:
    """Return an engine on this runner with rows for two requests, and its witness."""
    scheduler = SchedulerConfig(8, 2, 64, prefix_caching=False, background_tokens=background_tokens)
    config = EngineConfig(CacheConfig(4, 32), scheduler, seed=0, max_logit_bias=8, run_ahead=run_ahead)
    samples = [StepSample(tokens, 0, 0.01 * tokens) for tokens in (1, 4, 8)]
    witness = Witness(runner.log)
    engine = join_engine(
        MODEL, config, runner, StepTimeEstimator(8, samples), observers=[witness], clock=runner.clock, **parts
    )
    return engine, witness


def ask(name: str, prompt: int, max_tokens: int = 2, **fields: Any) -> Request:
    return Request(name, tuple(range(prompt)), SamplingParams(max_tokens=max_tokens, temperature=0.0), **fields)


def ends(events: list[TokenEvent]) -> dict[str, FinishReason]:
    return {event.request_id: event.finish_reason for event in events if event.finish_reason is not None}
