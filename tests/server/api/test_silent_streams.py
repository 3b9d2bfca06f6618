"""A stream that has nothing to say for long: its head goes out, then comments, and errors are events."""

import asyncio
import json
from typing import Any

import openai
import pytest
from starlette.types import Message

from jaxgen.core.errors import EngineDeadError
from jaxgen.core.request import Request
from jaxgen.server.api import response_builder
from jaxgen.server.app import create_app
from jaxgen.server.config import Answers, ServerConfig
from jaxgen.server.limits import Connections
from tests.server.api.test_chat import chat_engine, user
from tests.server.responses.test_responses import events_of
from tests.support.fakes import MODEL, FakeEngine, says
from tests.support.live_server import serve
from tests.support.message_requests import accumulated
from tests.support.message_requests import error_of as message_error
from tests.support.message_requests import events_of as message_events
from tests.support.resumed import events_of as events_with_ids
from tests.support.resumed import one_by_one
from tests.support.server_app import body, byte_by_byte, call, error_of, fake_engine, stream_chunks

PING = 0.02
SECRET = "of the tests, with which ids are made"
CONFIG = ServerConfig(connections=Connections(sse_ping_interval_s=PING), answers=Answers(stream_secret=SECRET))
SILENCE = 10 * PING
"""Where a test waits for nothing that it could see."""
TEXT = "one END"
CHAT: dict[str, Any] = {"model": MODEL, "messages": [user("Hi")], "stream": True}
RESPONSE: dict[str, Any] = {"model": MODEL, "input": "Hi", "stream": True}
MESSAGES: dict[str, Any] = {**CHAT, "max_tokens": 50}
ROUTES = {
    "/v1/completions": body(stream=True),
    "/v1/chat/completions": CHAT,
    "/v1/responses": RESPONSE,
    "/v1/messages": MESSAGES,
}
UNENDED = ("/v1/responses", "/v1/messages")
"""Routes whose streams end without [DONE]."""
PING_EVENT = 'event: ping\ndata: {"type":"ping"}\n\n'
COMMENTS = (":\n\n", ":\n", PING_EVENT)
SPECIAL = 0
"""A token without text."""


SILENT_BEFORE = (0, 2)
"""Tokens."""


async def slowly(request: Request, index: int) -> None:
    """Each token is an event of its own."""
    await one_by_one(request, index)
    if index in SILENT_BEFORE:
        await asyncio.sleep(SILENCE)


def slow_engine(**fields: Any) -> FakeEngine:
    engine = chat_engine()
    engine.pace, engine.reply = slowly, says(byte_by_byte(TEXT))
    for name, value in fields.items():
        setattr(engine, name, value)
    return engine


class Caller:
    """Keeps the messages of one response."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    async def send(self, message: Message) -> None:
        self.messages.append(message)

    async def pace(self, request: Request, index: int) -> None:
        """As ``slowly``, but a silence ends when the head and two comments have come in it."""
        await one_by_one(request, index)
        if index in SILENT_BEFORE:
            before = self.num_comments
            while self.num_comments < before + 2:
                await asyncio.sleep(PING / 4)

    @property
    def num_comments(self) -> int:
        return sum(message.get("body", b"").decode() in COMMENTS for message in self.messages)

    @property
    def bodies(self) -> list[str]:
        return [message["body"].decode() for message in self.messages[1:]]

    @property
    def text(self) -> str:
        """The stream without its comments, each of which is a message of its own."""
        return "".join(one for one in self.bodies if one not in COMMENTS)

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.messages[0]["headers"])


def asked(path: str, fields: dict[str, Any], config: ServerConfig = CONFIG, engine: FakeEngine | None = None) -> Caller:
    """The whole response, by default of an engine that is silent until comments have come."""

    async def run() -> Caller:
        caller = Caller()
        await call(create_app(engine or slow_engine(pace=caller.pace), config), fields, caller.send, path=path)
        return caller

    return asyncio.run(run())


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("ids", [False, True])
def test_comments_end_silence_and_change_no_event(path: str, *, ids: bool) -> None:
    fields = {**ROUTES[path], "return_event_ids": ids}
    caller = asked(path, fields)
    comment = ":\n" if ids else ":\n\n"
    assert caller.messages[0]["status"] == 200
    assert caller.headers[b"x-accel-buffering"] == b"no"
    bodies = caller.bodies
    first = next(i for i, one in enumerate(bodies) if one != comment)
    assert first >= 2, "with the head, and again"
    later = PING_EVENT if path == "/v1/messages" else comment
    assert later in bodies[first:], "between tokens too"
    assert bodies[-1] not in COMMENTS
    read = caller.text
    if ids:
        numbers = [event.last_id.split(".", 1)[1] for event in events_with_ids(read, done=path not in UNENDED)]
        assert len(set(numbers)) == len(numbers)
    elif path == "/v1/responses":
        assert events_of(read)[-1]["type"] == "response.completed"
    elif path == "/v1/messages":
        assert accumulated(message_events(read))["content"] == [{"type": "text", "text": TEXT}]
    else:
        assert stream_chunks(read)[-1]["choices"][0]["finish_reason"] == "stop"


def test_ids_are_those_of_a_stream_without_comments() -> None:
    def numbers(config: ServerConfig, engine: FakeEngine | None = None) -> list[str]:
        text = asked("/v1/completions", body(stream=True, return_event_ids=True), config, engine).text
        return [event.last_id.split(".", 1)[1].partition("-")[0] for event in events_with_ids(text)]

    silent = ServerConfig(connections=Connections(sse_ping_interval_s=0), answers=Answers(stream_secret=SECRET))
    assert numbers(CONFIG) == numbers(silent, slow_engine(pace=one_by_one))


@pytest.mark.parametrize("ids", [False, True])
def test_openais_client_reads_past_comments(*, ids: bool) -> None:
    """After an id it takes an empty line for an event, so that a comment with one would be an event without data."""
    config = ServerConfig(connections=Connections(sse_ping_interval_s=PING), answers=Answers(stream_event_ids=ids))
    with serve(create_app(slow_engine(), config)) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="x") as client:
        completion = client.completions.create(model=MODEL, prompt="Say", max_tokens=20, stream=True)
        assert "".join(chunk.choices[0].text for chunk in completion) == TEXT
        messages: Any = CHAT["messages"]
        chat = client.chat.completions.create(model=MODEL, messages=messages, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chat) == TEXT
        with client.responses.stream(model=MODEL, input="Hi") as stream:
            assert stream.get_final_response().output_text == TEXT


def test_the_head_waits_a_few_seconds_for_an_errors_own_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_builder, "HEAD_SECONDS", 60.0)

    async def fail(request: Request, index: int) -> None:
        await asyncio.sleep(SILENCE)
        raise EngineDeadError("the device was lost")

    config = ServerConfig(connections=Connections(sse_ping_interval_s=30.0))
    caller = asked("/v1/completions", body(stream=True), config, fake_engine(pace=fail))
    assert caller.messages[0]["status"] == 503


@pytest.mark.parametrize("path", ROUTES)
def test_an_error_after_the_head_is_an_event(path: str) -> None:
    async def run() -> Caller:
        caller = Caller()

        async def fail(request: Request, index: int) -> None:
            await caller.pace(request, index)
            raise EngineDeadError("the device was lost")

        await call(create_app(slow_engine(pace=fail), CONFIG), ROUTES[path], caller.send, path=path)
        return caller

    caller = asyncio.run(run())
    assert caller.messages[0]["status"] == 200
    read = caller.text
    if path == "/v1/responses":
        events = events_of(read)
        assert [event["type"] for event in events] == [
            *("response.created", "response.in_progress", "response.failed"),
        ]
        assert events[-1]["response"]["error"]["message"] == "The engine is not running."
    elif path == "/v1/messages":
        head, data = read.strip().split("\n")
        assert head == "event: error"
        assert message_error(json.loads(data.removeprefix("data: ")))["message"] == "The engine is not running."
    else:
        (chunk,) = stream_chunks(read)
        assert error_of(chunk)["message"] == "The engine is not running."
    assert caller.messages[-1]["more_body"] is False


def test_a_stream_of_tokens_without_text_stays_alive() -> None:
    async def steadily(request: Request, index: int) -> None:
        await asyncio.sleep(PING / 4)

    engine = slow_engine(pace=steadily, reply=lambda request: [SPECIAL] * 60)
    assert engine.tokenizer.decode([SPECIAL]) == ""
    caller = asked("/v1/completions", body(stream=True, max_tokens=60, ignore_eos=True), engine=engine)
    assert caller.bodies.count(":\n\n") >= 3
    (chunk,) = stream_chunks(caller.text)
    assert chunk["choices"][0]["finish_reason"] == "length"


def test_without_an_interval_the_head_waits_for_the_first_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_builder, "HEAD_SECONDS", PING)

    async def run() -> None:
        go_on, caller = asyncio.Event(), Caller()

        async def wait(request: Request, index: int) -> None:
            await go_on.wait()

        app = create_app(slow_engine(pace=wait), ServerConfig(connections=Connections(sse_ping_interval_s=0)))
        answering = asyncio.ensure_future(call(app, body(stream=True), caller.send))
        await asyncio.sleep(SILENCE)
        assert caller.messages == []
        go_on.set()
        await answering
        assert not set(COMMENTS) & set(caller.bodies)

    asyncio.run(run())


def test_a_resumed_stream_stays_alive_while_what_was_told_is_computed() -> None:
    fields = body(stream=True, return_event_ids=True)
    events = events_with_ids(asked("/v1/completions", fields).text)
    resumed = asked("/v1/completions", {**fields, "resume": {"last_event_id": events[0].last_id}})
    assert resumed.bodies[0] == ":\n"
    assert all(resumed.bodies), "what was told is no empty write"
    rest = events_with_ids(resumed.text)

    def told(found: list[Any]) -> str:
        return "".join(one.value["choices"][0]["text"] for one in found)

    assert told(events[:1]) + told(rest) == TEXT
    assert rest[-1].last_id == events[-1].last_id
