"""Rates of streamed steps, fitted to steps whose times are known."""

from dataclasses import astuple, replace
from math import inf

import pytest

from jaxgen.layerwise.planning.rates import StepSeconds, StreamRates
from jaxgen.layerwise.planning.split_plan import plan_stack
from jaxgen.offload.planning.restore_plan import ContextCost

LAYERS = 4
COST = ContextCost(kv_bytes=8.0, x_bytes=4.0, projection_flops=0.0)


def step(tokens: int, projected: int, noise: float = 1.0) -> StepSeconds:
    """A link of 100 bytes a second and 0.3 s a copy; a layer takes 3 s, 0.01 s a token and 0.05 s a projected one."""
    num_bytes, copies = LAYERS * (projected * 4 + (tokens - projected) * 8), LAYERS * tokens // 10
    device = LAYERS * (3 + 0.01 * tokens + 0.05 * projected)
    return StepSeconds(tokens, projected, copies, num_bytes, num_bytes / 100 + 0.3 * copies, device * noise, 2.0)


STEPS = [step(100, 0), step(100, 0), step(100, 0, noise=9.0), step(300, 0), step(100, 100), step(300, 300)]


def test_rates_are_found_again() -> None:
    rates = StreamRates.fit(STEPS, LAYERS)
    assert astuple(rates) == pytest.approx((LAYERS, 100.0, 0.3, 3.0, 0.01, 0.05, 2.0))
    assert rates.unit(COST, 10).kv == pytest.approx(0.11)
    assert rates.unit(COST, 10).x == pytest.approx(0.07)
    assert rates.stack(200).device_seconds == pytest.approx(5.0)


def test_a_single_length_has_no_slope() -> None:
    rates = StreamRates.fit([step(100, 0), step(100, 100)], LAYERS)
    assert (rates.device_seconds, rates.device_seconds_per_token) == (4.0, 0.0)
    assert rates.project_seconds == pytest.approx(0.05)


def test_a_link_without_a_line_has_one_rate() -> None:
    """Copies of one size, or larger ones that took less."""
    flat = [StepSeconds(100, projected, 10, size, 7.0, 1.0, 1.0) for projected, size in ((0, 700), (100, 700))]
    rates = StreamRates.fit(flat, LAYERS)
    assert rates.bytes_per_second == pytest.approx(100.0)
    assert rates.copy_seconds == 0.0
    falling = [StepSeconds(100, 0, 10, 700, 6.0, 1.0, 1.0), StepSeconds(100, 100, 10, 350, 8.0, 1.0, 1.0)]
    assert StreamRates.fit(falling, LAYERS).copy_seconds == 0.0


@pytest.mark.parametrize("steps", [[], [step(100, 100)]])
def test_rates_need_steps_that_project_nothing(steps: list[StepSeconds]) -> None:
    with pytest.raises(ValueError, match="project nothing"):
        StreamRates.fit(steps, LAYERS)


def test_what_was_never_projected_is_not() -> None:
    rates = StreamRates.fit([step(100, 0), step(300, 0)], LAYERS)
    assert rates.project_seconds == inf
    assert rates.plan(200, COST, 8).project == 0


def test_the_split_is_the_plans() -> None:
    rates = replace(StreamRates.fit(STEPS, LAYERS), copy_seconds=0.0)
    plan = plan_stack(200, unit=rates.unit(COST, 8), chunk=8, limit=200, stack=rates.stack(200))
    assert 0 < plan.project < 200
    assert rates.plan(200, COST, 8) == plan


def test_steps_that_copied_nothing_say_nothing() -> None:
    idle = StepSeconds(0, 0, 0, 0, 0.0, 99.0, 99.0)
    assert StreamRates.fit([idle, *STEPS, idle], LAYERS) == StreamRates.fit(STEPS, LAYERS)
