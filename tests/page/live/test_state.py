"""What the live view makes of the feed's events: its pure functions, called in a browser."""

import json
from typing import Any

import pytest
from playwright.sync_api import Page

from tests.page.conftest import Fake
from tests.support.fake_steps import BEGIN, FakeSteps, Record, now, step

Events = list[tuple[str, dict[str, Any]]]
HELLO = ("hello", FakeSteps().hello)
NOW = ("now", now())


@pytest.fixture
def code(page: Page, fake: Fake) -> Page:
    """A tab that can import the view's modules."""
    page.goto(fake().url)
    return page


def told(steps: list[Record], *events: Record) -> tuple[str, dict[str, Any]]:
    return ("steps", {"steps": steps, "events": list(events), "dropped": 0})


def after(page: Page, events: Events) -> Any:
    """The state after ``events``, its requests and ids as lists."""
    return page.evaluate(
        """async (text) => {
          const { EMPTY, reduce } = await import("/live/state.js");
          const state = JSON.parse(text).reduce((before, [name, data]) => reduce(before, name, data), EMPTY);
          return JSON.parse(JSON.stringify({ ...state, requests: [...state.requests.values()], ids: [...state.ids] }));
        }""",
        json.dumps(events),
    )


def numbers(state: Any, of: str = "steps") -> list[int]:
    return [one["number"] for one in state[of]]


def why(page: Page, events: list[Record], time: float) -> Any:
    """What is said of the only request of ``events`` at ``time``."""
    return page.evaluate(
        """async ([text, time]) => {
          const { EMPTY, reduce } = await import("/live/state.js");
          const { why } = await import("/live/timeline.js");
          const state = JSON.parse(text).reduce((before, [name, data]) => reduce(before, name, data), EMPTY);
          return why([...state.requests.values()][0], time);
        }""",
        [json.dumps([HELLO, told([], *events)]), time],
    )


def test_memory_is_bounded(code: Page) -> None:
    steps = [told([step(number) for number in range(at, at + 100)]) for at in range(1, 5001, 100)]
    running = told([], *([BEGIN + number, number, "queued", "default", 9] for number in range(1, 301)))
    ended = [
        told([], [BEGIN + number, number, "queued", "default", 9], [BEGIN + number, number, "ended", "stop", 1])
        for number in range(301, 901)
    ]
    long = told([], *([BEGIN + 1000 + at, 900, "chunk", at, 1] for at in range(600)))
    state = after(code, [HELLO, *steps, running, *ended, long])
    assert numbers(state) == list(range(2001, 5001))
    # Those that run stay before those that ended.
    assert numbers(state, "requests") == [*range(1, 301), *range(701, 901)]
    chunks = state["requests"][-1]["visits"][0]["chunks"]
    assert len(chunks) <= 128
    assert sum(one["length"] for one in chunks) == sum(one["count"] for one in chunks) == 600
    assert [chunks[0]["from"], chunks[-1]["to"]] == [BEGIN + 1000, BEGIN + 1599]
    many = told([], *([BEGIN, number, "queued", "default", 9] for number in range(1, 801)))
    assert numbers(after(code, [HELLO, many]), "requests") == list(range(301, 801))


def test_a_new_stream_of_the_same_server_goes_on(code: Page) -> None:
    begun = told([step(1), step(2)], [BEGIN, 1, "queued", "default", 9], [BEGIN + 1, 1, "begun", 0, 0])
    again = told([step(2), step(3)], [BEGIN + 1, 1, "begun", 0, 0], [BEGIN + 2, 1, "first"])
    state = after(code, [HELLO, begun, HELLO, again])
    assert numbers(state) == [1, 2, 3]
    (request,) = state["requests"]
    assert len(request["visits"]) == 1
    assert [request["queued"], request["first"]] == [BEGIN, BEGIN + 2]


@pytest.mark.parametrize(
    "first",
    [
        told([step(1, time=BEGIN + 99)]),
        told([step(number, time=BEGIN + 99 + number) for number in range(1, 9)]),
        told([step(5000, time=BEGIN + 999)]),
        NOW,
    ],
    ids=["fewer steps", "more steps", "steps missed", "no step"],
)
def test_another_server_begins_afresh(code: Page, first: tuple[str, dict[str, Any]]) -> None:
    begun = told([step(1), step(2), step(3)], [BEGIN, 1, "queued", "default", 9])
    state = after(code, [HELLO, begun, NOW, HELLO, first, NOW])
    assert numbers(state) == [one[0] for one in first[1].get("steps", [])]
    assert state["requests"] == []


def test_ids_may_come_before_events(code: Page) -> None:
    queued = told([], [BEGIN, 7, "queued", "default", 9])
    mine = ("mine", {"requests": {"3": "cmpl-forgotten", "7": "cmpl-7", "9": "cmpl-9"}})
    state = after(code, [HELLO, queued, mine, told([], [BEGIN, 9, "queued", "default", 9])])
    assert [(one["number"], one["id"]) for one in state["requests"]] == [(7, "cmpl-7"), (9, "cmpl-9")]
    # Nothing will come of a request before those that are known: the server has forgotten it.
    assert after(code, [HELLO, queued, mine])["ids"] == [[9, "cmpl-9"]]


def test_the_first_request_has_an_id(code: Page) -> None:
    state = after(code, [HELLO, ("mine", {"requests": {"0": "cmpl-0"}}), told([], [BEGIN, 0, "queued", "default", 9])])
    assert [(one["number"], one["id"]) for one in state["requests"]] == [(0, "cmpl-0")]


def test_fields_have_the_places_that_hello_says(code: Page) -> None:
    hello = {**HELLO[1], "step_fields": ["time", "new", "number"]}
    state = after(code, [("hello", hello), told([[BEGIN, 5, 1]])])
    assert state["steps"] == [{"time": BEGIN, "new": 5, "number": 1}]


def test_unknown_events_change_nothing(code: Page) -> None:
    state = after(code, [HELLO, ("later", {}), told([], [BEGIN, 1, "queued", "a", 9], [BEGIN + 1, 1, "sung", 3])])
    assert state["requests"][0]["className"] == "a"


def test_says_why_a_request_was_slow(code: Page) -> None:
    queued: Record = [BEGIN, 1, "queued", "default", 9]
    begun: Record = [BEGIN + 3, 1, "begun", 0, 0]
    chunk: Record = [BEGIN + 3, 1, "chunk", 0, 9]
    first: Record = [BEGIN + 4, 1, "first"]
    ended: Record = [BEGIN + 9, 1, "ended", "length", 6]
    assert why(code, [queued], BEGIN + 2) == "2 s so far, most of it (100 %) waiting for its turn: 2 s in the queue."
    assert why(code, [queued, begun, chunk, first, ended], BEGIN + 20) == (
        "9 s in all, most of it (56 %) generating tokens: 3 s in the queue, 1 s of prompt (9 tokens in 1 chunk), "
        "5 s of decodes (6 tokens)."
    )
    # What came before the feed's memory is left out.
    assert why(code, [chunk, first, ended], BEGIN + 20) == (
        "6 s in all, most of it (83 %) generating tokens: 1 s of prompt (9 tokens in 1 chunk), "
        "5 s of decodes (6 tokens)."
    )
    assert why(code, [ended], BEGIN + 20) == "Nothing is known of this request yet."


def test_a_request_preempted_in_its_prompt(code: Page) -> None:
    events: list[Record] = [
        [BEGIN, 1, "queued", "default", 90],
        [BEGIN + 1, 1, "begun", 0, 0],
        [BEGIN + 1, 1, "chunk", 0, 16],
        [BEGIN + 2, 1, "preempted"],
        [BEGIN + 5, 1, "begun", 16, 0],
        [BEGIN + 5, 1, "chunk", 16, 74],
        [BEGIN + 6, 1, "first"],
        [BEGIN + 6, 1, "ended", "stop", 1],
    ]
    assert why(code, events, BEGIN + 9) == (
        "6 s in all, most of it (50 %) waiting after a preemption: 1 s in the queue, "
        "2 s of prompt (90 tokens in 2 chunks), 3 s preempted."
    )
