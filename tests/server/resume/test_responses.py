"""A stream of /v1/responses that is cut after any of its events goes on at another server, with the same items."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import openai
import pytest
from starlette.testclient import TestClient

from jaxgen.core.request import Request
from jaxgen.server.app import create_app
from jaxgen.server.config import Access, ServerConfig
from tests.server.api.test_reasoning import ENDS, FINAL, thinks
from tests.server.responses.test_responses import PARIS, WEATHER, F
from tests.server.resume.test_resume import requests_of
from tests.server.tool_calls.test_parser import written
from tests.support.fakes import MODEL, FakeEngine
from tests.support.live_server import serve
from tests.support.resumed import (
    HEADER,
    RESPONSES,
    SHARED,
    Event,
    ask,
    every,
    one_by_one,
    post,
    streamed,
    whole_response,
)
from tests.support.server_app import client_of, error_of
from tests.support.tool_engines import tool_engine

CALLS = [PARIS, ("f", "{}")]
TOOLS: dict[str, Any] = {"tools": [F, WEATHER, {"type": "web_search"}]}
ALLOWED = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "get_weather"}]}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False}
THOUGHT = "<think>\nHm, é.\n</think>\n\nWell 😀. "
TURNS = f"{FINAL}Hel{ENDS}<|channel|>analysis<|message|>Hm{ENDS}{FINAL}lo"
ITEMS: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
    {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
    {"type": "reasoning", "id": "rs", "summary": []},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "1"},
]
CASES: dict[str, tuple[Callable[[], FakeEngine], dict[str, Any]]] = {
    "text": (lambda: tool_engine("hermes", "one 😀 of é"), {"metadata": {"a": "b"}, "temperature": 0.5}),
    "log-probabilities": (lambda: tool_engine("hermes", "one 😀 é"), {"top_logprobs": 2, "seed": 3}),
    "a stop string": (lambda: tool_engine("hermes", "one ENx END of"), {"stop": "END", "top_logprobs": 1}),
    "cut off": (lambda: tool_engine("hermes", "one two"), {"max_output_tokens": 5, "instructions": "Be brief."}),
    "a format": (
        lambda: tool_engine("hermes", '{"a": "b😀"}'),
        {"text": {"format": {"type": "json_schema", "name": "p", "schema": SCHEMA}}},
    ),
    "calls": (
        lambda: tool_engine("hermes", f"Yes. {written('hermes', CALLS)}"),
        {**TOOLS, "input": ITEMS, "include": ["message.output_text.logprobs"]},
    ),
    "short ids": (lambda: tool_engine("mistral", written("mistral", CALLS)), {**TOOLS, "tool_choice": ALLOWED}),
    "a call": (
        lambda: tool_engine("hermes", written("hermes", CALLS[1:])),
        {**TOOLS, "tool_choice": {"type": "function", "name": "f"}},
    ),
    "reasoning": (lambda: thinks(THOUGHT), {"top_logprobs": 1}),
    "all of it": (lambda: thinks(THOUGHT + written("hermes", CALLS)), {**TOOLS, "top_logprobs": 1}),
    "several messages": (lambda: thinks(TURNS, "openai_gptoss"), {"top_logprobs": 1}),
}


def asked(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": "Hi", **fields}


def hello(**fields: Any) -> FakeEngine:
    return tool_engine("hermes", "Hello", **{"pace": one_by_one, **fields})


@pytest.mark.parametrize("paces", [(1, 9), (4, 1)])
@pytest.mark.parametrize("case", CASES)
def test_a_response_goes_on(case: str, paces: tuple[int, int]) -> None:
    """``paces``: tokens that come at once, before and after."""
    made, fields = CASES[case]

    def make(at_once: int) -> FakeEngine:
        engine = made()
        engine.pace = every(at_once)
        return engine

    engine, other = map(make, paces)
    unbroken = streamed(engine, RESPONSES, asked(**fields))
    told = whole_response(unbroken)
    assert len({event.last_id for event in unbroken}) == len(unbroken)
    with client_of(other, SHARED) as client:
        for count, event in enumerate(unbroken, 1):
            other.requests.clear()
            rest = ask(client, RESPONSES, asked(**fields), event.last_id)
            assert whole_response([*unbroken[:count], *rest]) == told
            assert requests_of(other) == requests_of(engine), "seeds too"


def without_times(events: list[Event]) -> list[Event]:
    """The last one says when the response was complete."""
    return [event._replace(data="") if '"response.completed"' in event.data else event for event in events]


def test_all_but_the_time_of_the_end_is_the_same_to_the_byte() -> None:
    unbroken = without_times(streamed(hello(), RESPONSES, asked(top_logprobs=1)))
    assert len(unbroken) == 4 + len("Hello") + 4
    for count, event in enumerate(unbroken, 1):
        assert without_times(streamed(hello(), RESPONSES, asked(top_logprobs=1), event.last_id)) == unbroken[count:]


def test_a_stream_may_break_again() -> None:
    unbroken = without_times(streamed(hello(), RESPONSES, asked()))
    told = unbroken[:2]
    while len(told) < len(unbroken):
        told += without_times(streamed(hello(), RESPONSES, asked(), told[-1].last_id))[:3]
    assert told == unbroken


def test_the_id_may_be_in_the_body() -> None:
    with client_of(hello(), SHARED) as client:
        unbroken = ask(client, RESPONSES, asked())
        resume = {"last_event_id": unbroken[3].last_id}
        rest = ask(client, RESPONSES, asked(resume=resume))
        assert without_times(rest) == without_times(unbroken[4:])
        error = ask(client, RESPONSES, asked(resume=resume), unbroken[2].last_id, status=400)
        assert error["param"] == "resume.last_event_id"
        error = ask(client, RESPONSES, asked(resume={**resume, "token_ids": [[1]]}), status=400)
        assert error["param"] == "resume.token_ids", "no event has had any"


def kept(client: TestClient, name: str) -> tuple[Any, Any]:
    """A response, and the items that it answered."""
    answers = [client.get(f"{RESPONSES}/{name}{path}") for path in ("", "/input_items")]
    assert [answer.status_code for answer in answers] == [200, 200]
    return answers[0].json(), answers[1].json()


def test_where_it_ends_it_is_kept_under_the_same_ids() -> None:
    fields = asked(input=[{"role": "user", "content": "Hi"}, {"role": "user", "content": "And", "id": "mine"}])
    with client_of(hello(), SHARED) as client, client_of(hello(), SHARED) as other:
        unbroken = ask(client, RESPONSES, fields)
        name = unbroken[-1].value["response"]["id"]
        for event in (unbroken[4], unbroken[4], unbroken[-1]):
            ask(other, RESPONSES, fields, event.last_id)
        response, items = kept(other, name)
        assert (response | {"completed_at": 0}, items) == (
            unbroken[-1].value["response"] | {"completed_at": 0},
            kept(client, name)[1],
        )
        references = [{"id": "mine"}, {"type": "item_reference", "id": response["output"][0]["id"]}]
        more = asked(previous_response_id=name, input=[*references, {"role": "user", "content": "More"}])
        first = ask(other, RESPONSES, more)
        assert whole_response([*first[:6], *ask(other, RESPONSES, more, first[5].last_id)]) == whole_response(first)
        other.delete(f"{RESPONSES}/{name}")
        error = ask(other, RESPONSES, more, first[5].last_id, status=400)
        assert error["code"] == "previous_response_not_found"


def test_the_openai_client_goes_on() -> None:
    unbroken = streamed(hello(), RESPONSES, asked())
    with (
        serve(create_app(hello(), SHARED)) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        for count in (1, 4, 7):
            headers = {HEADER: unbroken[count - 1].last_id}
            rest = client.responses.create(model=MODEL, input="Hi", stream=True, extra_headers=headers)
            events = [Event(event.model_dump_json(exclude_unset=True), "x") for event in rest]
            assert whole_response([*unbroken[:count], *events]) == whole_response(unbroken)


class TestRefusals:
    """What cannot go on is refused before anything is computed, with a reason."""

    @pytest.fixture(scope="class")
    @staticmethod
    def last_id() -> str:
        events: list[Event] = streamed(hello(), RESPONSES, asked())
        return events[5].last_id

    @staticmethod
    def refused(status: int, last_id: str, fields: dict[str, Any], engine: FakeEngine | None = None) -> str:
        engine = engine or hello()
        error = streamed(engine, RESPONSES, fields, last_id, status=status)
        assert engine.requests == []
        assert error["param"] == HEADER
        return str(error["code"])

    def test_another_digest(self, last_id: str) -> None:
        assert self.refused(409, last_id, asked(), hello(digest="other")) == "digest_differs"

    @pytest.mark.parametrize("change", [{"input": "Ho"}, {"seed": 1}, {"store": False}, {"metadata": {}}, TOOLS])
    def test_another_body(self, last_id: str, change: dict[str, Any]) -> None:
        assert self.refused(400, last_id, asked(**change)) == "body_differs"

    @pytest.mark.parametrize("field", ["role", "content", "refusal", "arguments", "output"])
    def test_another_item(self, field: str) -> None:
        """Also where the prompt is the same, as of what is dropped."""
        begun = asked(input=ITEMS, **TOOLS)
        last_id = streamed(hello(), RESPONSES, begun)[0].last_id
        assert self.refused(400, last_id, asked(input=ITEMS[:2] + ITEMS[3:], **TOOLS)) == "body_differs"
        for i, item in enumerate(ITEMS):
            if field in item:
                changed = {"role": "system", "arguments": "{ }"}.get(field, "x")
                items = [*ITEMS[:i], {**item, field: changed}, *ITEMS[i + 1 :]]
                assert self.refused(400, last_id, asked(input=items, **TOOLS)) == "body_differs"

    def test_another_prompt_of_the_same_body(self, last_id: str) -> None:
        engine = hello()
        assert engine.model.chat is not None
        dated = replace(engine.model.chat, template="{{ messages[0].content }} on another day")
        engine.model = replace(engine.model, chat=dated)
        assert self.refused(409, last_id, asked(), engine) == "prompt_differs"

    def test_another_route(self, last_id: str) -> None:
        chat = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
        error = streamed(hello(), "/v1/chat/completions", chat, last_id, status=400)
        assert error["code"] == "body_differs"
        events = streamed(hello(), "/v1/chat/completions", chat)
        assert self.refused(400, events[1].last_id, asked()) == "body_differs"

    def test_another_key(self) -> None:
        config = ServerConfig(access=Access(api_keys=("one", "two")))
        events = streamed(hello(), RESPONSES, asked(), key="one", config=config)
        last_id = events[6].last_id
        for key, given in (("two", config), ("", ServerConfig())):
            error = streamed(hello(), RESPONSES, asked(), last_id, key=key, config=given, status=403)
            assert error["code"] == "foreign_event_id"
        rest = streamed(
            hello(), RESPONSES, asked(), last_id, key="one", config=ServerConfig(access=Access(api_keys=("one",)))
        )
        assert without_times(rest) == without_times(events[7:])

    def test_no_id(self, last_id: str) -> None:
        ticket, position, number = last_id.split(".")
        odd = (f"{ticket}.{position}", f"{last_id}.8", f"{ticket}.{position}.u", f"{ticket}.{position}.x")
        for wrong in (*odd, f"{ticket}.{position},{position}.{number}", f"{ticket}.{position}.{'1' * 10}"):
            assert self.refused(400, wrong, asked()) == "unknown_event_id", wrong

    def test_other_tokens_of_a_broken_replica(self, last_id: str) -> None:
        error = streamed(tool_engine("hermes", "Hallo"), RESPONSES, asked(), last_id, status=409)
        assert error["code"] == "answer_differs"

    def test_what_is_no_stream(self, last_id: str) -> None:
        with client_of(hello(), SHARED) as client:
            answer = client.post(RESPONSES, json=asked(), headers={HEADER: last_id})
        assert (answer.status_code, error_of(answer.json())["param"]) == (400, HEADER)


def test_a_failure_has_no_id() -> None:
    """So the caller's last id stays that of the last event with tokens, and the rest comes from elsewhere."""

    async def pace(request: Request, index: int) -> None:
        await one_by_one(request, index)
        if index == 3:
            raise RuntimeError("a broken device")

    with client_of(hello(pace=pace), SHARED) as client:
        answer = post(client, RESPONSES, asked())
    *events, failed, rest = answer.text.split("\n\n")
    assert (rest, "response.failed" in failed, "id: " in failed) == ("", True, False)
    last_id = events[-1].partition("\nid: ")[2]
    rest = streamed(hello(), RESPONSES, asked(), last_id)
    assert [event.value["sequence_number"] for event in rest] == list(range(len(events), 4 + len("Hello") + 4))
