"""Streams: they join to the answer that is not streamed, end properly, and end their work when the caller leaves."""

import asyncio
import json
import socket
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import Message

from jaxgen.request import EngineDeadError, Request, RequestRefusedError, TokenEvent
from server.app import create_app
from tests.fakes import MODEL, FakeEngine, counts_up, says
from tests.live_server import serve
from tests.server_app import (
    NONE_CACHED,
    SPACED_TOKENIZER,
    TOKENIZER,
    body,
    byte_by_byte,
    call,
    client_of,
    complete,
    error_of,
    fake_engine,
    stream_chunks,
)

TEXT = "one 😀 END of é"
WAIT_SECONDS = 30.0


async def forever(request: Request, index: int) -> None:
    """Two tokens, then never another."""
    if index == 2:
        await asyncio.Event().wait()


def streamed(engine: FakeEngine, **fields: Any) -> list[Any]:
    with client_of(engine) as client:
        answer = client.post("/v1/completions", json=body(stream=True, **fields))
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.text.endswith("data: [DONE]\n\n")
    return stream_chunks(answer.text)


def joined(chunks: list[Any]) -> list[dict[str, Any]]:
    """The chunks' choices, each joined to one, in the order of their indices."""
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for piece in chunk["choices"]:
            choice = choices.setdefault(
                piece["index"], {"index": piece["index"], "text": "", "logprobs": None, "finish_reason": None}
            )
            assert choice["finish_reason"] is None, "nothing follows a finish reason"
            choice["text"] += piece["text"]
            choice["finish_reason"] = piece["finish_reason"]
            if piece["logprobs"] is not None:
                known = choice["logprobs"] or {name: [] for name in piece["logprobs"]}
                choice["logprobs"] = {name: known[name] + piece["logprobs"][name] for name in known}
    return [choices[index] for index in sorted(choices)]


REQUESTS = st.fixed_dictionaries(
    {},
    optional={
        "prompt": st.sampled_from(["Say", "é", ["a", "😀"], [5, 6], [[5], [200]]]),
        "max_tokens": st.integers(0, 20),
        "n": st.integers(1, 3),
        "echo": st.booleans(),
        "logprobs": st.integers(0, 3),
        "stop": st.lists(st.text("ab ", min_size=1, max_size=3), max_size=2),
        "stop_token_ids": st.lists(st.integers(2, 60), max_size=3),
        "ignore_eos": st.booleans(),
        "seed": st.integers(0, 5),
    },
)


@settings(deadline=None)
@given(fields=REQUESTS, spaced=st.booleans(), tokens=st.lists(st.integers(0, 260), max_size=20))
def test_a_stream_joins_to_the_answer_that_is_not_streamed(
    fields: dict[str, Any], spaced: bool, tokens: list[int]
) -> None:
    tokenizer = SPACED_TOKENIZER if spaced else TOKENIZER
    engine = fake_engine(tokenizer=tokenizer, reply=lambda r: [(t + (r.params.seed or 0)) % 261 for t in tokens])
    whole = complete(engine, **fields)
    chunks = streamed(engine, **fields)
    assert joined(chunks) == whole["choices"]
    for choice in whole["choices"]:
        assert choice["finish_reason"] in ("stop", "length")
        assert not any(stop in choice["text"] for stop in fields.get("stop", ()) if not fields.get("echo"))


def test_the_openai_client_streams() -> None:
    engine = fake_engine(reply=says(byte_by_byte(TEXT)))
    with serve(create_app(engine)) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
        options: Any = {"include_usage": True}
        stream = client.completions.create(
            model=MODEL, prompt="Say", max_tokens=50, stream=True, stream_options=options
        )
        chunks = list(stream)
    *pieces, last = chunks
    assert "".join(chunk.choices[0].text for chunk in pieces) == TEXT
    assert all(len(chunk.choices) == 1 and chunk.usage is None for chunk in pieces)
    assert [chunk.choices[0].finish_reason for chunk in pieces][-1] == "stop"
    assert (last.choices, last.usage and last.usage.completion_tokens) == ([], len(TEXT.encode()) + 1)


def test_the_async_openai_client_streams_many_at_once() -> None:
    async def one(client: openai.AsyncOpenAI, seed: int) -> str:
        stream = await client.completions.create(model=MODEL, prompt="Say", max_tokens=20, stream=True, seed=seed)
        return "".join([chunk.choices[0].text async for chunk in stream])

    async def main(url: str) -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
            return await asyncio.gather(*(one(client, seed) for seed in range(16)))

    with serve(create_app(fake_engine())) as url:
        texts = asyncio.run(main(url))
    assert texts == [complete(fake_engine(), max_tokens=20, seed=seed)["choices"][0]["text"] for seed in range(16)]


def test_split_characters_are_never_broken() -> None:
    engine = fake_engine(reply=says(byte_by_byte("é😀é")))
    texts = [chunk["choices"][0]["text"] for chunk in streamed(engine)]
    assert "".join(texts) == "é😀é"
    assert len(texts) > 1


def test_the_bytes_on_the_wire_are_ascii() -> None:
    engine = fake_engine(reply=says(byte_by_byte("a\u2028b\u0085c\r\nd😀")))
    with client_of(engine) as client:
        answer = client.post("/v1/completions", json=body(stream=True, max_tokens=50))
    assert answer.content.isascii()
    assert joined(stream_chunks(answer.text))[0]["text"] == "a\u2028b\u0085c\r\nd😀"


def test_usage_is_null_until_the_last_chunk() -> None:
    chunks = streamed(fake_engine(), n=2, max_tokens=3, stream_options={"include_usage": True})
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == {"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9, **NONE_CACHED}
    assert all("usage" not in chunk for chunk in streamed(fake_engine()))


def test_continuous_usage_is_that_of_the_chunks_choice() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = streamed(fake_engine(), prompt=["Say", "a"], max_tokens=3, stream_options=options)
    last = {chunk["choices"][0]["index"]: chunk["usage"] for chunk in chunks[:-1]}
    assert last == {
        0: {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6, **NONE_CACHED},
        1: {"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4, **NONE_CACHED},
    }
    assert chunks[-1]["usage"] == {"prompt_tokens": 4, "completion_tokens": 6, "total_tokens": 10, **NONE_CACHED}
    only = streamed(fake_engine(), max_tokens=3, stream_options={"continuous_usage_stats": True})
    assert only[-1]["choices"][0]["finish_reason"] == "length"
    assert only[-1]["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("raised", "status"),
    [
        (RequestRefusedError("prompt is longer than the cache"), 400),
        (EngineDeadError("the device was lost"), 503),
        (RuntimeError("secret detail"), 500),
    ],
)
def test_an_error_before_the_first_token_has_its_status(
    stream: bool, raised: Exception, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(request: Request, index: int) -> None:
        raise raised

    with client_of(fake_engine(pace=fail)) as client:
        answer = client.post("/v1/completions", json=body(stream=stream))
    assert answer.status_code == status
    error = error_of(answer.json())
    assert (str(raised) in error["message"]) == (status != 500)
    assert "Traceback" not in answer.text
    assert "secret" not in answer.text


def test_an_error_after_the_first_token_ends_the_stream(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(request: Request, index: int) -> None:
        await asyncio.sleep(0)
        if index == 2:
            raise RuntimeError("secret detail")

    engine = fake_engine(pace=fail)
    with client_of(engine) as client:
        answer = client.post("/v1/completions", json=body(stream=True))
    assert answer.status_code == 200
    chunks = stream_chunks(answer.text)
    assert "choices" in chunks[0]
    assert error_of(chunks[-1])["type"] == "server_error"
    assert "[DONE]" not in answer.text
    assert "secret" not in answer.text
    assert "secret detail" in caplog.text, "logged for the operator"
    assert engine.open == set()


def test_the_openai_client_sees_an_error_in_mid_stream() -> None:
    async def fail(request: Request, index: int) -> None:
        await asyncio.sleep(0)
        if index == 2:
            raise EngineDeadError("the device was lost")

    with (
        serve(create_app(fake_engine(pace=fail))) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client,
        client.completions.create(model=MODEL, prompt="Say", stream=True) as stream,
    ):
        assert next(stream).choices
        with pytest.raises(openai.APIError, match="the device was lost"):
            list(stream)


def test_one_failing_choice_ends_the_others() -> None:
    async def fail(request: Request, index: int) -> None:
        if request.request_id.endswith("-1"):
            raise RequestRefusedError("no")
        await asyncio.Event().wait()

    engine = fake_engine(pace=fail)
    with client_of(engine) as client:
        assert client.post("/v1/completions", json=body(n=3)).status_code == 400
    assert engine.open == set()
    assert len(engine.requests) == 3


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
    first, second, done, end = writes
    assert (done, end) == (b"data: [DONE]\n\n", b"")
    assert len(stream_chunks((first + done).decode())) == 2
    rest = stream_chunks((second + done).decode())
    assert len(rest) == 2, "one chunk of each choice"
    whole = complete(engine, n=2, prompt=[100], max_tokens=100)
    assert joined(stream_chunks((first + second + done).decode())) == whole["choices"]


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
