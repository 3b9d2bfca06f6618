"""Requests that take too long, to arrive or to be answered, end with an error and hold nothing."""

import asyncio
import json
import socket
from collections.abc import Iterable
from itertools import repeat
from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.types import Message, Receive, Scope, Send

from jaxgen.core.request import Request
from jaxgen.server.app import create_app
from jaxgen.server.config import ServerConfig
from jaxgen.server.errors import ApiError
from jaxgen.server.limits import Availability, Connections
from jaxgen.server.middleware.body_timeout import MIN_BODY_RATE, BodyTimeoutMiddleware
from jaxgen.server.middleware.deadline import Deadline
from jaxgen.server.requests.prompts import PromptReader
from tests.support.fakes import FakeEngine
from tests.support.live_server import serve
from tests.support.passing_time import let_pass
from tests.support.server_app import body, call, client_of, error_of, fake_engine, stream_chunks

LIMITED = ServerConfig(availability=Availability(request_timeout_s=4), connections=Connections(body_timeout_s=60))
LONGER = 4.5
"""Seconds, less than until the head of a stream goes out without an event."""


async def too_long() -> None:
    """The time of a request that waits for it passes, at once; only where something hangs it does so by itself."""
    let_pass(LONGER)
    await asyncio.Event().wait()


def stuck_after(count: int, choices: int = 1) -> FakeEngine:
    """An engine whose ``choices`` sequences have so many tokens, and then no more."""
    stuck = 0

    async def pace(request: Request, index: int) -> None:
        nonlocal stuck
        if index == count:
            stuck += 1
            await (too_long() if stuck == choices else asyncio.Event().wait())

    return fake_engine(pace=pace)


def is_of_the_limit(error: dict[str, Any]) -> bool:
    return error["code"] == "request_timeout" and "4 s (--request-timeout)" in error["message"]


@pytest.mark.parametrize("count", [0, 3])
def test_a_completion_over_its_time_is_given_up(count: int) -> None:
    engine = stuck_after(count, choices=2)
    with client_of(engine, LIMITED) as client:
        answer = client.post("/v1/completions", json=body(n=2))
        assert answer.status_code == 504
        assert answer.headers["x-should-retry"] == "false"
        assert is_of_the_limit(error_of(answer.json()))
        assert (len(engine.aborted), engine.open) == (2, set())
        assert (
            'request_success_total{finished_reason="abort",model_name="fake/model-1"} 2.0'
            in client.get("/metrics").text
        )
        assert client.app.state.lifecycle.num_requests == 0  # type: ignore[attr-defined]


def test_a_stream_over_its_time_ends_with_an_error_event() -> None:
    engine = stuck_after(3)
    with client_of(engine, LIMITED) as client:
        answer = client.post("/v1/completions", json=body(stream=True, logprobs=0))
    assert answer.status_code == 200
    *chunks, last = stream_chunks(answer.text)
    assert sum(len(chunk["choices"][0]["logprobs"]["tokens"]) for chunk in chunks) == 3
    assert is_of_the_limit(last["error"])
    assert (len(engine.aborted), engine.open) == (1, set())


def test_a_stream_over_its_time_before_its_first_token_has_a_status() -> None:
    with client_of(stuck_after(0), LIMITED) as client:
        assert client.post("/v1/completions", json=body(stream=True)).status_code == 504


def test_a_reader_that_has_stopped_does_not_keep_the_engine() -> None:
    """The stream waits in ``send``; the engine's work ends all the same."""
    engine = fake_engine(pace=lambda request, index: asyncio.sleep(0.01))
    app = create_app(engine, LIMITED)

    async def main() -> None:
        async def send(message: Message) -> None:
            if message["type"] == "http.response.body":
                await too_long()

        task = asyncio.create_task(call(app, body(stream=True, max_tokens=100), send))
        while not engine.aborted:
            await asyncio.sleep(0.005)
        assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(asyncio.wait_for(main(), 120))
    assert engine.open == set()


def test_reading_the_prompt_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    async def read(*_: Any) -> None:
        await too_long()

    monkeypatch.setattr(PromptReader, "read", read)
    engine = fake_engine()
    with client_of(engine, LIMITED) as client:
        answer = client.post("/v1/completions", json=body())
    assert answer.status_code == 504
    assert is_of_the_limit(error_of(answer.json()))


def test_in_time_nothing_changes() -> None:
    answers = []
    for config in (ServerConfig(), ServerConfig(availability=Availability(request_timeout_s=60))):
        with client_of(fake_engine(), config) as client:
            answers.append(client.post("/v1/completions", json=body()).json()["choices"])
    assert answers[0] == answers[1]


def test_what_was_given_up_does_not_go_on_later() -> None:
    """The first reason counts."""

    async def work(deadline: Deadline) -> None:
        async with deadline.bound():
            await asyncio.sleep(60)
            raise AssertionError("it went on")

    async def main() -> None:
        deadline = Deadline(60)
        deadline.give_up(ApiError(503, "first"))
        deadline.give_up(ApiError(503, "second"))
        for _ in range(2):
            with pytest.raises(ApiError, match="first"):
                await work(deadline)
        deadline.close()

    asyncio.run(main())


def test_another_timeout_is_not_taken_for_the_deadline() -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError, match="mine"):
            async with Deadline(60).bound():
                raise TimeoutError("mine")

    asyncio.run(main())


@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize"])
def test_a_body_that_does_not_come_is_refused(path: str) -> None:
    app = create_app(fake_engine(), ServerConfig(connections=Connections(body_timeout_s=0.05)))
    with serve(app) as url:
        where = urlsplit(url)
        with socket.create_connection((where.hostname, where.port), timeout=120) as connection:
            head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\n"
            head += "content-type: application/json\r\ncontent-length: 50\r\n\r\n"
            connection.sendall(head.encode() + b'{"model": ')
            got = b""
            while part := connection.recv(4096):  # until the server closes
                got += part
    head, _, content = got.decode().partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 408 ")
    assert error_of(json.loads(content))["code"] == "body_timeout"
    assert "x-request-id" in head
    assert app.state.lifecycle.num_requests == 0


def test_the_answer_may_take_longer_than_the_body() -> None:
    async def pace(request: Request, index: int) -> None:
        if index == 1:
            let_pass(LONGER)

    with client_of(fake_engine(pace=pace), ServerConfig(connections=Connections(body_timeout_s=4))) as client:
        assert client.post("/v1/completions", json=body()).status_code == 200


def arrive(seconds: float, parts: list[bytes], pauses: Iterable[float]) -> bytes:
    """What an app reads of a body whose parts come after these pauses."""

    async def main() -> bytes:
        left, waits = [*parts], iter(pauses)

        async def receive() -> Message:
            await asyncio.sleep(next(waits))
            part = left.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(left)}

        read = bytearray()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            more = True
            while more:
                message = await receive()
                read.extend(message["body"])
                more = message["more_body"]

        async def send(message: Message) -> None: ...

        await BodyTimeoutMiddleware(app, seconds)({"type": "http"}, receive, send)
        return bytes(read)

    return asyncio.run(main())


def test_a_long_body_gets_more_time_and_a_trickle_does_not() -> None:
    parts = [b" " * 4 * MIN_BODY_RATE, b" "]
    assert arrive(0.3, parts, [0, 0.4]) == b"".join(parts)
    with pytest.raises(ApiError, match="too long"):
        arrive(0.3, [b" "] * 50, repeat(0.02))
