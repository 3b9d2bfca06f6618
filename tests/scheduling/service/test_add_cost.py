"""What an add or a quote costs, counted in calls: not more where more waits; and the files that it passes through."""

import sys
from collections.abc import Callable
from itertools import count
from types import FrameType
from typing import Any

import pytest

from jaxgen.core import sequence as sequence_file
from jaxgen.core.config import CacheConfig, SchedulerConfig
from jaxgen.core.request import Request
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.core.sequence import Sequence
from jaxgen.core.service_class import ServiceClass
from jaxgen.scheduling.cost_model import LinearCost
from jaxgen.scheduling.scheduler import Scheduler
from jaxgen.scheduling.step_time import StepTimeModel
from tests.support.service_world import policy_with, promised

PACE = StepTimeModel(64, LinearCost(0.005, 1e-5, 1e-9))
PROMISED = promised("slow", 1e6)
ROOMS = 7
"""Most files whose functions get a new sequence on its way into the queue, beside its own."""


class Caller:
    """Adds sequences of 160 tokens, of which the first ``shared`` are the same for all, to a scheduler of 8 rows."""

    def __init__(self, service: ServiceClass, shared: int) -> None:
        self.scheduler = Scheduler(
            SchedulerConfig(64, 8, 4096), CacheConfig(block_size=16, num_blocks=1000), policy=policy_with(PACE)
        )
        self._service = service
        self._shared = shared
        self._numbers = count(1)

    def sequence(self) -> Sequence:
        number = next(self._numbers)
        prompt = (*range(self._shared), *range(number * 1000, number * 1000 + 160 - self._shared))
        request = Request(f"r{number}", prompt, SamplingParams(max_tokens=50), service=self._service)
        return Sequence(request, eos_token_ids=frozenset(), arrival=number, seed=0)

    def add(self, number: int) -> None:
        for _ in range(number):
            self.scheduler.add(self.sequence(), 1.0)


def calls_of(work: Callable[[], object]) -> int:
    """Functions that are called, those in C too."""
    called = 0

    def note(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal called
        called += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return called


@pytest.mark.parametrize("service", [ServiceClass(), PROMISED], ids=["no targets", "targets"])
@pytest.mark.parametrize("shared", [0, 100])
def test_an_add_and_a_quote_take_no_more_calls_where_many_wait(service: ServiceClass, shared: int) -> None:
    caller = Caller(service, shared)
    caller.add(16)
    for _ in range(20):
        plan = caller.scheduler.schedule(1.0)
        caller.scheduler.complete(plan, [7] * plan.num_samples)
    found = []
    for more in (40, 760):
        caller.add(more)
        adds = [calls_of(lambda: caller.add(1)) for _ in range(3)]
        asked = [caller.sequence() for _ in range(3)]
        for one in asked:
            one.arrival = sys.maxsize
        quotes = [calls_of(lambda one=one: caller.scheduler.quote(one, 1.0)) for one in asked]  # type: ignore[misc]
        found.append((max(adds), max(quotes)))
    (few_adds, few_quotes), (many_adds, many_quotes) = found
    assert many_adds <= few_adds + 60  # bisections are deeper
    assert many_quotes <= few_quotes + 60


def test_a_new_sequence_passes_through_few_files() -> None:
    caller = Caller(PROMISED, 0)
    caller.add(3)
    sequence = caller.sequence()
    files: set[str] = set()

    def note(frame: FrameType, event: str, _argument: Any) -> None:
        names = frame.f_code.co_varnames[: frame.f_code.co_argcount + frame.f_code.co_kwonlyargcount]
        if event == "call" and any(frame.f_locals.get(name) is sequence for name in names):
            files.add(frame.f_code.co_filename)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        caller.scheduler.add(sequence, 1.0)
    finally:
        sys.setprofile(before)
    files.discard(sequence_file.__file__)
    assert len({name for name in files if "jaxgen" in name}) <= ROOMS, sorted(files)
