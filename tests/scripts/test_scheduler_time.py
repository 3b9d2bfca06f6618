"""The host time of a step can be measured for each policy."""

import pytest

from jaxgen.scheduling.policy import Fifo
from jaxgen.scheduling.service.policy import ServicePolicy
from scripts.measure.scheduler_time import microseconds


@pytest.mark.parametrize("policy", [Fifo, ServicePolicy])
def test_a_step_takes_time(policy: type[Fifo]) -> None:
    assert microseconds(policy, steps=20) > 0.0
