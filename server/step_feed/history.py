"""Keep samples of the last hour, whether somebody reads them or not."""

import asyncio
from collections import deque
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from jaxgen.client import EngineClient
from jaxgen.server.step_feed.readings import NO_OFFLOAD, CounterSnapshot, Meter, blocks, grown

INTERVAL = 10.0
NUM_SAMPLES = 360
FIELDS = (
    "time",
    "steps",
    "prompt_tokens",
    "generated_tokens",
    "padded_tokens",
    "step_tokens",
    "step_seconds",
    "running",
    "waiting",
    "free",
    "cached",
    "used",
    "host",
    "ttft_p50",
    "ttft_p95",
    "gap_p50",
    "gap_p95",
    "compilations",
    "preemptions",
    "to_device_bytes",
    "to_host_bytes",
)
"""Of a sample: counts are of its interval, sizes are at its end, and quantiles are None where there was no token."""

_COUNTS = ("steps", "prompt_tokens", "generation_tokens", "padded_tokens", "step_tokens")

type Sample = tuple[float | None, ...]


class History:
    """Samples of an app, taken by a timer of the event loop that ``start`` is called in first."""

    def __init__(self, engine: EngineClient, meter: Meter) -> None:
        self._engine = engine
        self._meter = meter
        self._samples: deque[Sample] = deque(maxlen=NUM_SAMPLES)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.last = meter.read()
        """The reading at the end of the last interval."""

    def start(self) -> None:
        """Begin to sample, unless that has begun in an event loop that is still open."""
        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.get_running_loop()
            self.last = self._meter.read()
            self._timer = self._loop.call_later(INTERVAL, self._tick)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._loop = self._timer = None

    def sample(self) -> None:
        """End the interval. While the engine starts there is nothing to keep."""
        before, self.last = self.last, self._meter.read()
        if self._engine.status().state != "starting":
            self._samples.append(_sample(self._meter, before, self.last))

    def as_json(self) -> dict[str, Any]:
        return {"interval_seconds": int(INTERVAL), "fields": FIELDS, "samples": list(self._samples)}

    def _tick(self) -> None:
        assert self._loop is not None, "a timer runs in a loop"
        self._timer = self._loop.call_later(INTERVAL, self._tick)
        self.sample()


class HistoryMiddleware:
    """Begins to sample with the first request, where the app gets no lifespan events."""

    def __init__(self, app: ASGIApp, history: History) -> None:
        self._app = app
        self._history = history

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self._history.start()
        await self._app(scope, receive, send)


def _sample(meter: Meter, before: CounterSnapshot, after: CounterSnapshot) -> Sample:
    early, late, sizes = before.stats, after.stats, blocks(after.stats)
    first, between = meter.first_token(before, after), meter.inter_token(before, after)
    offload = early.offload or NO_OFFLOAD, late.offload or NO_OFFLOAD
    return (
        round(after.time, 3),
        *(grown(early, late, name) for name in _COUNTS),
        round(grown(early, late, "step_seconds"), 6),
        late.num_running,
        late.num_waiting,
        *(sizes[name] for name in ("free", "cached", "used", "host")),
        *((None, None) if first is None else (round(first.p50, 6), round(first.p95, 6))),
        *((None, None) if between is None else (round(between.p50, 6), round(between.p95, 6))),
        grown(early, late, "compilations_after_ready"),
        grown(early, late, "preemptions"),
        grown(*offload, "restored_bytes"),
        grown(*offload, "saved_bytes"),
    )
