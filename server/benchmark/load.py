"""Drive a load: a closed loop of clients, or an open loop of arrivals. Every request leaves a record."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from time import perf_counter
from typing import Any

import aiohttp

from jaxgen.server.benchmark.client import CompletionsClient, LoadError, Trace
from jaxgen.server.benchmark.metrics import RequestRecord
from jaxgen.server.benchmark.requests import PlannedRequest


class Load:
    """Sends requests and keeps their records, also of failed and aborted requests."""

    def __init__(
        self, client: CompletionsClient, timeout_s: float, on_record: Callable[[RequestRecord], None] | None = None
    ) -> None:
        """``timeout_s`` bounds each request; ``on_record`` is called as each ends."""
        self._client = client
        self._timeout_s = timeout_s
        self._on_record = on_record
        self.records: list[RequestRecord] = []

    async def send(self, request: PlannedRequest, arrival: float | None = None) -> None:
        """Send a request, and record its end. ``arrival``: when it was due, by ``perf_counter`` (default: now)."""
        start = perf_counter() if arrival is None else arrival
        trace = Trace(start, request.prompt_tokens, request.max_tokens)
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                await self._client.stream(request.body, trace)
            self._keep(trace.record("completed"))
        except asyncio.CancelledError:
            self._keep(trace.record("aborted", "the load was stopped"))
            raise
        except (LoadError, aiohttp.ClientError, OSError) as error:
            if limit.expired():
                self._keep(trace.record("aborted", f"not done in {self._timeout_s:g} s"))
            else:
                self._keep(trace.record("failed", f"{type(error).__name__}: {error}"))

    def _keep(self, record: RequestRecord) -> None:
        self.records.append(record)
        if self._on_record is not None:
            self._on_record(record)


async def closed_loop(load: Load, requests: Iterable[PlannedRequest], delays: Sequence[float]) -> None:
    """Run one client for each delay (seconds before its first request); each sends one request after the other."""
    waiting = iter(requests)

    async def client(delay: float) -> None:
        await asyncio.sleep(delay)
        for request in waiting:
            await load.send(request)

    async with asyncio.TaskGroup() as clients:
        for delay in delays:
            clients.create_task(client(delay))


async def open_loop(load: Load, requests: Sequence[PlannedRequest], arrivals: Sequence[float]) -> None:
    """Send each request at its time (seconds from now), without waiting for earlier ones.

    Latencies count from the time a request was due, so that a client that falls behind does not flatter the server.
    """
    begin = perf_counter()
    async with asyncio.TaskGroup() as sending:
        for request, arrival in zip(requests, arrivals, strict=True):
            await asyncio.sleep(begin + arrival - perf_counter())
            sending.create_task(load.send(request, begin + arrival))


async def run_bounded(work: Coroutine[Any, Any, None], max_seconds: float, stop: asyncio.Event) -> bool:
    """Run ``work`` for at most ``max_seconds``, or until ``stop``. Return whether it ended by itself."""
    working = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({working, stopping}, timeout=max_seconds, return_when=asyncio.FIRST_COMPLETED)
        ended = working.done()
    finally:
        working.cancel()
        stopping.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)
    if not working.cancelled():
        working.result()
    return ended
