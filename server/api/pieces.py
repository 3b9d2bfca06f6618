"""Encode answers in bounded pieces, off the event loop: one of many log-probabilities has hundreds of megabytes."""

import asyncio
import json
from collections.abc import Iterator
from itertools import chain
from typing import Any

from starlette.types import Send

from jaxgen.server.generation.logprobs import LazyList

AT_ONCE = 128
"""Entries of a list that are made and encoded at once: some milliseconds, in which nothing else runs."""
PIECE_BYTES = 2**18
"""Least length of a piece, except the last."""


def encoded(value: Any) -> Iterator[bytes]:
    """Yield the JSON of an answer in pieces; lists that are made later are made as they are reached."""
    held: list[bytes] = []
    length = 0
    for part in map(str.encode, _parts(value)):
        held.append(part)
        length += len(part)
        if length >= PIECE_BYTES:
            yield b"".join(held)
            held, length = [], 0
    yield b"".join(held)


async def send_json(value: Any, send: Send) -> None:
    """Send an answer as JSON, with its length if it is one piece, else as it is encoded.

    Each piece is sent before the next is made, so that an answer takes the memory of one.
    """
    pieces = encoded(value)
    first = await asyncio.to_thread(next, pieces)
    second = await asyncio.to_thread(next, pieces, None)
    headers = [(b"content-type", b"application/json")]
    if second is None:
        headers.append((b"content-length", str(len(first)).encode("ascii")))
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": first, "more_body": second is not None})
    while second is not None:
        piece, second = second, await asyncio.to_thread(next, pieces, None)
        await send({"type": "http.response.body", "body": piece, "more_body": second is not None})


def _parts(value: Any) -> Iterator[str]:
    if isinstance(value, LazyList):
        yield "["
        for start in range(0, len(value.items), AT_ONCE):
            yield ("," if start else "") + _text(value.entries(start, start + AT_ONCE))[1:-1]
        yield "]"
    elif isinstance(value, dict):
        yield "{"
        for i, (key, inner) in enumerate(value.items()):
            yield from chain(("," if i else "", _text(key), ":"), _parts(inner))
        yield "}"
    elif isinstance(value, list) and any(isinstance(inner, dict) for inner in value[:1]):
        yield "["
        for i, inner in enumerate(value):
            yield from chain("," if i else "", _parts(inner))
        yield "]"
    else:
        yield _text(value)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
