"""The order of service: by slack between classes, by priority within one tenant and class."""

from collections import abc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxgen.core.sequence import Sequence
from jaxgen.core.service_class import STARVATION_TIMEOUT_S, ServiceClass
from jaxgen.core.standing import Level
from jaxgen.scheduling.prefill_limits import target
from jaxgen.scheduling.queues import RequestQueues, may_preempt, set_place
from tests.support.service_world import promised, sequence_for

SOON = promised("soon", 1.0, serve_late=True)
LATER = promised("later", 9.0, serve_late=True)


PATIENCE = STARVATION_TIMEOUT_S + target(4)
"""Seconds until a sequence of ``joined`` is promoted."""


def joined(queues: RequestQueues, name: str, now: float = 0.0, *, seconds: float = 0.0, **fields: Any) -> Sequence:
    """One that came ``now`` and whose prompt takes ``seconds``."""
    sequence = sequence_for(name=name, **fields)
    set_place(sequence, now, seconds)
    queues.join(sequence)
    return sequence


def preempts(queues: RequestQueues) -> bool:
    return queues.has_priorities or queues.is_mixed


def names(line: abc.Sequence[Sequence]) -> list[str]:
    return [sequence.request_id for sequence in line]


def test_who_has_the_least_slack_is_first() -> None:
    queues = RequestQueues(by_priority=True)
    joined(queues, "due at 9", 0.0, service=LATER)
    joined(queues, "due at 5", 4.0, service=SOON)
    joined(queues, "due at 4", 0.0, service=LATER, seconds=5.0)
    joined(queues, "due at 4.5", 4.0, service=SOON, seconds=0.5)
    joined(queues, "due at 4.75, having waited", 4.0, service=SOON, waited_seconds=0.25)
    assert names(queues.waiting) == ["due at 4", "due at 4.5", "due at 4.75, having waited", "due at 5", "due at 9"]


def test_who_will_be_late_anyhow_makes_nobody_late() -> None:
    queues = RequestQueues(by_priority=True)
    joined(queues, "due at 3.5", 3.0, service=SOON, seconds=0.5)
    hopeless = joined(queues, "takes a minute", 3.6, service=SOON, seconds=60.0)
    assert hopeless.standing.deadline == 3.6
    assert names(queues.waiting) == ["due at 3.5", "takes a minute"]


def test_promised_then_best_effort_then_background() -> None:
    queues = RequestQueues(by_priority=True)
    joined(queues, "background", background=True)
    joined(queues, "best effort")
    joined(queues, "promised", 50.0, service=LATER)
    assert names(queues.waiting) == ["promised", "best effort", "background"]
    assert names(queues.waiting_of(background=False)) == ["promised", "best effort"]
    assert queues.waiting_of(background=True) == []


def test_the_background_is_asked_where_nobody_else_waits() -> None:
    queues = RequestQueues(by_priority=True)
    joined(queues, "background", background=True)
    assert names(queues.waiting_of(background=True)) == ["background"]
    assert queues.waiting_of(background=False) == []


def test_priority_exchanges_the_places_of_one_group_and_no_other() -> None:
    queues = RequestQueues(by_priority=True)
    joined(queues, "a5", 0.0, tenant="a", priority=5)
    joined(queues, "b", 1.0, tenant="b", priority=9)
    joined(queues, "a3", 2.0, tenant="a", priority=3)
    joined(queues, "other class", 3.0, tenant="a", priority=7, service=ServiceClass(name="other"))
    assert names(queues.waiting) == ["a3", "b", "a5", "other class"]
    newcomer = sequence_for(name="a0", tenant="a")
    set_place(newcomer, 4.0, 0.0)
    expected = queues.order_key_joined(newcomer)
    queues.join(newcomer)
    assert newcomer.standing.order_key == expected
    assert names(queues.waiting) == ["a0", "b", "a3", "other class", "a5"]


def test_places_are_exchanged_with_those_that_run() -> None:
    queues = RequestQueues(by_priority=True)
    first, other = joined(queues, "first", tenant="a", priority=5), joined(queues, "other", 1.0, tenant="b")
    queues.begin(first)
    queues.begin(other)
    second = joined(queues, "second", 2.0, tenant="a")
    assert may_preempt(second, first)
    assert names(queues.running) == ["other", "first"]
    queues.put_back(first)
    assert names(queues.waiting) == ["second", "first"]


@pytest.mark.parametrize("fields", [{"priority": -1}, {"background": True}, {"service": SOON}])
def test_preemption_is_thought_of_only_where_one_may_preempt_another(fields: dict[str, Any]) -> None:
    queues = RequestQueues(by_priority=True)
    joined(queues, "one")
    joined(queues, "two")
    assert not preempts(queues)
    other = joined(queues, "other", **fields)
    assert preempts(queues)
    queues.leave(other, queues.waiting)
    assert not preempts(queues)


def test_patience_ends_one_at_a_time() -> None:
    queues = RequestQueues(by_priority=True)
    for name in ("first", "second", "third"):
        joined(queues, name)
    joined(queues, "promised", PATIENCE, service=LATER)
    queues.promote_starved(PATIENCE - 0.1)
    assert names(queues.waiting) == ["promised", "first", "second", "third"]
    queues.promote_starved(PATIENCE)
    queues.promote_starved(2 * PATIENCE - 0.1)
    assert names(queues.waiting) == ["first", "promised", "second", "third"]
    queues.promote_starved(2 * PATIENCE)
    assert names(queues.waiting) == ["first", "second", "promised", "third"]


def test_patience_is_for_who_gets_no_tokens() -> None:
    queues = RequestQueues(by_priority=True)
    decodes, computes = joined(queues, "decodes"), joined(queues, "computes")
    waits = joined(queues, "waits")
    for sequence in (decodes, computes):
        queues.begin(sequence)
        sequence.row = 0
    decodes.num_computed = len(decodes.tokens) - 1
    joined(queues, "promised", service=SOON)
    queues.promote_starved(PATIENCE)
    assert [s.standing.level for s in (decodes, computes, waits)] == [
        Level.BEST_EFFORT,
        Level.WITH_TARGETS,
        Level.BEST_EFFORT,
    ]
    assert names(queues.running) == ["computes", "decodes"]


def test_whose_patience_ended_is_not_displaced_and_displaces_nobody_but_the_background() -> None:
    queues = RequestQueues(by_priority=True)
    patient = joined(queues, "patient")
    urgent = joined(queues, "promised", priority=-1, service=SOON)
    best_effort, background = joined(queues, "best effort", priority=9), joined(queues, "background", background=True)
    assert may_preempt(urgent, patient)
    queues.promote_starved(PATIENCE)
    assert not may_preempt(urgent, patient)
    assert not may_preempt(patient, urgent)
    assert not may_preempt(patient, best_effort)
    assert may_preempt(patient, background)


COMERS: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict,
    tenant=st.sampled_from("ab"),
    priority=st.integers(-1, 1),
    service=st.sampled_from([ServiceClass(), ServiceClass(name="idle"), SOON, LATER]),
)
EVENTS = st.lists(
    st.tuples(COMERS, st.booleans(), st.sampled_from([0.0, 0.7, 61.0]), st.sampled_from(["begin", "put", "leave"]))
    | st.tuples(st.just({"background": True}), st.booleans(), st.just(0.0), st.just("begin")),
    max_size=14,
)


@given(EVENTS)
def test_who_may_preempt_another_is_before_it(events: list[tuple[dict[str, Any], bool, float, str]]) -> None:
    """So nobody is displaced in turn by one that it displaced, through however many others, while nobody comes."""
    queues, now = RequestQueues(by_priority=True), 0.0
    for fields, short, seconds, then in events:
        now += seconds
        joined(queues, "", now, seconds=0.1 if short else 3.0, **fields)
        queues.promote_starved(now)
        if then == "begin":
            queues.begin(queues.waiting[0])
        elif then == "put" and queues.running:
            queues.put_back(queues.running[-1])
        elif then == "leave":
            queues.leave(queues.waiting[-1], queues.waiting)
    for line in (queues.running, queues.waiting):
        assert line == sorted(line, key=lambda s: s.standing.order_key)
    everyone = [*queues.running, *queues.waiting]
    assert all(
        one.standing.order_key < other.standing.order_key
        for one in everyone
        for other in everyone
        if may_preempt(one, other)
    )
