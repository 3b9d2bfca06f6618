"""Callers who leave or read slowly, and stop strings: the engine's work ends with the answer."""

import asyncio
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.types import Message

from jaxgen.core.request import Request, TokenEvent
from jaxgen.server.app import create_app
from tests.support.fakes import FakeEngine, counts_up
from tests.support.live_server import serve
from tests.support.server_app import (
    TOKENIZER,
    body,
    byte_by_byte,
    call,
    client_of,
    complete,
    fake_engine,
    stream_chunks,
)
from tests.support.stream_answers import joined, streamed

WAIT_SECONDS = 120.0


async def forever(request: Request, index: int) -> None:
    """Two tokens, then never another."""
    if index == 2:
        await asyncio.Event().wait()


@pytest.fixture(scope="module")
def endless() -> Iterator[tuple[FakeEngine, str]]:
    engine = fake_engine(pace=forever)
    with serve(create_app(engine)) as url:
        yield engine, url


def connect(url: str, fields: dict[str, Any]) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    content = json.dumps(fields).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(content)}\r\n\r\n"
    made = socket.create_connection((host, int(port)), timeout=WAIT_SECONDS)
    made.sendall(head.encode() + content)
    return made


def test_leaving_a_stream_ends_its_work(endless: tuple[FakeEngine, str]) -> None:
    engine, url = endless
    engine.requests.clear()
    with connect(url, body(stream=True, n=3)) as connection:
        assert b"200 OK" in connection.recv(65536)
        assert len(engine.open) == 3
    assert engine.idle.wait(WAIT_SECONDS)
    assert sorted(engine.aborted[-3:]) == sorted(request.request_id for request in engine.requests)


def test_leaving_before_the_answer_ends_its_work(endless: tuple[FakeEngine, str]) -> None:
    engine, url = endless
    for _ in range(2):
        engine.idle.clear()
        engine.requests.clear()
        with connect(url, body(n=2)):
            while len(engine.open) < 2:
                assert not engine.idle.wait(0.01)
        assert engine.idle.wait(WAIT_SECONDS)
        assert sorted(engine.aborted[-2:]) == sorted(request.request_id for request in engine.requests)


def test_a_finished_answer_aborts_nothing() -> None:
    engine = fake_engine()
    complete(engine, n=2)
    streamed(engine, n=2)
    assert engine.aborted == []
    assert engine.open == set()


def test_a_slow_reader_gets_what_came_meanwhile_in_one_write() -> None:
    engine = fake_engine(reply=counts_up)
    writes: list[bytes] = []

    async def main() -> None:
        async def send(message: Message) -> None:
            if message["type"] == "http.response.body":
                writes.append(message["body"])
            while len(writes) == 1 and engine.open:
                # The connection is full; the engine goes on.
                await asyncio.sleep(0)

        await call(create_app(engine), body(stream=True, n=2, prompt=[100], max_tokens=100), send)

    asyncio.run(main())
    first, second, done = writes
    assert done == b"data: [DONE]\n\n"
    assert len(stream_chunks((first + done).decode())) == 2
    rest = stream_chunks((second + done).decode())
    assert len(rest) == 2, "one chunk of each choice"
    whole = complete(engine, n=2, prompt=[100], max_tokens=100)
    assert joined(stream_chunks((first + second + done).decode())) == whole["choices"]


@pytest.mark.parametrize("full", [1, 2, 5])
def test_a_connection_that_is_full_for_a_while_loses_and_repeats_nothing(full: int) -> None:
    """From its ``full``-th write on, until the engine has come to the end."""
    engine = fake_engine(reply=counts_up)
    writes: list[bytes] = []

    async def main() -> None:
        async def send(message: Message) -> None:
            if message["type"] == "http.response.body":
                writes.append(message["body"])
            while len(writes) == full and engine.open:
                await asyncio.sleep(0)

        await call(create_app(engine), body(stream=True, prompt=[100], max_tokens=100), send)

    asyncio.run(main())
    assert len(writes) == full + 2, "what came meanwhile goes out in one write, before the end"
    whole = complete(engine, prompt=[100], max_tokens=100)
    assert joined(stream_chunks(b"".join(writes).decode())) == whole["choices"]


def test_leaving_while_a_write_is_stuck_ends_the_work() -> None:
    engine = fake_engine(pace=forever)

    async def main() -> None:
        leave = asyncio.Event()

        async def send(message: Message) -> None:
            leave.set()
            await asyncio.Event().wait()

        app = create_app(engine)
        await asyncio.wait_for(call(app, body(stream=True), send, leave=leave), WAIT_SECONDS)
        assert app.state.lifecycle.num_requests == 0

    asyncio.run(main())
    assert len(engine.aborted) == 1
    assert engine.open == set()


class _Events:
    """An iterator that no garbage collector closes, as a generator's would."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.closed = False

    def __aiter__(self) -> "_Events":
        return self

    async def __anext__(self) -> TokenEvent:
        return TokenEvent(self.name, byte_by_byte("a")[0])

    async def aclose(self) -> None:
        self.closed = True


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_closes_the_engines_iterator(stream: bool) -> None:
    made: list[_Events] = []

    class Endless(FakeEngine):
        def generate(self, request: Request) -> Any:
            made.append(_Events(request.request_id))
            return made[-1]

    with client_of(Endless(TOKENIZER)) as client:
        answer = client.post("/v1/completions", json=body(stop="aaa", stream=stream))
    assert answer.status_code == 200
    assert [events.closed for events in made] == [True]
