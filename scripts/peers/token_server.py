"""POST /v1/completions in front of a library that has no server for prompts of token ids.

It does less than any real server: no validation, no text. Each chunk has the token ids that came since the last one,
and usage. So what is measured of the library over HTTP is as near to what it does by itself as it can be. Standard
library only: it runs in a peer's environment.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Protocol


class TokenRequest(NamedTuple):
    """What a request asks for. ``regex``: what its answer must match; None: any answer will do."""

    prompt: list[int]
    max_tokens: int
    regex: str | None = None


class NewTokens(NamedTuple):
    """New tokens of a request, by its number. ``ended``: whether its answer ends with them, however few they are."""

    number: int
    tokens: list[int]
    ended: bool = False


Emit = Callable[[list[NewTokens]], None]


class Engine(Protocol):
    def add(self, number: int, asked: TokenRequest) -> None: ...

    def cancel(self, number: int) -> None: ...

    def has_work(self) -> bool: ...

    def step(self, emit: Emit) -> None:
        """Compute something, and emit what came of it."""
        ...


class _Request:
    def __init__(self, writer: asyncio.StreamWriter, body: dict[str, Any]) -> None:
        self.writer = writer
        self.done = asyncio.get_running_loop().create_future()
        self.stream = bool(body.get("stream"))
        self.asked = TokenRequest(body["prompt"], body["max_tokens"], body.get("regex"))
        self.tokens: list[int] = []

    def feed(self, tokens: list[int], *, ended: bool) -> None:
        self.tokens += tokens
        ended = ended or len(self.tokens) >= self.asked.max_tokens
        if self.stream:
            self.writer.write(b"data: " + self._chunk(tokens) + (b"\n\ndata: [DONE]\n\n" if ended else b"\n\n"))
        elif ended:
            self.writer.write(self._chunk(self.tokens))
        if ended:
            self.done.set_result(None)

    def _chunk(self, tokens: list[int]) -> bytes:
        usage = {"prompt_tokens": len(self.asked.prompt), "completion_tokens": len(self.tokens)}
        choice = {"index": 0, "text": "-" * len(tokens), "token_ids": tokens}
        return json.dumps({"object": "text_completion", "choices": [choice], "usage": usage}).encode()


class Front:
    """HTTP on one side, on the other a connection to the process that has the engine: a library that holds Python's
    lock while it computes would hold up its own answers."""

    def __init__(self, engine: "Connection[Any, Any]") -> None:
        self._engine = engine
        self._open: dict[int, _Request] = {}
        self._numbers = count()

    async def serve(self, port: int) -> None:
        """Until the engine's process ends."""
        self._ended = asyncio.get_running_loop().create_future()
        server = await asyncio.start_server(self._answer, "127.0.0.1", port)
        asyncio.get_running_loop().add_reader(self._engine.fileno(), self._feed)
        async with server:
            await self._ended

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next((int(s[15:]) for s in head.split("\r\n") if s.lower().startswith("content-length:")), 0)
        request = _Request(writer, json.loads(await reader.readexactly(length)))
        kind = "text/event-stream" if request.stream else "application/json"
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nConnection: close\r\n\r\n".encode())
        number = next(self._numbers)
        self._open[number] = request
        self._engine.send((number, tuple(request.asked)))  # that process knows this module by another name
        gone = asyncio.ensure_future(reader.read())
        await asyncio.wait({gone, request.done}, return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        del self._open[number]
        if not request.done.done():
            self._engine.send((number, None))
        writer.close()

    def _feed(self) -> None:
        try:
            news = self._engine.recv()
        except EOFError:
            asyncio.get_running_loop().remove_reader(self._engine.fileno())
            self._ended.set_result(None)
            return
        for number, tokens, ended in news:
            request = self._open.get(number)
            if request is not None and not request.done.done():
                request.feed(tokens, ended=ended)


def serve(make_engine: Callable[[], Engine], port: int) -> None:
    """Serve for ever, HTTP in a process of its own, the engine in this one. Raises what the engine raises."""
    ours, theirs = Pipe()
    command = [sys.executable, "-m", "scripts.peers.token_server", str(theirs.fileno()), str(port)]
    engine = make_engine()
    with subprocess.Popen(command, pass_fds=[theirs.fileno()]), ours:
        theirs.close()
        while True:
            # What came is taken before each step; without work it is waited for.
            while ours.poll(None if not engine.has_work() else 0):
                number, asked = ours.recv()
                if asked is None:
                    engine.cancel(number)
                else:
                    engine.add(number, TokenRequest(*asked))
            engine.step(ours.send)


if __name__ == "__main__":
    asyncio.run(Front(Connection(int(sys.argv[1]))).serve(int(sys.argv[2])))
