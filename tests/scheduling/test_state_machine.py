"""The scheduler under any load, as ``tests/support/scheduler_machine.py`` draws it: plain, with a host store, with
common prefixes, with windows, with classes and tenants, and with four callers of one level."""

import os
from collections import Counter
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test

from jaxgen.core.service_class import ServiceClass
from jaxgen.scheduling.cost_model import LinearCost
from jaxgen.scheduling.step_time import StepTimeModel
from tests.support.scheduler_machine import SchedulerMachine
from tests.support.scheduler_world import ARRIVALS, Arrival


class OffloadMachine(SchedulerMachine):
    """The same with a host store behind the pool, and requests that have more in common."""

    host_blocks = (3, 40, 40, 40)

    def _adapt(self, arrival: Arrival) -> Arrival:
        return replace(
            arrival,
            prompt=min(arrival.prompt + 3, 7),
            seed=arrival.seed % 2,
            prompt_logprobs=None,
            salt=None,
            background=arrival.background and arrival.stops,
        )


class PrefixMachine(SchedulerMachine):
    """The same with long prompts that have a beginning in common."""

    def _adapt(self, arrival: Arrival) -> Arrival:
        return replace(
            arrival,
            prompt=arrival.prompt + 3,
            seed=0,
            fork=(99, 9, 1, 2, 3, 5, 6)[arrival.seed % 7],
            salt=None,
            prompt_logprobs=None,
        )

    @rule(arrival=ARRIVALS, fork=st.integers(1, 6))
    def overtake(self, arrival: Arrival, fork: int) -> None:
        """A prompt of which a token is computed; then the same, served before it; and then one that begins like it.

        It is rare otherwise that blocks are found for one that runs, and that a beginning is copied from one.
        """
        last = replace(self._adapt(arrival), prompt=2, max_tokens=2, priority=1, fork=99)
        self.fill(1)
        for one in (last, replace(last, priority=-1), replace(last, fork=fork)):
            self.caller.add(one)
            self.step(1, None, 1, aborts=None, fails=False)
            self.fill(None)


class WindowMachine(PrefixMachine):
    """The same with further kinds of cache: windows of a token, below, at and above a block, and above the context."""

    windows: ClassVar[tuple[tuple[int, ...], ...]] = ((1,), (2,), (3,), (4,), (5,), (7,), (99,), (6, 3), (9, 2))


class WindowsAndHostMachine(OffloadMachine):
    """The same with a host store behind all pools."""

    windows = ((1,), (2,), (3,), (5,), (6, 3), (9, 2))


class DraftMachine(WindowMachine):
    """The same with drafts, with or without windows."""

    has_drafts = True
    windows: ClassVar[tuple[tuple[int, ...], ...]] = ((), (), (1,), (3,), (6, 3))


class DraftAndHostMachine(OffloadMachine):
    """The same with a host store behind the pool."""

    has_drafts = True


class StatesMachine(PrefixMachine):
    """The same with a state for each sequence in place of some layers' K and V, with or without windows of others."""

    has_states = True
    windows = ((), (), (), (1,), (3,), (6, 3))


class StatesAndHostMachine(OffloadMachine):
    """The same with a host store behind the pool."""

    has_states = True


class ServiceMachine(SchedulerMachine):
    """The same with two tenants and classes that promise something or nothing."""

    plain = False
    step_time = StepTimeModel(
        16, LinearCost(0.002, 0.0005, 3e-4, 3e-4)
    )  # positions cost so much that few tokens of a prompt may be left
    classes = (
        ServiceClass(name="nothing"),
        ServiceClass(name="soon", first_token_seconds=0.5, serve_late=True),
        ServiceClass(name="steady", first_token_seconds=9.0, inter_token_seconds=0.030, serve_late=True),
        ServiceClass(name="strict", prompt_rate=100.0, inter_token_seconds=0.016, serve_late=True),
    )

    def _adapt(self, arrival: Arrival) -> Arrival:
        service = self.classes[
            0 if arrival.background else (arrival.seed + arrival.min_tokens + arrival.max_tokens) % len(self.classes)
        ]
        return replace(
            arrival,
            prompt=min(arrival.prompt + 2, 9),
            service=service,
            tenant="ab"[: (arrival.prompt + arrival.seed) % 2],
        )


class CallersMachine(SchedulerMachine):
    """Four callers of one level whose completions fill a small cache, so that decodes take blocks of one another."""

    plain = False

    @initialize(
        block_size=st.integers(1, 2),
        num_blocks=st.integers(7, 12),
        rows=st.integers(4, 6),
        max_overtaken=st.integers(0, 3),
        prefix_caching=st.booleans(),
        narrow=st.booleans(),
        copies_blocks=st.booleans(),
    )
    def start(self, **drawn: Any) -> None:
        super().start(
            token_budget=16,
            extra_len=0,
            background_tokens=None,
            host_size=0,
            most_saving=1,
            recomputed=0,
            projected=0,
            fails_every=4,
            **drawn,
        )

    def _adapt(self, arrival: Arrival) -> Arrival:
        return replace(
            arrival,
            prompt=0,
            max_tokens=8,
            ignore_eos=True,
            stops=False,
            prompt_logprobs=None,
            priority=0,
            background=False,
            constrained=arrival.constrained and arrival.stops,
            tenant="abc"[: arrival.seed % 4],
        )

    @precondition(lambda self: len(self.book.live) < 3)
    @rule(arrival=ARRIVALS, callers=st.permutations((0, 1, 2, 3, 0, 1)))
    def all_come(self, arrival: Arrival, callers: list[int]) -> None:
        for caller in callers:
            self.caller.add(self._adapt(replace(arrival, seed=caller)))
        self.step(8, None, 1, aborts=None, fails=False)


RARE = (
    "preempted for an earlier level",
    "both classes",
    "narrow with background",
    "preemptions",
    "at the bound",
    "shared",
    "found",
    "found again after preemption",
    "dropped",
    "all in flight",
    "token of one waiting",
    "token of one running",
    "token of one ending",
    "deferred",
    "all deferred",
    "forced on one running",
    "forced on one waiting",
    "forced tokens in a chunk",
    "aborted while waiting",
    "aborted while running",
    "aborted while ending",
)
RARE_WITH_HOST = (
    "preemptions",
    "saved",
    "save failed",
    "stalled",
    "restored beside computing",
    "restore arrived",
    "restore failed",
    "restore cancelled",
    "waited for another's",
    "projected",
    "projected and copied",
    "saved without inputs",
)


RARE_WITH_PREFIXES = (
    "shared",
    "preemptions",
    "found while it ran",
    "copied a beginning",
    "copied from one that runs",
    "aborted while running",
)


RARE_WITH_WINDOWS = (
    "shared",
    "preemptions",
    "found while it ran",
    "found again after preemption",
    "forced tokens in a chunk",
    "freed behind the window",
    "freed and given to another by one plan",
    "no room in a window",
    "a window shortened a hit",
)


RARE_WITH_WINDOWS_AND_HOST = (
    "preemptions",
    "freed behind the window",
    "save failed",
    "restore arrived",
    "restore failed",
    "restore cancelled",
    "blocks of windows came",
    "blocks of windows alone came",
    "began again without a state",
)


RARE_WITH_DRAFTS = (
    "right drafts",
    "wrong drafts",
    "ended within drafts",
    "filled a block with drafts",
    "drafts after a preemption",
)


RARE_WITH_STATES = (
    "loaded a state",
    "took a snapshot",
    "evicted a snapshot",
    "computed again for a state",
    "found again after preemption",
    "found while it ran",
    "forced tokens in a chunk",
    "aborted while running",
)
RARE_WITH_STATES_AND_HOST = (
    "loaded a state",
    "evicted a snapshot",
    "restore arrived",
    "a state came",
    "a state alone came",
    "blocks came behind a gap",
    "began again without a state",
)


RARE_WITH_CLASSES = (
    "preemptions",
    "passed over",
    "displaced for a promise",
    "gave a row",
    "both classes",
    "all deferred",
    "shared",
)


RARE_WITH_CALLERS = ("preemptions", "gave a row", "gave a later one its block")


MOST_RUNS = 24
"""Some events are so rare that they may not come in one; a run goes on until all have."""


QUICK_EXAMPLES = 50
LONG_EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "200"))
"""Of a run, in the quick tests and at length. Each run draws others; FUZZ_EXAMPLES=N draws more, as after a change of
the scheduler."""


def run_machine(machine: type[SchedulerMachine], events: tuple[str, ...], examples: int) -> None:
    machine.seen = Counter()
    for _ in range(MOST_RUNS):
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=examples,
                stateful_step_count=40,
                deadline=None,
                derandomize=False,  # on CI too: else every run is the same
                suppress_health_check=[HealthCheck.too_slow],
            ),
        )
        if all(machine.seen[event] > 0 for event in events):
            break
    # Else the load was too light to show anything.
    assert all(machine.seen[event] > 0 for event in events), machine.seen


def test_the_scheduler_under_any_load() -> None:
    run_machine(SchedulerMachine, RARE, QUICK_EXAMPLES)


def test_the_scheduler_with_a_host_store_under_any_load() -> None:
    run_machine(OffloadMachine, ("saved", "restore arrived", "projected"), QUICK_EXAMPLES)


def test_the_scheduler_with_states_and_a_host_store_under_any_load() -> None:
    run_machine(StatesAndHostMachine, ("saved", "a state came", "restore arrived"), QUICK_EXAMPLES // 2)


def test_the_scheduler_with_common_prefixes_under_any_load() -> None:
    run_machine(PrefixMachine, RARE_WITH_PREFIXES, QUICK_EXAMPLES // 2)


def test_the_scheduler_with_windows_under_any_load() -> None:
    run_machine(WindowMachine, RARE_WITH_WINDOWS, QUICK_EXAMPLES // 2)


def test_the_scheduler_with_windows_and_a_host_store_under_any_load() -> None:
    run_machine(WindowsAndHostMachine, ("saved", "restore arrived"), QUICK_EXAMPLES // 3)


def test_the_scheduler_with_drafts_under_any_load() -> None:
    run_machine(DraftMachine, RARE_WITH_DRAFTS, QUICK_EXAMPLES // 3)


def test_the_scheduler_with_states_under_any_load() -> None:
    run_machine(StatesMachine, RARE_WITH_STATES, QUICK_EXAMPLES // 2)


def test_the_scheduler_with_classes_and_tenants_under_any_load() -> None:
    run_machine(ServiceMachine, RARE_WITH_CLASSES, QUICK_EXAMPLES)


def test_the_scheduler_with_four_callers_of_one_level_under_any_load() -> None:
    run_machine(CallersMachine, RARE_WITH_CALLERS, QUICK_EXAMPLES)


@pytest.mark.full
@pytest.mark.timeout(1800)  # minutes where the run checks the types of every call
def test_the_scheduler_under_any_load_at_length() -> None:
    run_machine(SchedulerMachine, RARE, LONG_EXAMPLES)


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_the_scheduler_with_a_host_store_at_length() -> None:
    run_machine(OffloadMachine, RARE_WITH_HOST, LONG_EXAMPLES)


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_the_scheduler_with_classes_and_tenants_at_length() -> None:
    run_machine(ServiceMachine, RARE_WITH_CLASSES, LONG_EXAMPLES)


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_the_scheduler_with_common_prefixes_at_length() -> None:
    run_machine(PrefixMachine, RARE_WITH_PREFIXES, QUICK_EXAMPLES)


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_the_scheduler_with_windows_at_length() -> None:
    run_machine(WindowMachine, RARE_WITH_WINDOWS, LONG_EXAMPLES)


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_the_scheduler_with_windows_and_a_host_store_at_length() -> None:
    run_machine(WindowsAndHostMachine, RARE_WITH_WINDOWS_AND_HOST, LONG_EXAMPLES // 4)


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("machine", "events"),
    [(DraftMachine, RARE_WITH_DRAFTS), (DraftAndHostMachine, ("right drafts", "restore arrived"))],
)
def test_the_scheduler_with_drafts_at_length(machine: type[SchedulerMachine], events: tuple[str, ...]) -> None:
    run_machine(machine, events, LONG_EXAMPLES // 2)


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("machine", "events"), [(StatesMachine, RARE_WITH_STATES), (StatesAndHostMachine, RARE_WITH_STATES_AND_HOST)]
)
def test_the_scheduler_with_states_at_length(machine: type[SchedulerMachine], events: tuple[str, ...]) -> None:
    run_machine(machine, events, LONG_EXAMPLES)


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_the_scheduler_with_four_callers_of_one_level_at_length() -> None:
    run_machine(CallersMachine, RARE_WITH_CALLERS, LONG_EXAMPLES)
