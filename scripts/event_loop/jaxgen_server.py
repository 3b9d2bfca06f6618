"""jaxgen's server in front of an engine that computes nothing: every PERIOD seconds each request gets a token.

``-m scripts.event_loop.jaxgen_server PORT PERIOD``. Everything runs but the engine's steps; they wait in the
engine's own thread.
"""

import sys
import time
from typing import Any, cast

from jaxgen.core.identity import Identity
from jaxgen.core.model_info import ModelInfo
from jaxgen.core.request import FinishReason, Request, TokenEvent
from jaxgen.core.stats import EngineStats
from jaxgen.engine.async_engine import AsyncEngine
from jaxgen.server.app import create_app
from jaxgen.server.commands.listener import listen
from jaxgen.server.commands.serve import serve_app
from jaxgen.text.tokenizer import Tokenizer
from scripts.event_loop.text import MODEL, tokens

LONGEST = 2048


class FakeEngine:
    """What AsyncEngine asks of an Engine."""

    held_for = 0.0
    journal = None
    identity = Identity({"steps": "none"})

    def __init__(self, period: float) -> None:
        self._period = period
        self._tokens = tokens(LONGEST)
        self._running: dict[str, list[int]] = {}
        self._due = 0.0

    @property
    def has_work(self) -> bool:
        return bool(self._running)

    def add(self, request: Request, grammar: object) -> None:
        assert grammar is None
        self._running[request.request_id] = [0, request.params.max_tokens]

    def abort(self, request_id: str) -> None:
        self._running.pop(request_id, None)

    def stats(self) -> EngineStats:
        return EngineStats()

    def step(self) -> list[TokenEvent]:
        self._due = max(self._due + self._period, time.monotonic())
        time.sleep(max(0.0, self._due - time.monotonic()))
        events = []
        for name, state in list(self._running.items()):
            token = self._tokens[state[0]]
            state[0] += 1
            ended = state[0] == state[1]
            events.append(TokenEvent(name, token, finish_reason=FinishReason.LENGTH if ended else None))
            if ended:
                del self._running[name]
        return events


def main() -> int:
    port, period = int(sys.argv[1]), float(sys.argv[2])
    build: Any = lambda: FakeEngine(period)  # noqa: E731
    engine = AsyncEngine(ModelInfo("m", LONGEST, 2048), Tokenizer.from_directory(MODEL), cast("Any", build))
    engine.start()
    return serve_app(engine, create_app(engine), listen("127.0.0.1", port), shutdown_timeout=1).code


if __name__ == "__main__":
    sys.exit(main())
