"""A stream that is cut after any of its events goes on at another server: nothing comes twice, nothing is lost."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from starlette.testclient import TestClient

from jaxgen.core.request import Request
from jaxgen.server.config import Access, Answers, ServerConfig
from jaxgen.server.limits import Limits
from tests.server.api.test_chat import chat_engine, user
from tests.server.api.test_reasoning import thinks
from tests.server.tool_calls.test_parser import written
from tests.support.fakes import MODEL, FakeEngine, says
from tests.support.resumed import HEADER, RESPONSES, SHARED, Event, ask, every, one_by_one, post, streamed, whole
from tests.support.server_app import body, byte_by_byte, client_of, fake_engine
from tests.support.tool_engines import tool_engine
from tests.support.tool_requests import HI, PARIS, WEATHER, F

TEXT = "one 😀 END of é"
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
CALLS = [PARIS, ("f", "{}")]
TOOLS: dict[str, Any] = {"tools": [F, WEATHER]}
USAGE = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "choices": {"prompt": ["Say", "a"], "n": 2, "logprobs": 2, "seed": 3},
    "logprobs": {"logprobs": 2, "top_p": 0.5, "presence_penalty": 1.0, "frequency_penalty": -0.5},
    "usage": {**USAGE, "n": 2},
    "stop": {"stop": ["END"], "logprobs": 0, "return_token_ids": True},
    "echo": {"echo": True, "logprobs": 1, "include_stop_str_in_output": True, "stop": ["END"]},
    "scored": {"echo": True, "max_tokens": 0, "stream_options": {"include_usage": True}},
    "grammar": {"structured_outputs": {"regex": ".*"}, "logit_bias": {"5": 1.0}, "min_tokens": 2},
}
CHATS: dict[str, tuple[Callable[[], FakeEngine], dict[str, Any]]] = {
    "plain": (chat_engine, {"logprobs": True, "top_logprobs": 1, **USAGE}),
    "choices": (chat_engine, {"n": 3, "return_token_ids": True}),
    "reasoning": (lambda: thinks("<think>\nHm.\n</think>\n\nHello"), {"logprobs": True, **USAGE}),
    "calls": (lambda: tool_engine("hermes", f"Yes. {written('hermes', CALLS)}"), TOOLS),
    "short ids": (lambda: tool_engine("mistral", written("mistral", CALLS)), {**TOOLS, "n": 2}),
}


def requests_of(engine: FakeEngine) -> list[Request]:
    return [replace(request, request_id="", waited_seconds=0.0) for request in engine.requests]


def check_cuts(make: Callable[[int], FakeEngine], path: str, fields: dict[str, Any], first: int, second: int) -> None:
    """Cut the stream after each of its events. ``first``, ``second``: tokens that come at once, before and after."""
    engine = make(first)
    unbroken = streamed(engine, path, fields)
    told = whole(unbroken)
    assert len(told["head"]) == 1
    assert len({event.last_id for event in unbroken}) == len(unbroken)
    other = make(second)
    with client_of(other, SHARED) as client:
        for count, event in enumerate(unbroken, 1):
            other.requests.clear()
            rest = ask(client, path, fields, event.last_id)
            assert whole([*unbroken[:count], *rest]) == told
            assert requests_of(other) == requests_of(engine), "seeds too"


@pytest.mark.parametrize("paces", [(1, 4), (3, 1)])
@pytest.mark.parametrize("case", CASES)
def test_a_completion_goes_on(case: str, paces: tuple[int, int]) -> None:
    def make(at_once: int) -> FakeEngine:
        return fake_engine(reply=says(byte_by_byte(TEXT)), pace=every(at_once))

    check_cuts(make, COMPLETIONS, body(**{"max_tokens": 25, **CASES[case]}), *paces)


@pytest.mark.parametrize("paces", [(1, 9), (4, 1)])
@pytest.mark.parametrize("case", CHATS)
def test_a_conversation_goes_on(case: str, paces: tuple[int, int]) -> None:
    made, fields = CHATS[case]

    def make(at_once: int) -> FakeEngine:
        engine = made()
        engine.pace = every(at_once)
        return engine

    check_cuts(make, CHAT, {"model": MODEL, "messages": [HI], **fields}, *paces)


def test_what_depends_on_no_clock_is_the_same_to_the_byte() -> None:
    fields = body(n=2, logprobs=1, max_tokens=6)
    unbroken: list[Event] = streamed(fake_engine(pace=one_by_one), COMPLETIONS, fields)
    assert len(unbroken) == 12
    by_choice = [[event for event in unbroken if event.value["choices"][0]["index"] == index] for index in range(2)]
    for count, event in enumerate(unbroken, 1):
        rest = streamed(fake_engine(pace=one_by_one), COMPLETIONS, fields, event.last_id)
        for index, events in enumerate(by_choice):
            joined = [one for one in (*unbroken[:count], *rest) if one.value["choices"][0]["index"] == index]
            assert [one.data for one in joined] == [one.data for one in events]


def test_a_stream_may_break_again() -> None:
    fields = body(max_tokens=12)
    unbroken = streamed(fake_engine(pace=one_by_one), COMPLETIONS, fields)
    told = unbroken[:3]
    while len(told) < len(unbroken):
        rest = streamed(fake_engine(pace=one_by_one), COMPLETIONS, fields, told[-1].last_id)
        assert [one.last_id for one in rest] == [one.last_id for one in unbroken[len(told) :]]
        told += rest[:2]
    assert told == unbroken


def test_a_server_that_keeps_fewer_logprobs_resumes_what_has_none() -> None:
    fields = body(max_tokens=5)
    unbroken = streamed(fake_engine(pace=one_by_one), COMPLETIONS, fields)
    other = replace(SHARED, limits=Limits(max_logprob_entries=SHARED.limits.max_logprob_entries - 1))
    with client_of(fake_engine(pace=one_by_one), other) as client:
        assert ask(client, COMPLETIONS, fields, unbroken[1].last_id) == unbroken[2:]


def test_the_id_may_be_in_the_body() -> None:
    fields = body(max_tokens=5)
    with client_of(fake_engine(pace=one_by_one), SHARED) as client:
        unbroken = ask(client, COMPLETIONS, fields)
        resume = {"resume": {"last_event_id": unbroken[1].last_id}}
        assert ask(client, COMPLETIONS, fields | resume) == unbroken[2:]
        assert ask(client, COMPLETIONS, fields | resume, unbroken[1].last_id) == unbroken[2:]
        error = ask(client, COMPLETIONS, fields | resume, unbroken[2].last_id, status=400)
        assert error["param"] == "resume.last_event_id"
        assert ask(client, COMPLETIONS, fields | {"resume": {}}, status=400)["param"] == "resume.last_event_id"


@pytest.mark.parametrize("fields", [{}, {"logprobs": 1, "stop": ["END"]}, {"n": 2, "echo": True, "logprobs": 0}])
def test_tokens_that_came_are_not_computed_again(fields: dict[str, Any]) -> None:
    """All but the last, and those of which log-probabilities were held back: as of a stop string that did not come."""
    asked = body(max_tokens=14, return_token_ids=True, **fields)
    engine = fake_engine(reply=says(byte_by_byte("one ENx two ENDs")), pace=every(2))
    with client_of(engine, SHARED) as client:
        check_known(engine, client, asked)


def check_known(engine: FakeEngine, client: TestClient, asked: dict[str, Any]) -> None:
    """Cut the stream after each of its events, and send the tokens that came."""
    unbroken = ask(client, COMPLETIONS, asked)
    told = whole(unbroken)
    for count, event in enumerate(unbroken, 1):
        known = whole(unbroken[:count])
        tokens = [known.get(index, {}).get("token_ids", []) for index in range(asked.get("n", 1))]
        engine.requests.clear()
        resume = {"last_event_id": event.last_id, "token_ids": tokens}
        rest = ask(client, COMPLETIONS, asked | {"resume": resume})
        assert whole([*unbroken[:count], *rest]) == told
        for request, came in zip(engine.requests, tokens, strict=True):
            assert list(request.answer) == came[: len(request.answer)]
            assert max(0, len(came) - 4) <= len(request.answer) <= max(0, len(came) - 1)


def test_tokens_that_did_not_come_are_refused() -> None:
    asked = body(max_tokens=9)
    last_id = streamed(fake_engine(pace=one_by_one), COMPLETIONS, asked)[5].last_id

    def refused(status: int, tokens: list[Any]) -> dict[str, Any]:
        fields = asked | {"resume": {"last_event_id": last_id, "token_ids": tokens}}
        error: dict[str, Any] = streamed(fake_engine(), COMPLETIONS, fields, status=status)
        return error

    several: list[list[Any]] = [[], [[], []], [[-1]], [[400]]]
    for wrong in several:
        assert refused(400, wrong)["param"] == "resume.token_ids"
    assert refused(400, [["5"]])["param"].startswith("resume.token_ids")
    assert refused(409, [[2, 3, 4]])["code"] == "answer_differs"
    last_id = f"{last_id.partition('.')[0]}.70-00000000"
    assert refused(409, [[2] * 69])["code"] == "answer_differs"


def test_an_unbroken_request_and_its_rest_may_run_at_once() -> None:
    """A server that does not know yet that the caller is gone gets the rest asked of it."""
    engine = fake_engine(pace=one_by_one)
    with client_of(engine, SHARED) as client:
        (event, *_) = ask(client, COMPLETIONS, body(n=2))
        ask(client, COMPLETIONS, body(n=2), event.last_id)
    assert len({request.request_id for request in engine.requests}) == 4


def test_requests_without_a_seed_have_seeds_of_their_own_and_of_the_servers() -> None:
    def seeds(config: ServerConfig) -> list[int | None]:
        engine = fake_engine()
        with client_of(engine, config) as client:
            for stream in (False, True):
                client.post(COMPLETIONS, json=body(prompt=["a", "a"], n=2, stream=stream))
        return [request.params.seed for request in engine.requests]

    assert len(set(seeds(ServerConfig()))) == 8
    assert (
        seeds(ServerConfig(answers=Answers(seed=0)))
        == seeds(ServerConfig(answers=Answers(seed=0)))
        != seeds(ServerConfig(answers=Answers(seed=1)))
    )


class TestRefusals:
    """What cannot go on is refused before anything is computed, with a reason."""

    fields = body(max_tokens=6, user="a")

    @pytest.fixture(scope="class")
    @staticmethod
    def last_id() -> str:
        events: list[Event] = streamed(fake_engine(pace=one_by_one), COMPLETIONS, TestRefusals.fields)
        return events[1].last_id

    @staticmethod
    def refused(status: int, last_id: str, fields: dict[str, Any], **options: Any) -> str:
        engine = options.pop("engine", None) or fake_engine()
        error = streamed(engine, options.pop("path", COMPLETIONS), fields, last_id, status=status, **options)
        assert engine.requests == []
        assert error["param"] == HEADER
        assert str(error["message"]).startswith(HEADER)
        return str(error["code"])

    def test_another_digest(self, last_id: str) -> None:
        assert self.refused(409, last_id, self.fields, engine=fake_engine(digest="other")) == "digest_differs"

    @pytest.mark.parametrize("change", [{"prompt": "say"}, {"max_tokens": 7}, {"logprobs": 0}, {"seed": 1}, {"n": 2}])
    def test_another_body(self, last_id: str, change: dict[str, Any]) -> None:
        assert self.refused(400, last_id, self.fields | change) == "body_differs"

    def test_another_prompt_of_the_same_body(self) -> None:
        fields = {"model": MODEL, "messages": [user("Hi")]}
        events = streamed(chat_engine(), CHAT, fields)
        engine = chat_engine()
        assert engine.model.chat is not None
        dated = replace(engine.model.chat, template="{{ messages[0].content }} on another day")
        engine.model = replace(engine.model, chat=dated)
        assert self.refused(409, events[0].last_id, fields, engine=engine, path=CHAT) == "prompt_differs"

    def test_another_route(self, last_id: str) -> None:
        fields = {"model": MODEL, "messages": [user("Hi")]}
        assert self.refused(400, last_id, fields, engine=chat_engine(), path=CHAT) == "body_differs"
        items = {"model": MODEL, "input": "Hi"}
        assert self.refused(400, last_id, items, engine=chat_engine(), path=RESPONSES) == "body_differs"

    def test_another_key(self) -> None:
        config = ServerConfig(access=Access(api_keys=("one", "two")))
        events = streamed(fake_engine(pace=one_by_one), COMPLETIONS, self.fields, key="one", config=config)
        last_id = events[1].last_id
        assert self.refused(403, last_id, self.fields, key="two", config=config) == "foreign_event_id"
        assert self.refused(403, last_id, self.fields) == "foreign_event_id"
        error = streamed(fake_engine(), COMPLETIONS, self.fields, last_id, key="three", config=config, status=401)
        assert error["code"] == "invalid_api_key"
        # A replica may have other keys beside the caller's.
        other = ServerConfig(access=Access(api_keys=("one",)))
        rest = streamed(fake_engine(pace=one_by_one), COMPLETIONS, self.fields, last_id, key="one", config=other)
        assert rest == events[2:]

    def test_no_id(self, last_id: str) -> None:
        ticket, _, positions = last_id.partition(".")
        odd = (f"{ticket}.x", f"{ticket}.1", f"{last_id}.v", f"{last_id}.7", f"{last_id}.7.u", f"{last_id}.u.u")
        for wrong in ("7", "cmpl-1", ticket, last_id[1:], *odd):
            assert self.refused(400, wrong, self.fields) == "unknown_event_id", wrong
        for position in ("2-0~2-1", "1-00000000~1-1", "1-00000000~2-0", "~3-1~3-1", f"{positions},{positions}"):
            assert self.refused(400, f"{ticket}.{position}", self.fields) == "unknown_event_id"
        assert self.refused(400, f"{last_id}{'0' * 2**16}", self.fields) == "unknown_event_id"
        for changed in range(2, 80, 7):
            other = "A" if ticket[changed] != "A" else "B"
            forged = f"{ticket[:changed]}{other}{ticket[changed + 1 :]}.{positions}"
            assert self.refused(403, forged, self.fields) == "foreign_event_id"

    @pytest.mark.parametrize("position", ["1-00000000", "5-00000000~9-1", "90-00000000"])
    def test_another_answer(self, last_id: str, position: str) -> None:
        ticket = last_id.partition(".")[0]
        error = streamed(fake_engine(), COMPLETIONS, self.fields, f"{ticket}.{position}", status=409)
        assert error["code"] == "answer_differs"

    def test_other_tokens_of_a_broken_replica(self, last_id: str) -> None:
        engine = fake_engine(reply=lambda _: byte_by_byte("another answer"))
        error = streamed(engine, COMPLETIONS, self.fields, last_id, status=409)
        assert error["code"] == "answer_differs"

    def test_what_is_no_stream(self, last_id: str) -> None:
        with client_of(fake_engine(), SHARED) as client:
            answer = client.post(COMPLETIONS, json=self.fields, headers={HEADER: last_id})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, HEADER)


def test_an_error_in_the_stream_has_no_id() -> None:
    """So the caller's last id stays that of the last event with tokens, and the rest comes from elsewhere."""

    async def pace(request: Request, index: int) -> None:
        await one_by_one(request, index)
        if index == 3:
            raise RuntimeError("a broken device")

    with client_of(fake_engine(pace=pace), SHARED) as client:
        answer = post(client, COMPLETIONS, body(max_tokens=6))
    *events, error, rest = answer.text.split("\n\n")
    assert rest == ""
    assert "id: " not in error
    last_id = events[-1].partition("\nid: ")[2]
    rest = streamed(fake_engine(pace=one_by_one), COMPLETIONS, body(max_tokens=6), last_id)
    assert len(events) + len(rest) == 6
