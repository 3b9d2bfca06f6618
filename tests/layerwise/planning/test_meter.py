"""What a streaming engine learns of its machine from steps that overlap."""

import pytest

from jaxgen.layerwise.planning.meter import MOST_CHANGE, StreamMeter
from jaxgen.layerwise.planning.rates import StreamRates
from jaxgen.offload.planning.restore_plan import ContextCost

COST = ContextCost(kv_bytes=1000.0, x_bytes=500.0, projection_flops=0.0)
CHUNK, TOKENS = 10, 400


def rates(device: float = 1.0) -> StreamRates:
    """Of a machine on which copying a token's KV takes 1 ms, and projecting it 0.4 ms, both times ``device``."""
    return StreamRates(
        num_layers=8,
        bytes_per_second=1e6,
        copy_seconds=0.0,
        device_seconds=0.02 * device,
        device_seconds_per_token=0.00005 * device,
        project_seconds=0.0004 * device,
        other_seconds=0.005,
    )


def meter() -> StreamMeter:
    return StreamMeter(rates(), rates(), COST, CHUNK)


def took(machine: StreamRates, project: int) -> float:
    """Seconds of a step on a machine of these rates."""
    unit, stack = machine.unit(COST, CHUNK), machine.stack(TOKENS)
    return stack.seconds(project, TOKENS - project, unit=unit, chunk=CHUNK)


def steps(found: StreamMeter, machine: StreamRates, count: int = 60) -> list[int]:
    """As planned, on a machine of these rates: what each projects."""
    planned = []
    for _ in range(count):
        planned.append(found.plan(TOKENS, decodes=True).project)
        found.observe_step(TOKENS, planned[-1], took(machine, planned[-1]), decodes=True)
    return planned


def test_nothing_changes_on_the_machine_that_was_measured() -> None:
    found = meter()
    assert len(set(steps(found, rates()))) == 1
    assert found.device_slowness == pytest.approx(1.0)


@pytest.mark.parametrize("slowness", [1.5, 3.0])
def test_a_slower_device_gets_less_to_project(slowness: float) -> None:
    found, machine = meter(), rates(slowness)
    planned = steps(found, machine)
    best = min(range(0, TOKENS + 1, CHUNK), key=lambda project: took(machine, project))
    assert planned[0] > planned[-1]
    assert took(machine, planned[-1]) <= 1.1 * took(machine, best)
    assert took(machine, planned[0]) > 1.15 * took(machine, best), "else there was nothing to learn"


def test_it_gets_more_again_when_the_device_recovers() -> None:
    found = meter()
    first = steps(found, rates())[0]
    assert steps(found, rates(3.0))[-1] < first
    last = steps(found, rates(), 400)[-1]
    assert took(rates(), last) <= 1.1 * took(rates(), first)


def test_a_pace_that_is_the_links_says_nothing_of_the_device() -> None:
    found = meter()
    found.observe_step(TOKENS, 0, took(rates(), 0), decodes=True)
    found.observe_step(TOKENS, 0, 1.5 * took(rates(), 0), decodes=True)
    assert found.device_slowness == 1.0


def test_one_step_tells_of_no_more_than_a_bounded_change() -> None:
    found = meter()
    found.observe_step(TOKENS, TOKENS, 1e6, decodes=True)
    assert found.device_slowness == pytest.approx(1 + 0.1 * (MOST_CHANGE - 1))
