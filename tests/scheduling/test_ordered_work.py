"""Sums of work by place, against sums over a plain list."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxgen.core.service_class import ServiceClass
from jaxgen.scheduling import ordered_work
from jaxgen.scheduling.ordered_work import NO_WORK, OrderedWork, Place, Work, total

PROMISED = ServiceClass(name="promised", first_token_seconds=1.0)
EVENTS = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9), st.booleans(), st.booleans()), max_size=60)
"""Due time, tokens, whether it counts on its first token, and whether one leaves then."""


def filled(events: list[tuple[int, int, bool, bool]]) -> tuple[OrderedWork, dict[Place, tuple[Work, bool]]]:
    line, plain = OrderedWork(), dict[Place, tuple[Work, bool]]()
    for number, (due, tokens, counts_on, leaves) in enumerate(events):
        place = float(due), number
        plain[place] = Work(tokens, 2 * tokens, 1), counts_on
        line.add(place, plain[place][0], PROMISED if counts_on else None)
        if leaves:
            gone = sorted(plain)[tokens % len(plain)]
            del plain[gone]
            line.remove(gone)
    return line, plain


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered_work, "BUCKET", 3)


@settings(deadline=None)
@given(EVENTS)
def test_what_is_before_a_place_is_summed(events: list[tuple[int, int, bool, bool]]) -> None:
    line, plain = filled(events)
    for place in [*plain, (-1.0, 0), (15.0, 0), (99.0, 0)]:
        assert line.before(place) == total([work for other, (work, _) in plain.items() if other < place])
    assert line.total == total([work for work, _ in plain.values()])
    assert (line.total == NO_WORK) is (not plain)


@settings(deadline=None)
@given(EVENTS, st.integers(0, 30), st.integers(0, 40))
def test_promises_behind_a_place_come_with_the_tokens_between(
    events: list[tuple[int, int, bool, bool]], due: int, most: int
) -> None:
    line, plain = filled(events)
    place = float(due), -1
    behind = [other for other in sorted(plain) if other > place]
    expected = [
        (other, sum([plain[one][0].tokens for one in behind[:index]]), PROMISED)
        for index, other in enumerate(behind)
        if plain[other][1]
    ]
    found = list(line.promises_behind(place, most))
    assert [one for one in expected if one in found] == found
    assert [one for one in expected if behind.index(one[0]) < most] == [
        one for one in found if behind.index(one[0]) < most
    ]
    if expected and expected[-1][0] == behind[-1]:
        assert found[-1] == expected[-1]
