"""The host time of a step can be measured for each policy, and that of adds and quotes."""

import pytest

from jaxgen.scheduling.policy import Fifo
from jaxgen.scheduling.service.policy import ServicePolicy
from scripts.measure.scheduler_time import Arrivals, microseconds


@pytest.mark.parametrize("policy", [Fifo, ServicePolicy])
def test_a_step_takes_time(policy: type[Fifo]) -> None:
    assert microseconds(policy, steps=20) > 0.0


@pytest.mark.parametrize("targets", [False, True])
def test_adds_and_quotes_take_time(targets: bool) -> None:
    arrivals = Arrivals(targets=targets, shared=100)
    assert min(arrivals.microseconds(3, calls=2)) > 0.0
    assert arrivals.scheduler.num_waiting == 3 + 2
