"""The scheduler under any load, as the machines of ``tests/support`` draw it."""

import os
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.support.scheduler_machine import SchedulerMachine
from tests.support.scheduler_machines import (
    CallersMachine,
    DraftAndHostMachine,
    DraftMachine,
    OffloadMachine,
    PrefixMachine,
    ServiceMachine,
    StatesAndHostMachine,
    StatesMachine,
    WindowMachine,
    WindowsAndHostMachine,
)

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
