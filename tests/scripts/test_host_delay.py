"""scripts.measure.host_delay: a device that sleeps waits for a slow host, and not for a quick one."""

import time
from typing import Any

import pytest

from scripts.measure import host_delay

STEPS = 4


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make every plan take longer to pack."""

    class Slow:
        def __init__(self, config: Any):
            del config

        def pack(self, plan: Any) -> None:
            time.sleep(0.02)

    return lambda: monkeypatch.setattr(host_delay, "Packer", Slow)


def test_the_time_in_which_the_device_has_nothing_to_do(slow: Any) -> None:
    quick = host_delay.measure(1024, 2, 0.05, STEPS)
    slow()
    waited = host_delay.measure(1024, 2, 0.001, STEPS)
    assert (waited["tokens"], waited["rows"], waited["step_ms"]) == (1024, 2, 1.0)
    assert waited["idle_percent"] > 50 > quick["idle_percent"]
    assert waited["host_us"] >= 20_000


def test_steps_take_what_an_h200_took() -> None:
    found = host_delay.step_seconds()
    assert list(found) == [64, 256, 1024]
    assert found[256] == pytest.approx(0.00983, abs=1e-5), "of the programs that are served now"
