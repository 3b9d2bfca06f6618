"""The knee of synthetic curves, and the roofline of known devices."""

import random
from collections.abc import Callable

import pytest

from jaxgen.hardware.device_info import DeviceInfo
from jaxgen.sizing.token_budget import (
    CPU_BUDGET,
    CPU_WIDTH,
    GPU_WIDTH,
    MOST_BUDGET,
    UNKNOWN_BUDGET,
    default_budget,
    knee,
    least_budget,
    past_knee,
)
from tests.support.hub_configs import described

BUDGETS = (16, 32, 64, 128, 256, 512, 1024, 2048)
A, KNEE = 0.01, 128
"""Fixed seconds of a step, and the tokens whose own time is as much."""


def times(curve: Callable[[float], float], budgets: tuple[int, ...] = BUDGETS) -> dict[int, float]:
    return {budget: curve(budget) for budget in budgets}


def flat_then_linear(tokens: float) -> float:
    return max(A, A * tokens / KNEE)


def affine(tokens: float) -> float:
    return A + A * tokens / KNEE


@pytest.mark.parametrize("curve", [flat_then_linear, affine])
def test_the_knee_is_where_fixed_and_growing_time_are_equal(curve: Callable[[float], float]) -> None:
    assert knee(times(curve)) == KNEE


@pytest.mark.parametrize("curve", [flat_then_linear, affine])
@pytest.mark.parametrize("seed", range(20))
def test_noise_moves_the_knee_by_one_doubling_at_most(curve: Callable[[float], float], seed: int) -> None:
    noise = random.Random(seed)
    measured = {budget: t * noise.lognormvariate(0, 0.05) for budget, t in times(curve).items()}
    assert knee(measured) in (KNEE // 2, KNEE, 2 * KNEE)


def test_without_gain_from_batching_the_smallest_is_best() -> None:
    assert knee(times(lambda tokens: tokens / 1000)) == BUDGETS[0]


def test_without_cost_the_largest_is_best() -> None:
    assert knee(times(lambda tokens: A)) == BUDGETS[-1]
    assert knee({64: A}) == 64


def test_of_equals_the_smaller() -> None:
    assert knee({64: 1.0, 256: 2.0}) == 64


@pytest.mark.parametrize("curve", [flat_then_linear, affine, lambda tokens: tokens / 1000])
def test_no_larger_budget_wins_once_the_knee_is_past(curve: Callable[[float], float]) -> None:
    ends = [end for end in range(1, len(BUDGETS) + 1) if past_knee(times(curve, BUDGETS[:end]))]
    assert ends, "never past"
    assert knee(times(curve, BUDGETS[: ends[0]])) == knee(times(curve))


def test_the_knee_may_not_be_under_a_least_budget() -> None:
    measured = times(lambda tokens: tokens / 1000)
    assert knee(measured, least=128) == 128
    assert knee(measured, least=100) == 128
    assert knee(times(affine), least=16) == KNEE, "a knee above it stays"
    assert knee({16: 1.0, 32: 1.0}, least=128) == 32, "nothing that large was measured"


def test_the_search_goes_on_to_the_least_budget() -> None:
    steep = times(lambda tokens: tokens / 1000, BUDGETS[:3])
    assert past_knee(steep)
    assert past_knee(steep, least=BUDGETS[2])
    assert not past_knee(steep, least=BUDGETS[3])


def test_only_where_padding_costs_nothing_is_there_a_least_budget() -> None:
    cpu = DeviceInfo("cpu", "any", 2)
    assert least_budget(skips_padding=True, is_cpu=True) == CPU_WIDTH
    assert default_budget(cpu, skips_padding=True).tokens == CPU_WIDTH
    assert least_budget(skips_padding=True, is_cpu=False) == GPU_WIDTH
    assert least_budget(skips_padding=False, is_cpu=True) == 1


def test_a_gpu_that_skips_padding_has_wide_steps_and_many_rows() -> None:
    hopper = DeviceInfo("gpu", "NVIDIA H200", 132, compute_capability=(9, 0))
    wide, narrow = default_budget(hopper, skips_padding=True), default_budget(hopper, padded="rotation, biases")
    assert (wide.tokens, wide.most_rows) == (1024, 512)
    assert (narrow.tokens, narrow.most_rows) == (256, 256)
    assert narrow.reason.endswith("; no wider, since XLA computes padding in rotation, biases")


def test_one_slow_reading_does_not_end_the_search() -> None:
    slow = times(affine, BUDGETS[:4]) | {BUDGETS[4]: 10 * A}
    assert not past_knee(slow)
    assert past_knee(slow | {BUDGETS[5]: 20 * A})


def test_never_past_while_tokens_are_free() -> None:
    assert not past_knee(times(lambda tokens: A))
    assert not past_knee({16: A})


@pytest.mark.parametrize(
    ("kind", "budget"),
    [
        ("NVIDIA B200", 320),
        ("NVIDIA H200", 256),
        ("NVIDIA H100 80GB HBM3", 320),
        ("NVIDIA H100 PCIe", 384),
        ("NVIDIA A100-SXM4-80GB", 192),
        ("NVIDIA A100-PCIE-40GB", 256),
        ("NVIDIA L4", 448),
        ("NVIDIA L40S", 448),
        ("NVIDIA A10G", 128),
        ("NVIDIA GeForce RTX 4090", 192),
        ("NVIDIA A10", UNKNOWN_BUDGET),
        ("Some Accelerator", UNKNOWN_BUDGET),
    ],
)
def test_the_roofline_of_a_gpu(kind: str, budget: int) -> None:
    decided = default_budget(DeviceInfo("gpu", kind, 100))
    assert decided.tokens == budget
    assert kind in decided.reason


def test_a_cpu_has_a_constant() -> None:
    assert default_budget(DeviceInfo("cpu", "any", 2)).tokens == CPU_BUDGET
    assert default_budget(DeviceInfo("cpu", "any", 2), active_share=0.1).tokens == CPU_BUDGET


@pytest.mark.parametrize(
    ("name", "active", "budget"),
    [
        ("Qwen3-8B", 1.0, 256),
        ("Mixtral-8x7B-v0.1", 12.9 / 46.7, 960),
        ("gpt-oss-20b", 3.6 / 20.9, 1472),
        ("LFM2-8B-A1B", 1.5 / 8.3, 1472),
        ("Qwen3-30B-A3B-Thinking-2507", 3.3 / 30.5, MOST_BUDGET),
    ],
)
def test_experts_that_few_tokens_choose_want_more_tokens(name: str, active: float, budget: int) -> None:
    """The parameters that cards call active have the embedding too, which is looked up."""
    share = described(name).active_share
    assert share == pytest.approx(active, rel=0.15)
    assert default_budget(DeviceInfo("gpu", "NVIDIA H200", 132), active_share=share).tokens == budget
