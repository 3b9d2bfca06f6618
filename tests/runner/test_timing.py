"""Sequences of no caller, and steps that are timed alone."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from jaxgen.core.sampling_params import SamplingParams
from jaxgen.core.step_plan import StepPlan
from jaxgen.runner.interface import Runner
from jaxgen.runner.step import StepOutput
from jaxgen.runner.timing import dummy_sequence, time_step

PARAMS = SamplingParams(max_tokens=2)


def test_a_scheduler_gives_row_and_blocks_unless_they_are_given() -> None:
    scheduled = dummy_sequence(3, (5, 6), PARAMS)
    assert (scheduled.row, scheduled.blocks.table, scheduled.arrival) == (None, [], 3)
    by_hand = dummy_sequence(3, (5, 6), PARAMS, blocks=range(7, 9))
    assert (by_hand.row, by_hand.blocks.table, by_hand.arrival) == (3, [7, 8], 3)
    assert by_hand.tokens == [5, 6]
    assert by_hand.request_id == scheduled.request_id != dummy_sequence(4, (5, 6), PARAMS).request_id


OUTPUT: StepOutput = object.__new__(StepOutput)
"""One that nobody reads."""


class _Device(Runner):
    """A runner with a clock of its own: ``run`` returns after 2 seconds, and what it dispatched takes 3 more."""

    def __init__(self) -> None:
        self.calls: list[str | bool | None] = []
        self.now = 100.0

    def run(self, plan: StepPlan, *, narrow: bool | None = None) -> StepOutput:
        self.calls.append(narrow)
        self.now += 2.0
        return OUTPUT

    @contextmanager
    def rehearsal(self) -> Iterator[None]:
        self.calls.append("keep")
        self.now += 4.0
        yield
        self.calls.append("give back")
        self.now += 4.0

    def wait(self) -> None:
        self.calls.append("wait")
        self.now += 3.0


@pytest.mark.parametrize("how", [{}, {"narrow": True, "again": True}, {"narrow": False}])
def test_a_step_is_timed_alone(how: dict[str, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Untimed: what ran before is waited for, and states are kept for the next run and given back."""
    device = _Device()  # type: ignore[abstract]  # nothing else of it is called
    monkeypatch.setattr("jaxgen.runner.timing.perf_counter", lambda: device.now)
    timed = time_step(device, StepPlan(()), **how)
    calls = ["wait", how.get("narrow"), "wait"]
    assert device.calls == (["keep", *calls, "give back"] if "again" in how else calls)
    assert timed.output is OUTPUT
    assert (timed.returned, timed.seconds) == (2.0, 5.0)
