"""Plans of a restore: bounds on any machine, figures worked out by hand, and what is refused."""

from dataclasses import replace
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxgen.core.host_dtype import HostDType
from jaxgen.offload.planning.restore_plan import MIN_GAIN, ContextCost, Rates, RestorePlan, plan_restore
from tests.support.restore_cases import LLAMA_3_8B, MHA_7B, Case, cases, cost_of

rates_of_any_machine = st.builds(
    Rates,
    link_bytes_per_second=st.floats(0, 1e13),
    flops_per_second=st.floats(0, 1e17),
    step_seconds=st.floats(1e-4, 10),
    copy_seconds=st.floats(0, 1),
    seconds_per_position=st.floats(0, 1e-3),
)
situations = st.fixed_dictionaries(
    {
        "start": st.integers(0, 10**6),
        "free_tokens": st.integers(0, 1024),
        "x_stored": st.booleans(),
        "price": st.floats(1, 1e6),
    }
)


@given(st.integers(0, 2048), rates_of_any_machine, situations)
def test_llama_3_8b_never_projects(blocks: int, rates: Rates, situation: dict[str, float]) -> None:
    plan = plan_restore(blocks * 16, block_size=16, cost=LLAMA_3_8B, rates=rates, **situation)  # type: ignore[arg-type]
    assert plan.project == 0


@given(st.integers(0, 2048), st.booleans(), rates_of_any_machine, situations)
def test_no_plan_is_slower_than_plain_transfer(
    blocks: int, heads: bool, rates: Rates, situation: dict[str, float]
) -> None:
    cost = MHA_7B if heads else LLAMA_3_8B
    plan = plan_restore(blocks * 16, block_size=16, cost=cost, rates=rates, **situation)  # type: ignore[arg-type]
    assert plan.seconds <= plan.transfer_seconds
    assert plan.recompute + plan.project + plan.transfer == blocks * 16
    assert min(plan.recompute, plan.project, plan.transfer) >= 0


@given(cases(), st.floats(1, 20))
def test_a_higher_price_recomputes_no_more_and_at_last_nothing(case: Case, times: float) -> None:
    plan, dearer = case.plan(), replace(case, price=case.price * times).plan()
    if not case.x_stored:
        assert dearer.recompute <= plan.recompute
    enough = max(1.0, plan.transfer_seconds / case.recompute(1))
    assert replace(case, price=enough * (1 + 1e-9)).plan().recompute == 0


def test_a_device_that_is_slower_than_numbers_can_say_never_projects() -> None:
    """Seconds beyond the largest float are infinite, without a warning."""
    rates = Rates(1e6, 2.64e-298, step_seconds=1.0, copy_seconds=0.0, seconds_per_position=0.0)
    plan = plan_restore(16, start=0, block_size=16, cost=MHA_7B, rates=rates, free_tokens=1, x_stored=True)
    assert plan.project == 0


def llama_3_8b(tokens: int, **changes: float) -> RestorePlan:
    rates = Rates(25e9, 187e12, step_seconds=0.02, seconds_per_position=2.8e-9)
    situation = {"start": 0, "block_size": 64, "free_tokens": 256, "x_stored": False, "price": 1.0}
    situation |= {name: value for name, value in changes.items() if name in situation}
    rates = replace(rates, **{name: value for name, value in changes.items() if name not in situation})
    return plan_restore(tokens, cost=LLAMA_3_8B, rates=rates, **situation)  # type: ignore[arg-type]


def test_a_snapshot_takes_the_link_unless_all_is_computed() -> None:
    """A token is computed in 1 ms here, and copied in 1 ms."""
    cost, rates = ContextCost(1e3, 0.0, 0.0), Rates(1e6, 0.0, step_seconds=0.064)

    def planned(state_bytes: int) -> RestorePlan:
        situation: dict[str, Any] = {"start": 0, "block_size": 16, "free_tokens": 64, "x_stored": False}
        return plan_restore(640, cost=cost, rates=rates, state_bytes=state_bytes, **situation)

    assert [planned(size).recompute for size in (0, 160_000, 10**7)] == [320, 400, 640]
    assert [planned(size).seconds for size in (0, 160_000, 10**7)] == pytest.approx([0.32, 0.4, 0.64])
    assert planned(160_000).transfer_seconds == pytest.approx(0.8)


def test_nothing_to_restore_takes_no_time() -> None:
    assert llama_3_8b(0) == RestorePlan(0, 0, 0, 0.0, 0.0, 0.0)
    assert llama_3_8b(0, link_bytes_per_second=0, free_tokens=0) == RestorePlan(0, 0, 0, 0.0, 0.0, 0.0)


def test_without_a_known_link_all_is_recomputed() -> None:
    plan = llama_3_8b(640, link_bytes_per_second=0, x_stored=True, price=100)
    assert (plan.recompute, plan.transfer_seconds, plan.seconds) == (640, inf, plan.recompute_seconds)
    assert plan.seconds == pytest.approx(640 * 0.02 / 256 + 2.8e-9 * 640**2 / 2)
    assert llama_3_8b(640, link_bytes_per_second=1e-310).recompute == 640


def test_a_link_slower_than_everything_carries_nothing() -> None:
    plan = llama_3_8b(640, link_bytes_per_second=1e6)
    assert (plan.recompute, plan.seconds) == (640, plan.recompute_seconds)


def test_a_link_without_limit_carries_everything() -> None:
    assert llama_3_8b(640, link_bytes_per_second=inf) == RestorePlan(
        0, 0, 640, 0.0, 0.0, llama_3_8b(640).recompute_seconds
    )


def test_without_free_tokens_nothing_is_recomputed() -> None:
    plan = llama_3_8b(6400, link_bytes_per_second=1e8, free_tokens=0)
    assert (plan.recompute, plan.transfer, plan.recompute_seconds) == (0, 6400, inf)


def test_a_small_gain_is_left() -> None:
    """tau = 131072 / 25e9 = 5.24e-6: recompute saves tau / (alpha + tau) of a transfer, which is 5 % at 9.96e-5."""
    assert llama_3_8b(64000, step_seconds=9.9e-5, free_tokens=1, seconds_per_position=0, block_size=1).recompute > 3200
    assert llama_3_8b(64000, step_seconds=1.0e-4, free_tokens=1, seconds_per_position=0, block_size=1).recompute == 0


def test_what_comes_after_more_tokens_is_dearer_to_recompute() -> None:
    near, far = (llama_3_8b(6400, link_bytes_per_second=1e9, start=start) for start in (0, 64000))
    assert far.recompute < near.recompute
    assert far.recompute_seconds - near.recompute_seconds == pytest.approx(2.8e-9 * 64000 * 6400)


def test_x_is_projected_only_where_it_is_stored_and_its_rate_known() -> None:
    rates = Rates(25e9, 187e12, step_seconds=0.1)
    situation = {"start": 0, "block_size": 64, "cost": MHA_7B, "free_tokens": 256}
    plans = [
        plan_restore(6400, rates=rates, x_stored=True, **situation),  # type: ignore[arg-type]
        plan_restore(6400, rates=rates, x_stored=False, **situation),  # type: ignore[arg-type]
        plan_restore(6400, rates=replace(rates, flops_per_second=0), x_stored=True, **situation),  # type: ignore[arg-type]
    ]
    assert [plan.project > 0 for plan in plans] == [True, False, False]


@pytest.mark.parametrize(
    ("hidden_size", "kv_heads", "head_dim", "host", "ratio"),
    [
        (4096, 32, 128, "auto", 0.5),  # Llama-2-7B, OPT-6.7B
        (3072, 32, 96, "auto", 0.5),  # Phi-3-mini
        (3072, 16, 256, "auto", 0.375),  # Gemma-7B
        (3584, 8, 256, "auto", 0.875),  # Gemma-2-9B
        (1024, 8, 128, "auto", 0.5),  # Qwen3-0.6B
        (2048, 8, 128, "auto", 1.0),  # Qwen3-1.7B
        (2560, 8, 128, "auto", 1.25),  # Qwen3-4B
        (2048, 8, 64, "auto", 2.0),  # Llama-3.2-1B
        (4096, 8, 128, "auto", 2.0),  # Llama-3-8B
        (3584, 4, 128, "auto", 3.5),  # Qwen2.5-7B
        (4544, 1, 64, "auto", 35.5),  # Falcon-7B
        (8192, 8, 128, "auto", 4.0),  # Llama-3-70B
        (4096, 32, 128, "int8", 16 / 17),  # Llama-2-7B in int8 in host memory
    ],
)
def test_projection_pays_where_x_has_fewer_bytes_than_kv(
    hidden_size: int, kv_heads: int, head_dim: int, host: HostDType, ratio: float
) -> None:
    cost = cost_of(num_layers=3, hidden_size=hidden_size, num_kv_heads=kv_heads, head_dim=head_dim, host=host)
    assert cost.x_bytes / cost.kv_bytes == ratio
    assert cost.projection_flops == 3 * 4 * hidden_size * kv_heads * head_dim
    fast = Rates(1e9, 1e18, step_seconds=1.0)
    plan = plan_restore(640, start=0, block_size=16, cost=cost, rates=fast, free_tokens=1, x_stored=True)
    assert (plan.project > 0) == (ratio < 1)


MACHINES = ((0.6 * 312e12, 25e9), (0.5 * 989e12, 50e9), (0.5 * 989e12, 15e9), (0.5 * 989e12, 4e9))
"""FLOP/s that a step reaches, bytes/s of the link: A100, H200, H100 on a poor link, H200 with an SSD."""


@pytest.mark.parametrize(
    ("layers", "hidden_size", "heads", "kv_heads", "head_dim", "params", "gains", "parts"),
    [
        (28, 1024, 16, 8, 128, 0.60e9, (1.48, 1.60, 2.12, 1.33), (0.32, 0.37, 0.62, 0.84)),  # Qwen3-0.6B
        (16, 2048, 32, 8, 64, 1.236e9, (1.10, 1.12, 1.39, 2.03), (0.09, 0.11, 0.28, 0.57)),  # Llama-3.2-1B
        (32, 4096, 32, 8, 128, 8.03e9, (1.06, 1.08, 1.26, 1.90), (0.06, 0.07, 0.20, 0.47)),  # Llama-3.1-8B
        (80, 8192, 64, 8, 128, 70.6e9, (1.02, 1.02, 1.08, 1.28), (0.02, 0.02, 0.07, 0.22)),  # Llama-3.1-70B
        (32, 4096, 32, 32, 128, 6.74e9, (1.27, 1.36, 2.10, 1.33), (0.21, 0.26, 0.52, 0.79)),  # Llama-2-7B
    ],
)
def test_gains_over_the_best_of_transfer_and_recompute_at_16k(
    layers: int,
    hidden_size: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    params: float,
    gains: tuple[float, ...],
    parts: tuple[float, ...],
) -> None:
    """A table worked out apart from this code: 2 FLOPs a parameter and 4 * layers * heads * head_dim a position, KV of
    2 bytes an element, no stored X, no cost of a copy, no other requests. The parameters count the embeddings."""
    cost = cost_of(num_layers=layers, hidden_size=hidden_size, num_kv_heads=kv_heads, head_dim=head_dim)
    for (flops, link), gain, part in zip(MACHINES, gains, parts, strict=True):
        beta = 4 * layers * heads * head_dim / flops
        rates = Rates(link, flops, step_seconds=2 * params / flops, seconds_per_position=beta)
        plan = plan_restore(16384, start=0, block_size=16, cost=cost, rates=rates, free_tokens=1, x_stored=False)
        if gain < 1 / (1 - MIN_GAIN):
            assert plan.recompute == 0
            continue
        assert min(plan.transfer_seconds, plan.recompute_seconds) / plan.seconds == pytest.approx(gain, abs=0.006)
        assert plan.recompute / 16384 == pytest.approx(part, abs=0.006)


@pytest.mark.parametrize(
    "wrong",
    [
        {"tokens": 65},
        {"tokens": -64},
        {"block_size": 0},
        {"start": -1},
        {"free_tokens": -1},
        {"price": 0.5},
        {"price": inf},
        {"price": float("nan")},
    ],
)
def test_arguments_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{'tokens' if 'block_size' in wrong else next(iter(wrong))}"):
        llama_3_8b(**{"tokens": 640, **wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize("tokens", [0, 24, -64])
def test_a_copy_is_of_whole_blocks(tokens: int) -> None:
    rates = Rates(1.0, 1.0, 1.0)
    with pytest.raises(ValueError, match="copy_tokens"):
        plan_restore(
            640,
            start=0,
            block_size=64,
            cost=MHA_7B,
            rates=rates,
            free_tokens=1,
            x_stored=True,
            copy_tokens=tokens,
        )


@pytest.mark.parametrize("name", ["link_bytes_per_second", "flops_per_second", "step_seconds", "copy_seconds"])
@pytest.mark.parametrize("value", [-1.0, float("nan")])
def test_rates_out_of_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        replace(Rates(1.0, 1.0, 1.0), **{name: value})


@pytest.mark.parametrize("value", [0.0, inf])
def test_a_step_takes_some_time(value: float) -> None:
    with pytest.raises(ValueError, match="step_seconds"):
        Rates(1.0, 1.0, step_seconds=value)
