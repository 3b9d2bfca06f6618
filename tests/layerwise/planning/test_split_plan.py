"""Splits of streamed decoding against simulated schedules, all splits, and the bounds worked out for KVPR's models."""

from itertools import accumulate

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jaxgen.layerwise.planning.split_plan import Stack, StreamPlan, plan_stack
from jaxgen.offload.planning.restore_plan import ContextCost, Rates, TokenSeconds
from tests.support.restore_cases import cost_of

seconds = st.floats(1e-3, 10.0)


@st.composite
def units(draw: st.DrawFn) -> TokenSeconds:
    kv = draw(seconds)
    return TokenSeconds(kv, kv * draw(st.sampled_from([0.1, 0.375, 0.5, 0.9, 1.0, 2.0])), draw(seconds))


@st.composite
def grids(draw: st.DrawFn) -> dict[str, int]:
    tokens = draw(st.integers(0, 40))
    return {"tokens": tokens, "chunk": draw(st.integers(1, 5)), "limit": draw(st.integers(0, tokens))}


def splits(grid: dict[str, int]) -> range:
    return range(0, grid["limit"] + 1, grid["chunk"])


def in_turn(unit: TokenSeconds, project: int, transfer: int) -> float:
    """The paper's objective."""
    return project * unit.x + max(project * unit.project, transfer * unit.kv)


def pipelined(unit: TokenSeconds, project: int, transfer: int, chunk: int) -> float:
    """Simulated: copies of X one after another, each projected when it is there and the device is free; then KV."""
    link = device = 0.0
    for _ in range(project // chunk):
        link += chunk * unit.x
        device = max(device, link) + chunk * unit.project
    return max(device, link + transfer * unit.kv)


def stack_end(unit: TokenSeconds, project: int, transfer: int, chunk: int, stack: Stack) -> float:
    """Simulated: the link carries layer after layer; the device projects a copy when it is there, in the layers' order,
    and computes a layer when its context is whole."""
    link = device = 0.0
    for _ in range(stack.layers):
        for _ in range(project // chunk):
            link += chunk * unit.x
            device = max(device, link) + chunk * unit.project
        link += transfer * unit.kv
        device = max(device, link) + stack.device_seconds
    return device + stack.other_seconds


def check(plan: StreamPlan, grid: dict[str, int], times: dict[int, float]) -> None:
    assert plan.project in splits(grid)
    assert plan.project + plan.transfer == grid["tokens"]
    assert plan.seconds == pytest.approx(times[plan.project])
    assert plan.seconds == pytest.approx(min(times.values()))
    assert plan.transfer_seconds == pytest.approx(times[0])


stacks = st.builds(Stack, st.integers(1, 6), st.floats(0, 30), st.floats(0, 5))


@given(units(), grids(), stacks)
@example(TokenSeconds(2.4, 2.0, 1.4), {"tokens": 20, "chunk": 5, "limit": 20}, Stack(1, 0.0))  # the last copy decides
def test_by_layer_no_split_is_better(unit: TokenSeconds, grid: dict[str, int], stack: Stack) -> None:
    times = {part: stack_end(unit, part, grid["tokens"] - part, grid["chunk"], stack) for part in splits(grid)}
    check(plan_stack(unit=unit, stack=stack, **grid), grid, times)


@given(units(), grids())
def test_pipelining_is_never_slower(unit: TokenSeconds, grid: dict[str, int]) -> None:
    for part in splits(grid):
        transfer = grid["tokens"] - part
        seconds = pipelined(unit, part, transfer, grid["chunk"])
        assert unit.makespan(part, transfer, chunk=grid["chunk"]) == pytest.approx(seconds)
        assert seconds <= in_turn(unit, part, transfer) * (1 + 1e-12)


@given(seconds, seconds, seconds, st.integers(1, 6), st.integers(0, 6))
def test_x_before_kv_is_the_best_place_for_it(kv: float, x: float, work: float, copies: int, transfer: int) -> None:
    unit = TokenSeconds(kv, x, work)
    for before in range(transfer + 1):
        arrivals = list(accumulate([before * kv, *[x] * copies]))[1:]
        device = 0.0
        for arrival in arrivals:
            device = max(device, arrival) + work
        later = max(device, arrivals[-1] + (transfer - before) * kv)
        assert unit.makespan(copies, transfer, chunk=1) <= later * (1 + 1e-12)


@given(st.floats(1e8, 1e12), st.floats(0, 1e16), st.integers(0, 4096))
def test_llama_3_8b_never_projects(link: float, flops: float, tokens: int) -> None:
    layer = cost_of(num_layers=1, hidden_size=4096, num_kv_heads=8, head_dim=128)
    unit = TokenSeconds.of(layer, Rates(link, flops, step_seconds=1.0), 16)
    plan = plan_stack(tokens, unit=unit, chunk=16, limit=tokens, stack=Stack(4, 0.1))
    assert (plan.project, plan.transfer, plan.seconds) == (0, tokens, plan.transfer_seconds)


@pytest.mark.parametrize(
    ("hidden_size", "heads", "micros", "part", "turn", "pipe"),
    [
        (4096, 32, (0.512, 0.256, 0.215), 0.70, 0.648, 0.50),  # OPT-6.7B
        (5120, 40, (0.640, 0.320, 0.336), 0.66, 0.672, 0.51),  # OPT-13B
        (7168, 56, (0.896, 0.448, 0.659), 0.58, 0.712, 0.60),  # OPT-30B
    ],
)
def test_bounds_of_the_schedules_on_the_papers_machine(
    hidden_size: int, heads: int, micros: tuple[float, ...], part: float, turn: float, pipe: float
) -> None:
    """An A100 at its full 312 TFLOP/s behind 32 GB/s, 2 bytes an element; a prompt of 1024 with copies of one token,
    as the bound of pipelining is for copies without end."""
    layer = cost_of(num_layers=1, hidden_size=hidden_size, num_kv_heads=heads, head_dim=128)
    unit = TokenSeconds.of(layer, Rates(32e9, 312e12, step_seconds=1.0), 1)
    assert [unit.kv * 1e6, unit.x * 1e6, unit.project * 1e6] == pytest.approx(micros, abs=5e-4)
    seconds, project = min((in_turn(unit, part, 1024 - part), part) for part in range(1025))
    assert project / 1024 == pytest.approx(part, abs=0.006)
    assert seconds / in_turn(unit, 0, 1024) == pytest.approx(turn, abs=6e-4)
    better = plan_stack(1024, unit=unit, chunk=1, limit=1024, stack=Stack(1, 0.0))
    assert better.seconds / better.transfer_seconds == pytest.approx(pipe, abs=6e-3)


def test_a_copy_s_fixed_seconds_are_shared_by_its_tokens() -> None:
    layer = ContextCost(1000.0, 500.0, 2000.0)
    rates = Rates(100.0, 50.0, step_seconds=1.0, copy_seconds=8.0)
    assert TokenSeconds.of(layer, rates, 16) == TokenSeconds(10.5, 5.5, 40.0)


@pytest.mark.parametrize(
    "wrong",
    [{"chunk": 0}, {"limit": -1}, {"limit": 101}, {"unit": TokenSeconds.of(ContextCost(2, 1, 1), Rates(0, 1, 1), 1)}],
)
def test_arguments_out_of_range_are_refused(wrong: dict[str, int]) -> None:
    arguments = {"unit": TokenSeconds(2.0, 1.0, 1.0), "chunk": 1, "limit": 100, **wrong}
    with pytest.raises(ValueError, match=r"chunk|link"):
        plan_stack(100, stack=Stack(1, 1.0), **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(("layers", "device", "other"), [(0, 1.0, 1.0), (1, -1.0, 1.0), (1, 1.0, float("nan"))])
def test_stacks_out_of_range_are_refused(layers: int, device: float, other: float) -> None:
    with pytest.raises(ValueError, match="layer"):
        Stack(layers, device, other)


def test_a_plan_that_saves_little_is_to_project_nothing() -> None:
    assert StreamPlan(30, 70, 0.94, 1.0).if_it_pays() == StreamPlan(30, 70, 0.94, 1.0)
    assert StreamPlan(30, 70, 0.96, 1.0).if_it_pays() == StreamPlan(0, 100, 1.0, 1.0)
