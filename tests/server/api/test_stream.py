"""Streams: they join to the answer that is not streamed, break no character, count usage, and tell errors."""

import asyncio
import json
from typing import Any

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxgen.core.errors import ContextLengthError, EngineDeadError, RequestRefusedError
from jaxgen.core.request import Request
from jaxgen.server.api.sse import sse_event
from jaxgen.server.app import create_app
from tests.server.api.test_chat import chat_engine, user
from tests.support.fakes import MODEL, given_seed, says
from tests.support.live_server import serve
from tests.support.server_app import (
    NONE_CACHED,
    SPACED_TOKENIZER,
    TOKENIZER,
    body,
    byte_by_byte,
    client_of,
    complete,
    error_of,
    fake_engine,
    stream_chunks,
)
from tests.support.stream_answers import joined, streamed

TEXT = "one 😀 END of é"
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


@settings(max_examples=30, deadline=None)
@given(fields=REQUESTS, spaced=st.booleans(), tokens=st.lists(st.integers(0, 260), max_size=20))
def test_a_stream_joins_to_the_answer_that_is_not_streamed(
    fields: dict[str, Any], spaced: bool, tokens: list[int]
) -> None:
    tokenizer = SPACED_TOKENIZER if spaced else TOKENIZER
    engine = fake_engine(tokenizer=tokenizer, reply=lambda r: [(t + given_seed(r)) % 261 for t in tokens])
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
    none = {"include_usage": False, "continuous_usage_stats": True}
    assert all("usage" not in chunk for chunk in streamed(fake_engine(), max_tokens=3, stream_options=none))


def test_the_role_of_a_chat_answer_counts_no_tokens() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    with client_of(chat_engine()) as client:
        sent = {"model": MODEL, "messages": [user("Hi")], "stream": True, "stream_options": options, "n": 2}
        *chunks, whole = stream_chunks(client.post("/v1/chat/completions", json=sent).text)
    counts: dict[int, list[int]] = {0: [], 1: []}
    for chunk in chunks:
        counts[chunk["choices"][0]["index"]].append(chunk["usage"]["completion_tokens"])
    for of_one in counts.values():
        assert of_one[0] == 0
        assert of_one[1:] == sorted(of_one[1:])
        assert of_one[1] > 0
    assert whole["usage"]["completion_tokens"] == sum(of_one[-1] for of_one in counts.values())


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
    assert (str(raised) in error["message"]) == (status == 400)
    assert "Traceback" not in answer.text
    assert "secret" not in answer.text


@pytest.mark.parametrize(
    ("raised", "param", "code"),
    [
        (RequestRefusedError("logit_bias has 9 entries, the limit is 8", "logit_bias"), "logit_bias", None),
        (ContextLengthError(3, 16, 18), "max_tokens", "context_length_exceeded"),
        (ContextLengthError(19, 0, 18), "prompt", "context_length_exceeded"),
    ],
)
def test_a_limit_of_the_engine_alone_is_refused_by_name(raised: Exception, param: str, code: str | None) -> None:
    async def refuse(request: Request, index: int) -> None:
        raise raised

    with client_of(fake_engine(pace=refuse)) as client:
        answer = client.post("/v1/completions", json=body())
    error = error_of(answer.json())
    assert (answer.status_code, error["param"], error["code"]) == (400, param, code)


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
        with pytest.raises(openai.APIError, match="The engine is not running"):
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


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_events_in_the_middle_differ_in_their_text_alone(path: str) -> None:
    """And are written as any other JSON, whichever way they were made."""
    text = 'one "two"\\ \x85 {é} 😀\n'
    prompt = {"prompt": "Say"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "Say"}]}
    options = {"stream": True, "n": 2, "max_tokens": 40, "stream_options": {"include_usage": True}}

    async def slowly(request: Request, index: int) -> None:
        await asyncio.sleep(0.002)

    with client_of(chat_engine(reply=says(byte_by_byte(text)), pace=slowly)) as client:
        answer = client.post(path, json={"model": MODEL, **options, **prompt})
    said, others = ["", ""], set()
    for event, chunk in zip(answer.text.split("\n\n"), stream_chunks(answer.text)[:-1], strict=False):
        assert event.encode() + b"\n\n" == sse_event(chunk)
        (choice,) = chunk["choices"]
        holder = choice.get("delta", choice)
        said[choice["index"]] += holder.pop("content" if "delta" in choice else "text", "")
        if choice["finish_reason"] is None and "role" not in holder:
            others.add(json.dumps(chunk))
    assert said == [text] * 2
    assert answer.text.count("data: ") > 12, "not all at once"
    assert len(others) == 2, "one for each choice"
