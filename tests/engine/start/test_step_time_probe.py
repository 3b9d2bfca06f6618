"""What the start learns of the time of steps, from a device whose times are known."""

from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from jaxgen.core.config import CacheConfig, EngineConfig, SchedulerConfig
from jaxgen.core.step_plan import StepPlan
from jaxgen.engine.start import step_time_probe
from jaxgen.engine.start.step_time_probe import measure_step_time
from jaxgen.runner.interface import Runner
from jaxgen.scheduling.step_time import StepTimeModel

NARROW = 16
CONFIG = EngineConfig(
    CacheConfig(64, 128),
    SchedulerConfig(256, 64, 4096, prefix_caching=False),
    narrow_width=NARROW,
    seed=0,
    max_logit_bias=16,
)


class Device:
    """Takes ``scale`` times 8 ms a step, 0.5 ms a token, and for each token before one 0.2 us in a prompt and 0.9 us in
    a decode. Something holds up the step of number ``held_up`` for 0.3 s."""

    def __init__(self, scale: float = 1.0, held_up: int = -1) -> None:
        self.scale = scale
        self.held_up = held_up
        self.numbers = count()
        self.busy = 0.0

    def uses_narrow(self, plan: StepPlan) -> bool:
        return plan.decodes_only and plan.num_tokens <= NARROW

    def seconds(self, plan: StepPlan) -> float:
        attention = 0.2e-6 * plan.num_positions + 0.9e-6 * plan.num_contexts
        return self.scale * (0.008 + 0.0005 * plan.num_tokens + attention)

    def time_step(self, runner: object, plan: StepPlan, *, narrow: bool) -> SimpleNamespace:
        seconds = self.seconds(plan) + (0.3 if next(self.numbers) == self.held_up else 0.0)
        self.busy += seconds
        return SimpleNamespace(seconds=seconds)


def learn(device: Device, monkeypatch: pytest.MonkeyPatch) -> StepTimeModel:
    monkeypatch.setattr(step_time_probe, "time_step", device.time_step)
    runner = MagicMock(spec=Runner)
    runner.uses_narrow = device.uses_narrow
    return measure_step_time(runner, CONFIG).estimator(CONFIG).model


def prompt_seconds(device: Device, tokens: int) -> float:
    """Of a prompt alone, in steps of the budget."""
    steps = -(-tokens // 256)
    return device.scale * (0.008 * steps + 0.0005 * tokens + 0.2e-6 * tokens * (tokens - 1) / 2)


@pytest.mark.parametrize("scale", [0.1, 1.0, 12.0])
def test_prompts_and_steps_take_what_was_promised(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(scale)
    model = learn(device, monkeypatch)
    assert model.most_seconds == pytest.approx(scale * 0.136, rel=0.1)
    assert model.decode_seconds(4, 4 * 1000) == pytest.approx(scale * 0.0136, rel=0.1)
    assert model.wide.seconds(8, contexts=8 * 2000) == pytest.approx(scale * 0.0264, rel=0.1)
    assert model.prompt_seconds(1000, 500_000) == pytest.approx(prompt_seconds(device, 1000), rel=0.15)


def test_a_step_that_something_held_up_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    number = Device()
    learn(number, monkeypatch)
    for held_up in range(next(number.numbers)):
        device = Device(held_up=held_up)
        model = learn(device, monkeypatch)
        assert model.most_seconds == pytest.approx(0.136, rel=0.1)
        assert model.prompt_seconds(1000, 500_000) == pytest.approx(prompt_seconds(device, 1000), rel=0.15)


def test_a_large_model_is_not_measured_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(12.0)
    learn(device, monkeypatch)
    assert device.busy < 3 * device.scale * 0.136 * 3


def test_prompts_are_not_cut_for_snapshots_of_states(monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[int] = []

    def time_step(runner: object, plan: StepPlan, *, narrow: bool) -> SimpleNamespace:
        timed.append(max(chunk.length for chunk in plan.chunks))
        return SimpleNamespace(seconds=1.0)

    monkeypatch.setattr(step_time_probe, "time_step", time_step)
    scheduler, cache = replace(CONFIG.scheduler, prefix_caching=True), replace(CONFIG.cache, num_snapshots=8)
    measure_step_time(MagicMock(spec=Runner), replace(CONFIG, scheduler=scheduler, cache=cache))
    assert {32, 128, 256} <= set(timed)
