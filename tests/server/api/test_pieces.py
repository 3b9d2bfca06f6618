"""Answers in pieces: the same JSON as in one, and a bounded number of entries at once."""

import asyncio
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import JSONResponse
from starlette.types import Message

from jaxgen.server.api import pieces
from jaxgen.server.generation.logprobs import LazyList
from tests.support.fuzzing import QUICK

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def plain(value: Any) -> Any:
    if isinstance(value, LazyList):
        return value.entries(0, len(value.items))
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list) else value


@QUICK
@given(value=VALUES, items=st.lists(VALUES, max_size=300))
def test_the_bytes_are_those_of_an_answer_in_one(value: Any, items: list[Any]) -> None:
    answer = {"a": value, "choices": [{"x": LazyList(items, lambda one: {"made": one}), "y": items}]}
    assert b"".join(pieces.encoded(answer)) == JSONResponse(plain(answer)).body


def sent(answer: Any) -> list[Message]:
    messages: list[Message] = []

    async def send(message: Message) -> None:
        messages.append(dict(message))

    asyncio.run(pieces.send_json(answer, send))
    return messages


def test_a_short_answer_has_its_length() -> None:
    start, body = sent({"a": LazyList([1, 2], str)})
    assert (b"content-length", b"15") in start["headers"]
    assert body == {"type": "http.response.body", "body": b'{"a":["1","2"]}', "more_body": False}


def test_entries_are_made_only_as_pieces_are_sent() -> None:
    """Not all at once: at most those of two pieces and of one step are there."""
    made: list[int] = []
    seen: list[int] = []

    def make(i: int) -> str:
        made.append(i)
        return "x" * 1000

    async def send(message: Message) -> None:
        seen.append(len(made))

    many = 5000
    asyncio.run(pieces.send_json({"a": LazyList(range(many), make)}, send))
    ahead = 2 * (pieces.PIECE_BYTES // 1000 + 2 * pieces.AT_ONCE)
    assert seen[1] <= ahead < many == seen[-1]
    assert json.loads(b"".join(one.get("body", b"") for one in sent({"a": LazyList(range(9), str)}))) == {
        "a": [str(i) for i in range(9)]
    }
