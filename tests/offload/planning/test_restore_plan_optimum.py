"""No plan of a restore is better: against a simulated schedule, all splits, linear programs and closed forms."""

from itertools import accumulate, product
from math import isclose

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import LinearConstraint, linprog, milp

from jaxgen.offload.planning.restore_plan import MIN_GAIN, Rates, TokenSeconds, plan_restore
from tests.support.restore_cases import MHA_7B, Case, cases, device_ends, seconds

EXACT = {"mip_rel_gap": 0.0}


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
