"""A step feed that a test writes: ``/steps`` and ``/steps/history`` as docs/steps.md has them, without an engine."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from jaxgen.server.app import create_app
from jaxgen.server.config import DEFAULT_CONFIG, ServerConfig
from tests.support.server_app import fake_engine

STEP_FIELDS = [
    "number", "time", "seconds", "predicted", "width", "decodes", "prompt", "running", "waiting", "free", "cached",
    "host",
]  # fmt: skip
HISTORY_FIELDS = [
    "time", "steps", "prompt_tokens", "generated_tokens", "padded_tokens", "step_tokens", "step_seconds", "running",
    "waiting", "free", "cached", "used", "host", "ttft_p50", "ttft_p95", "gap_p50", "gap_p95", "compilations",
    "preemptions", "to_device_bytes", "to_host_bytes",
]  # fmt: skip
BEGIN = 1_790_000_000.0
"""Seconds of the clock when the tests' servers start."""

Record = list[Any]
Message = tuple[str, dict[str, Any]]


def step(number: int, **fields: Any) -> Record:
    """The record of a step: 16 tokens wide, of four decodes and eight tokens of prompts, but for ``fields``."""
    usual = {"time": BEGIN + number / 10, "seconds": 0.01, "predicted": 0.011, "width": 16, "decodes": 4, "prompt": 8}
    gauges = {"running": 5, "waiting": 2, "free": 40, "cached": 8, "host": 0}
    record = {"number": number} | usual | gauges | fields
    return [record[name] for name in STEP_FIELDS]


def now(**fields: Any) -> dict[str, Any]:
    """The data of a ``now`` event."""
    return {
        "time": BEGIN + 10,
        "classes": {"default": {"running": 5, "waiting": 2}},
        "callers": {},
        "ttft": {"p50": 0.12, "p95": 0.48, "count": 21},
        "gap": {"p50": 0.011, "p95": 0.019, "count": 640},
        "tokens_per_second": {"prompt": 812.5, "generated": 64.0},
        "blocks": {"total": 64, "free": 40, "cached": 8, "used": 16, "host": 0, "host_total": 0},
        "compilations_after_ready": 0,
        "preemptions": 0,
        "longest_step_seconds": 0.02,
        "offload": None,
        "stalled_seconds": 0.0,
        "state": "ready",
    } | fields


def samples(number: int = 360, **fields: Any) -> list[Record]:
    """Samples of the history, ten seconds apart, equal but for the time and ``fields``."""
    one = dict.fromkeys(HISTORY_FIELDS, 0) | {
        "steps": 100, "prompt_tokens": 600, "generated_tokens": 300, "padded_tokens": 400, "step_tokens": 1600,
        "running": 5, "waiting": 2, "free": 40, "cached": 8, "used": 16, "ttft_p50": 0.1, "ttft_p95": 0.4,
        "gap_p50": 0.01, "gap_p95": 0.02,
    }  # fmt: skip
    return [[(one | {"time": BEGIN + 10 * at} | fields)[name] for name in HISTORY_FIELDS] for at in range(number)]


class FakeSteps:
    """What the feed tells: all of it to each new reader, then what is added. A test changes it from its own thread."""

    def __init__(self) -> None:
        self.hello: dict[str, Any] = {
            "model": "fake", "token_budget": 16, "max_num_seqs": 8, "block_size": 16, "max_model_len": 1024,
            "skips_padding": False, "interval_seconds": 0.2, "step_fields": STEP_FIELDS,
            "event_fields": ["time", "request", "kind", "values"],
        }  # fmt: skip
        self.steps: list[Record] = []
        self.events: list[Record] = []
        self.messages: list[Message] = []
        self.now: dict[str, Any] = now()
        self.mine: dict[str, str] = {}
        self.samples: list[Record] = samples()
        self.missing = False
        self.readers = 0
        self.opened = 0
        self._round = 0

    def tell(self, steps: list[Record] | None = None, events: list[Record] | None = None, dropped: int = 0) -> None:
        """Add records, which readers get in one event."""
        steps, events = steps or [], events or []
        self.steps += steps
        self.events += events
        self.messages.append(("steps", {"steps": steps, "events": events, "dropped": dropped}))

    def say(self, **fields: Any) -> None:
        """Change ``now``, and tell it."""
        self.now = self.now | fields
        self.messages.append(("now", self.now))

    def drop(self) -> None:
        """End all streams, as a connection that breaks."""
        self._round += 1

    def restart(self) -> None:
        """Forget everything and end all streams, as a server that starts again."""
        self.steps, self.events, self.messages, self.mine = [], [], [], {}
        self.drop()

    def app(self, config: ServerConfig = DEFAULT_CONFIG) -> Starlette:
        """The server's app around a fake engine, with this feed in place of its own."""
        app = create_app(fake_engine(), config)
        app.router.routes[:0] = [Route("/steps", self._steps), Route("/steps/history", self._history)]
        return app

    async def _steps(self, request: Request) -> Response:
        if self.missing:
            return _not_found()
        return StreamingResponse(self._stream(), media_type="text/event-stream")

    async def _history(self, request: Request) -> Response:
        if self.missing:
            return _not_found()
        return JSONResponse({"interval_seconds": 10, "fields": HISTORY_FIELDS, "samples": self.samples})

    async def _stream(self) -> AsyncIterator[str]:
        self.readers += 1
        self.opened += 1
        begun, told = self._round, len(self.messages)
        try:
            yield _event("hello", self.hello)
            if self.steps or self.events:
                yield _event("steps", {"steps": self.steps, "events": self.events, "dropped": 0})
            if self.mine:
                yield _event("mine", {"requests": self.mine})
            yield _event("now", self.now)
            while begun == self._round:
                for name, data in self.messages[told:]:
                    yield _event(name, data)
                    told += 1
                await asyncio.sleep(0.01)
        finally:
            self.readers -= 1


def _event(name: str, data: dict[str, Any]) -> str:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"


def _not_found() -> Response:
    error = {"message": "This engine keeps no journal of its steps.", "type": "invalid_request_error", "param": None}
    return JSONResponse({"error": error | {"code": None}}, status_code=404)
