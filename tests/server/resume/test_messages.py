"""A stream of /v1/messages that is cut after any of its events goes on at another server, with the same blocks."""

from collections.abc import Callable
from typing import Any

import pytest

from jaxgen.core.request import Request
from jaxgen.server.config import ServerConfig
from tests.server.api.test_reasoning import thinks
from tests.server.resume.test_resume import requests_of
from tests.server.tool_calls.test_parser import written
from tests.support.fakes import FakeEngine
from tests.support.message_requests import PATH, WEATHER, F, accumulated, asked, error_of
from tests.support.resumed import HEADER, SHARED, Event, events_of, every, one_by_one, post
from tests.support.server_app import client_of
from tests.support.tool_engines import tool_engine

CALLS = [("get_weather", '{"city": "Paris 😀}"}'), ("f", "{}")]
TOOLS: dict[str, Any] = {"tools": [F, WEATHER]}
THOUGHT = "<think>\nHm, é.\n</think>\n\nWell 😀. "
CASES: dict[str, tuple[Callable[[], FakeEngine], dict[str, Any]]] = {
    "text": (lambda: tool_engine("hermes", "one 😀 of é"), {"metadata": {"user_id": "b"}, "temperature": 0.5}),
    "nothing": (lambda: tool_engine("hermes", ""), {}),
    "a stop string": (lambda: tool_engine("hermes", "one ENx END of"), {"stop_sequences": ["END"]}),
    "cut off": (lambda: tool_engine("hermes", "one two"), {"max_tokens": 5, "system": "Be brief."}),
    "calls": (lambda: tool_engine("hermes", f"Yes. {written('hermes', CALLS)}"), TOOLS),
    "all of it": (lambda: thinks(THOUGHT + written("hermes", CALLS)), TOOLS),
}


def streamed(engine: FakeEngine, fields: dict[str, Any], last_id: str = "", config: ServerConfig = SHARED) -> Any:
    """The events, or the error."""
    with client_of(engine, config) as client:
        answer = post(client, PATH, asked(**fields), {HEADER: last_id} if last_id else {})
    if answer.status_code != 200:
        return error_of(answer.json())
    return events_of(answer.text, done=False)


def message_of(events: list[Event]) -> dict[str, Any]:
    return accumulated(event.value for event in events)


@pytest.mark.parametrize("paces", [(1, 9), (4, 1)])
@pytest.mark.parametrize("case", CASES)
def test_a_message_goes_on(case: str, paces: tuple[int, int]) -> None:
    """``paces``: tokens that come at once, before and after."""
    made, fields = CASES[case]
    engine, other = made(), made()
    engine.pace, other.pace = map(every, paces)
    unbroken = streamed(engine, fields)
    told = message_of(unbroken)
    assert len({event.last_id for event in unbroken}) == len(unbroken)
    with client_of(other, SHARED) as client:
        for count, event in enumerate(unbroken, 1):
            other.requests.clear()
            answer = post(client, PATH, asked(**fields), {HEADER: event.last_id})
            rest = events_of(answer.text, done=False) if answer.text else []
            assert message_of([*unbroken[:count], *rest]) == told
            assert requests_of(other) == requests_of(engine), "seeds too"


def test_all_is_the_same_to_the_byte() -> None:
    engine = tool_engine("hermes", "Hello", pace=one_by_one)
    unbroken = streamed(engine, {})
    assert len(unbroken) == 2 + len("Hello") + 3
    for count, event in enumerate(unbroken, 1):
        if count < len(unbroken):
            assert streamed(tool_engine("hermes", "Hello", pace=one_by_one), {}, event.last_id) == unbroken[count:]


def test_another_body_is_refused() -> None:
    last_id = streamed(tool_engine("hermes", "Hello"), {})[1].last_id
    for change in ({"system": "a"}, {"max_tokens": 3}, {"metadata": {"user_id": "a"}}, TOOLS):
        other = tool_engine("hermes", "Hello")
        assert "another body" in streamed(other, change, last_id)["message"]
        assert other.requests == []


def test_a_failure_has_no_id() -> None:
    """So the caller's last id stays that of the last event with tokens, and the rest comes from elsewhere."""

    async def pace(request: Request, index: int) -> None:
        await one_by_one(request, index)
        if index == 3:
            raise RuntimeError("a broken device")

    with client_of(tool_engine("hermes", "Hello", pace=pace), SHARED) as client:
        answer = post(client, PATH, asked())
    *events, failed, rest = answer.text.split("\n\n")
    assert (rest, "event: error" in failed, "id: " in failed) == ("", True, False)
    begun = events_of("\n\n".join([*events, ""]), done=False)
    more = streamed(tool_engine("hermes", "Hello"), {}, begun[-1].last_id)
    assert message_of([*begun, *more])["content"] == [{"type": "text", "text": "Hello"}]
