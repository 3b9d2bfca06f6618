"""Plans of a restore against a simulated schedule, all splits, linear programs, and figures worked out by hand."""

from dataclasses import dataclass, replace
from itertools import accumulate, product
from math import inf, isclose
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import LinearConstraint, linprog, milp

from jaxgen.offload.planner import MIN_GAIN, ContextCost, Rates, RestorePlan, TokenSeconds, plan_restore

MHA_7B = ContextCost.of_model(num_layers=32, hidden_size=4096, num_kv_heads=32, head_dim=128)
EXACT = {"mip_rel_gap": 0.0}
LLAMA_3_8B = ContextCost.of_model(num_layers=32, hidden_size=4096, num_kv_heads=8, head_dim=128)


@dataclass(frozen=True)
class Case:
    """Arguments of plan_restore; the costs by way of Rates of 1 byte and 1 FLOP a second."""

    blocks: int
    block_size: int
    start: int
    cost: ContextCost
    rates: Rates
    free_tokens: int
    x_stored: bool
    price: float
    copy_blocks: int = 1
    """Of a copy of X."""

    def plan(self) -> RestorePlan:
        return plan_restore(
            self.blocks * self.block_size,
            start=self.start,
            block_size=self.block_size,
            cost=self.cost,
            rates=self.rates,
            free_tokens=self.free_tokens,
            x_stored=self.x_stored,
            price=self.price,
            copy_tokens=self.copy_blocks * self.block_size,
        )

    def recompute(self, blocks: int) -> float:
        """A sum over tokens, each at the middle of its position."""
        alpha, beta = self.rates.step_seconds / self.free_tokens, self.rates.seconds_per_position
        positions = range(self.start, self.start + blocks * self.block_size)
        return sum(alpha + beta * (position + 0.5) for position in positions)

    def copies(self) -> tuple[float, float, float]:
        """Seconds of a block: its KV, its X, its projection."""
        size, copy = self.block_size, self.rates.copy_seconds
        return size * self.cost.kv_bytes + copy, size * self.cost.x_bytes + copy, size * self.cost.projection_flops

    def seconds(self, first: int, project: int, *, price: float = 1.0) -> float:
        """Of blocks: the schedule of planner.py, simulated."""
        kv, x, work = self.copies()
        copies, blocks = project // self.copy_blocks, self.copy_blocks
        link = [blocks * x] * copies + [kv] * (self.blocks - first - project)
        arrivals = list(accumulate(link))[:copies]
        return max(device_ends(price * self.recompute(first), arrivals, blocks * work), sum(link))

    def all_plans(self) -> list[tuple[int, int]]:
        pays = self.x_stored and self.cost.x_bytes < self.cost.kv_bytes
        return [
            (first, project)
            for first in range(self.blocks + 1)
            for project in range(0, self.blocks - first + 1 if pays else 1, self.copy_blocks)
        ]


def device_ends(first: float, arrivals: list[float], work: float, then: float = 0.0) -> float:
    """When a device is done that works ``first`` seconds, then ``work`` on each arrival, then ``then`` seconds."""
    now = first
    for arrival in arrivals:
        now = max(now, arrival) + work
    return now + then


seconds = st.floats(1e-3, 10.0)
counts = st.integers(0, 8)


@st.composite
def cases(draw: st.DrawFn, *, x_stored: bool | None = None, beta: bool = True, most_copied: int = 1) -> Case:
    rates = Rates(
        link_bytes_per_second=1.0,
        flops_per_second=1.0,
        step_seconds=draw(st.floats(0.1, 100.0)),
        copy_seconds=draw(st.sampled_from([0.0, 0.0, 0.5, 3.0])),
        seconds_per_position=draw(st.sampled_from([0.0, 1e-3, 0.1, 3.0])) if beta else 0.0,
    )
    kv = draw(seconds)
    cost = ContextCost(kv, kv * draw(st.sampled_from([0.1, 0.375, 0.5, 0.9, 1.0, 2.0])), draw(seconds))
    stored = draw(st.booleans()) if x_stored is None else x_stored
    block_size, start = draw(st.sampled_from([1, 3, 4])), draw(st.sampled_from([0, 7, 100]))
    price = draw(st.sampled_from([1.0, 1.0, 1.5, 10.0]))
    blocks, free, copied = draw(st.integers(1, 10)), draw(st.integers(1, 20)), draw(st.integers(1, most_copied))
    return Case(blocks, block_size, start, cost, rates, free, stored, price, copied)


@settings(max_examples=1000)
@given(cases(most_copied=4))
def test_no_split_is_better(case: Case) -> None:
    plan = case.plan()
    best = min(case.seconds(*split, price=case.price) for split in case.all_plans())
    assert plan.recompute + plan.project + plan.transfer == case.blocks * case.block_size
    first, project = plan.recompute // case.block_size, plan.project // case.block_size
    assert (first * case.block_size, project * case.block_size) == (plan.recompute, plan.project)
    if isclose(best, (1 - MIN_GAIN) * plan.transfer_seconds):
        return
    if best > (1 - MIN_GAIN) * plan.transfer_seconds:
        assert (first, project) == (0, 0)
    else:
        assert case.seconds(first, project, price=case.price) == pytest.approx(best)


@given(cases(most_copied=4))
def test_predicted_times_are_those_of_the_simulated_schedule_without_the_price(case: Case) -> None:
    plan = case.plan()
    split = plan.recompute // case.block_size, plan.project // case.block_size
    assert plan.seconds == pytest.approx(case.seconds(*split))
    assert plan.transfer_seconds == pytest.approx(case.seconds(0, 0))
    assert plan.recompute_seconds == pytest.approx(case.recompute(case.blocks))


@given(seconds, seconds, seconds, st.sampled_from([0.0, 0.3, 5.0]), st.integers(0, 3), st.integers(0, 3))
def test_no_order_of_copies_and_work_is_better(
    kv: float, x: float, work: float, busy: float, project: int, transfer: int
) -> None:
    """X first or last on the link or mixed with KV, other work before, between or after the projections."""
    times = []
    for order in set(product((x, kv), repeat=project + transfer)):
        if order.count(x) != project and x != kv:
            continue
        ends = list(accumulate(order))
        arrivals = [end for end, length in zip(ends, order, strict=True) if length == x][:project]
        for before in range(project + 1):
            now = device_ends(0.0, arrivals[:before], work, busy)
            times.append(max(device_ends(now, arrivals[before:], work), *ends, 0.0))
    unit = TokenSeconds(kv, x, work)
    assert unit.makespan(project, transfer, chunk=1, busy=busy) == pytest.approx(min(times))


@given(cases(x_stored=True, beta=False))
def test_an_integer_program_finds_nothing_better(case: Case) -> None:
    """Blocks a and l, z = 1 if l > 0, and T are the variables; the fill of a single copy is counted where z = 1."""
    if case.cost.x_bytes >= case.cost.kv_bytes:
        return
    kv, x, work = case.copies()
    first, n = case.price * case.recompute(1), case.blocks
    rows: list[list[float]] = [
        [first, work, 0, -1],
        [0, work, x, -1],
        [0, x, work, -1],
        [-kv, x - kv, 0, -1],
        [0, 1, -n, 0],
        [1, 1, 0, 0],
    ]
    limits: list[float] = [0, 0, 0, -n * kv, 0, n]
    bounds = ([0, 0, 0, 0], [n, n, 1, np.inf])
    constraints = LinearConstraint(np.divide(rows, n * kv), ub=np.divide(limits, n * kv))
    solved = milp([0, 0, 0, 1], integrality=[1, 1, 1, 0], constraints=constraints, bounds=bounds, options=EXACT)
    assert solved.success
    plan = case.plan()
    taken = case.seconds(plan.recompute // case.block_size, plan.project // case.block_size, price=case.price)
    if solved.fun < (1 - MIN_GAIN - 1e-5) * plan.transfer_seconds:
        assert taken == pytest.approx(solved.fun, rel=1e-5)
    elif solved.fun > (1 - MIN_GAIN + 1e-5) * plan.transfer_seconds:
        assert plan.transfer == n * case.block_size


def test_the_grid_is_near_a_linear_program_of_real_tokens() -> None:
    """Tokens in blocks of 16 cost at most one block of each kind more than any real numbers of them."""
    rates = Rates(25e9, 187e12, step_seconds=0.025, copy_seconds=1e-5)
    for tokens, free, price in product((1024, 16384), (20, 200, 2000), (1.0, 3.0)):
        plan = plan_restore(
            tokens, start=0, block_size=16, cost=MHA_7B, rates=rates, free_tokens=free, x_stored=True, price=price
        )
        unit = TokenSeconds.of(MHA_7B, rates, 16)
        alpha = price * rates.step_seconds / free
        rows = [[alpha, unit.project, -1], [-unit.kv, unit.x - unit.kv, -1], [1, 1, 0]]
        solved = linprog([0, 0, 1], A_ub=rows, b_ub=[0, -tokens * unit.kv, tokens])
        taken = unit.makespan(plan.project, plan.transfer, chunk=16, busy=alpha * plan.recompute)
        assert solved.fun <= taken * (1 + 1e-9)
        assert taken <= solved.fun + 16 * (alpha + unit.project + unit.x + unit.kv)


@given(cases(x_stored=False))
def test_recompute_ends_where_the_closed_form_says(case: Case) -> None:
    n, size, price = case.blocks * case.block_size, case.block_size, case.price
    alpha, beta = price * case.rates.step_seconds / case.free_tokens, price * case.rates.seconds_per_position
    tau = case.copies()[0] / size
    a = (
        2
        * tau
        * n
        / (alpha + beta * case.start + tau + ((alpha + beta * case.start + tau) ** 2 + 2 * beta * tau * n) ** 0.5)
    )
    assert alpha * a + beta * (case.start * a + a**2 / 2) == pytest.approx(tau * (n - a))
    plan = case.plan()
    assert plan.recompute == 0 or abs(plan.recompute - a) < size * (1 + 1e-9)


@pytest.mark.parametrize(
    ("projection", "free_tokens", "beta", "start", "x_stored", "kinds"),
    [
        (187e12, 200, 2.8e-9, 0, False, "recompute transfer"),
        (187e12, 20, 3e-9, 65536, False, "recompute transfer"),
        (187e12, 20, 0.0, 0, True, "recompute project"),
        (187e12, 200, 2.8e-9, 4096, True, "recompute project"),
        (3e12, 200, 0.0, 0, True, "recompute transfer"),
        (0.0, 200, 2.8e-9, 0, True, "recompute transfer"),
        (3e12, 20, 3e-8, 0, True, "recompute project transfer"),
        (3e12, 20, 3e-8, 4096, True, "recompute project transfer"),
    ],
)
def test_few_of_2048_first_blocks_are_tried(
    monkeypatch: pytest.MonkeyPatch,
    projection: float,
    free_tokens: int,
    beta: float,
    start: int,
    x_stored: bool,
    kinds: str,
) -> None:
    """The closed forms say where to look: a walk that began elsewhere would find the same plan, but late."""
    tried = []
    split = TokenSeconds.split

    def counted(*args: Any, **kwargs: Any) -> int:
        tried.append(args)
        return split(*args, **kwargs)

    monkeypatch.setattr(TokenSeconds, "split", counted)
    rates = Rates(1e9, projection, step_seconds=0.025, copy_seconds=1e-5, seconds_per_position=beta)
    plan = plan_restore(
        131072, start=start, block_size=64, cost=MHA_7B, rates=rates, free_tokens=free_tokens, x_stored=x_stored
    )
    assert [kind for kind in ("recompute", "project", "transfer") if getattr(plan, kind)] == kinds.split()
    assert len(tried) <= 32


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


def llama_3_8b(tokens: int, **changes: float) -> RestorePlan:
    rates = Rates(25e9, 187e12, step_seconds=0.02, seconds_per_position=2.8e-9)
    situation = {"start": 0, "block_size": 64, "free_tokens": 256, "x_stored": False, "price": 1.0}
    situation |= {name: value for name, value in changes.items() if name in situation}
    rates = replace(rates, **{name: value for name, value in changes.items() if name not in situation})
    return plan_restore(tokens, cost=LLAMA_3_8B, rates=rates, **situation)  # type: ignore[arg-type]


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
    ("hidden_size", "kv_heads", "head_dim", "x_itemsize", "ratio"),
    [
        (4096, 32, 128, 2, 0.5),  # Llama-2-7B, OPT-6.7B
        (3072, 32, 96, 2, 0.5),  # Phi-3-mini
        (3072, 16, 256, 2, 0.375),  # Gemma-7B
        (3584, 8, 256, 2, 0.875),  # Gemma-2-9B
        (1024, 8, 128, 2, 0.5),  # Qwen3-0.6B
        (2048, 8, 128, 2, 1.0),  # Qwen3-1.7B
        (2560, 8, 128, 2, 1.25),  # Qwen3-4B
        (2048, 8, 64, 2, 2.0),  # Llama-3.2-1B
        (4096, 8, 128, 2, 2.0),  # Llama-3-8B
        (3584, 4, 128, 2, 3.5),  # Qwen2.5-7B
        (4544, 1, 64, 2, 35.5),  # Falcon-7B
        (8192, 8, 128, 2, 4.0),  # Llama-3-70B
        (4096, 32, 128, 4, 1.0),  # Llama-2-7B with KV of half the itemsize
    ],
)
def test_projection_pays_where_x_has_fewer_bytes_than_kv(
    hidden_size: int, kv_heads: int, head_dim: int, x_itemsize: int, ratio: float
) -> None:
    cost = ContextCost.of_model(
        num_layers=3, hidden_size=hidden_size, num_kv_heads=kv_heads, head_dim=head_dim, x_itemsize=x_itemsize
    )
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
    cost = ContextCost.of_model(num_layers=layers, hidden_size=hidden_size, num_kv_heads=kv_heads, head_dim=head_dim)
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
