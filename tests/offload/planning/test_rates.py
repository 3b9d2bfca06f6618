"""Moving averages, and the link that they are taken from."""

import threading
import time
from math import inf
from typing import Any

import numpy as np
import pytest

from jaxgen.offload.planning.rates import LinkRate, RateMeter
from jaxgen.offload.planning.restore_plan import ContextCost, plan_restore
from jaxgen.offload.transfer.link import Link, Transfer
from jaxgen.scheduling.average import NEWS, Average
from jaxgen.scheduling.cost_model import StepSample
from jaxgen.scheduling.step_time import StepTimeEstimator
from tests.support.restore_cases import steps_of


def test_an_average_forgets() -> None:
    average = Average()
    assert average.value is None
    average.observe(100)
    average.observe(300)
    assert average.value == pytest.approx(100 + NEWS * 200)
    for _ in range(100):
        average.observe(300)
    assert average.value == pytest.approx(300, rel=1e-3)


def test_the_rate_of_a_link_is_that_of_its_times() -> None:
    """Equal bytes at 100 and at 300 bytes per second pass at 150."""
    rate = LinkRate()
    assert rate.bytes_per_second == 0
    for _ in range(400):
        rate.observe(1000, 10.0)
        rate.observe(1000, 10.0 / 3)
    assert rate.bytes_per_second == pytest.approx(150, rel=NEWS)


def test_a_meter_knows_nothing_before_a_copy() -> None:
    meter = RateMeter(steps_of(0.02))
    assert meter.rates() is None
    meter.restore.observe(1000, 1.0)
    rates = meter.rates()
    assert rates is not None
    assert rates.link_bytes_per_second == 1000
    assert rates.step_seconds == pytest.approx(0.02)


def test_predictions_go_wrong_when_the_link_slows_down_unseen_and_recover() -> None:
    """A link that carries half of what the planner knows: the error of the planned restores rises, then falls as the
    moving average learns from their copies."""
    meter, cost, link = RateMeter(steps_of(0.1)), ContextCost(1000.0, 0.0, 0.0), 1e6
    meter.restore.observe(1000, 1000 / link)

    def error() -> float:
        rates = meter.rates()
        assert rates is not None
        plan = plan_restore(4096, start=0, block_size=16, cost=cost, rates=rates, free_tokens=64, x_stored=False)
        copied = plan.transfer * cost.kv_bytes
        assert copied
        meter.restore.observe(int(copied), copied / link)
        actual = max(plan.recompute * 0.1 / 64, copied / link)
        return abs(plan.seconds - actual) / actual

    assert [error() for _ in range(3)] == pytest.approx([0, 0, 0], abs=1e-2)
    link /= 2
    errors = [error() for _ in range(40)]
    assert errors[0] > 0.4
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.02


def wait_for(transfers: list[Transfer], arrived: threading.Condition) -> None:
    with arrived:
        assert arrived.wait_for(lambda: all(t.done for t in transfers), timeout=120)


def test_a_link_copies_in_order_and_says_when() -> None:
    arrived, begun = threading.Condition(), []

    def copy(pieces: Any) -> Any:
        begun.append(float(pieces[0][0]))
        return [np.array(piece) for piece in pieces]

    link = Link("test", copy, arrived)
    sources = [[np.full(10, n, np.float32)] for n in range(5)]
    transfers = [link.submit(source) for source in sources]
    wait_for(transfers, arrived)
    assert begun == [0.0, 1.0, 2.0, 3.0, 4.0]
    for source, transfer in zip(sources, transfers, strict=True):
        assert transfer.pieces[0] is not source[0]
        np.testing.assert_array_equal(transfer.pieces[0], source[0])
    assert link.num_bytes == 5 * 40
    link.close()


def test_a_simulated_link_is_no_faster_than_it_says() -> None:
    """Bytes over bandwidth have passed on the clock, however fast the copy was; it is not said how much more may."""
    arrived = threading.Condition()
    link = Link("slow", lambda pieces: pieces, arrived)
    link.bytes_per_second = 20_000
    started = time.perf_counter()
    transfers = [link.submit([np.zeros(1000, np.int8)]) for _ in range(4)]
    wait_for(transfers, arrived)
    assert time.perf_counter() - started >= 0.2
    assert all(transfer.seconds >= 0.05 for transfer in transfers)
    link.close()


def test_an_error_is_that_of_one_copy() -> None:
    arrived = threading.Condition()

    def copy(pieces: Any) -> Any:
        if len(pieces[0]) == 3:
            raise MemoryError("no room")
        return pieces

    link = Link("failing", copy, arrived)
    transfers = [link.submit([np.zeros(n)]) for n in (2, 3, 4)]
    wait_for(transfers, arrived)
    assert [type(transfer.error) for transfer in transfers] == [type(None), MemoryError, type(None)]
    link.close()


def test_the_thread_ends_with_its_link() -> None:
    link = Link("ending", lambda pieces: pieces, threading.Condition())
    (thread,) = (t for t in threading.enumerate() if t.name == "jaxgen-ending")
    del link
    thread.join(timeout=120)
    assert not thread.is_alive()


def test_what_a_step_takes_longer_is_that_of_the_projection_before_it() -> None:
    meter = RateMeter(steps_of(0.020))
    meter.restore.observe(1000, 1.0)
    rates = meter.rates(projection_flops=1e6)
    assert rates is not None
    assert rates.flops_per_second == 0
    for _ in range(20):
        meter.observe_projection(StepSample(64, 0, 0.050), projected=100)
    rates = meter.rates(projection_flops=1e6)
    assert rates is not None
    assert rates.flops_per_second == pytest.approx(1e6 / 0.0003)
    assert rates.step_seconds == pytest.approx(0.020)
    for _ in range(100):
        meter.observe_projection(StepSample(64, 0, 0.010), projected=100)
    rates = meter.rates(projection_flops=1e6)
    assert rates is not None
    assert 0 < rates.flops_per_second < inf, "a step that was faster than others does not make projections free"


def test_positions_of_a_step_are_not_taken_for_the_projection_before_it() -> None:
    samples = [StepSample(64, positions, 0.020 + 1e-6 * positions) for positions in (0, 10_000, 20_000)]
    meter = RateMeter(StepTimeEstimator(64, samples))
    meter.observe_projection(StepSample(64, 20_000, 0.050), projected=100)
    assert meter.projection.value == pytest.approx(0.0001, rel=1e-3)
    meter.restore.observe(1000, 1.0)
    rates = meter.rates()
    assert rates is not None
    assert rates.seconds_per_position == pytest.approx(1e-6, rel=1e-3)
