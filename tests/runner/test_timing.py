"""Sequences of no caller, and steps that are timed alone."""

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
        self.calls: list[str | tuple[bool | None, bool]] = []
        self.now = 100.0

    def run(self, plan: StepPlan, *, narrow: bool | None = None) -> StepOutput:
        return self._run(narrow, again=False)

    def rehearse(self, plan: StepPlan, *, narrow: bool | None = None) -> StepOutput:
        return self._run(narrow, again=True)

    def _run(self, narrow: bool | None, *, again: bool) -> StepOutput:
        self.calls.append((narrow, again))
        self.now += 2.0
        return OUTPUT

    def wait(self) -> None:
        self.calls.append("wait")
        self.now += 3.0


@pytest.mark.parametrize("how", [{}, {"narrow": True, "again": True}, {"narrow": False}])
def test_a_step_is_timed_alone(how: dict[str, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """What ran before is waited for, untimed, and so is the step itself before the clock is read."""
    device = _Device()  # type: ignore[abstract]  # nothing else of it is called
    monkeypatch.setattr("jaxgen.runner.timing.perf_counter", lambda: device.now)
    timed = time_step(device, StepPlan(()), **how)
    assert device.calls == ["wait", (how.get("narrow"), how.get("again", False)), "wait"]
    assert timed.output is OUTPUT
    assert (timed.returned, timed.seconds) == (2.0, 5.0)
