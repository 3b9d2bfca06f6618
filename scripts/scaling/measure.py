"""Put a closed loop on replicas, by a router or in turn, and read figures off a window of it."""

import asyncio
import json
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import cache, partial
from itertools import cycle
from time import perf_counter, process_time
from typing import Any

import uvloop

from jaxgen.server.benchmark.client import CompletionsClient, Trace
from jaxgen.server.benchmark.load import Load, closed_loop, run_bounded
from jaxgen.server.benchmark.metrics import RequestRecord
from jaxgen.server.benchmark.requests import PlannedRequest, TextPrompts, request_fields
from jaxgen.text.tokenizer import Tokenizer
from scripts.peers.load import Window, window_figures
from scripts.peers.peer import SERVED_NAME
from scripts.scaling.fleet import Process, ScalingError
from scripts.simulation.load import SimulatedRequest

PATIENCE = 120.0
FIRST_TOKEN_SECONDS = 5.0
"""Time after the window in which requests that began in it get their first token; one that gets none later has none."""
FIGURES = (
    "requests_per_s",
    "output_tokens_per_s",
    "ttft_s",
    "inter_token_s",
    "completed",
    "failed",
    "reasons",
    "wrong_lengths",
)

Figures = dict[str, Any]


class InTurn(CompletionsClient):
    """Sends each request to the next of several servers: a router that costs nothing but the client's time."""

    def __init__(self, clients: Sequence[CompletionsClient]) -> None:
        self._clients = cycle(clients)

    async def stream(self, body: bytes, trace: Trace) -> None:
        await next(self._clients).stream(body, trace)


def bodies(requests: Sequence[SimulatedRequest], tokenizer: Tokenizer, seed: int) -> list[PlannedRequest]:
    """Return requests of about these lengths. Prompts are texts, since SMG takes no token ids, and begin with numbers,
    so that no two begin alike."""
    fields = request_fields(SERVED_NAME, usage="continuous", ignore_eos=True, temperature=0.0, top_p=1.0)
    passage = TextPrompts(tokenizer, 0, seed, max(request.prompt_tokens for request in requests))
    text = cache(partial(passage.make, 0))  # as slow to make as a step
    made = []
    for number, request in enumerate(requests):
        begin = f"{seed}, {number}: "
        prompt = begin + text(max(1, request.prompt_tokens - len(tokenizer.encode(begin))))
        body = json.dumps({**fields, "prompt": prompt, "max_tokens": request.output_tokens}).encode()
        made.append(PlannedRequest(body, request.prompt_tokens, request.output_tokens))
    return made


def measure(
    feeds: Sequence[Sequence[str]],
    requests: Sequence[PlannedRequest],
    delays: Sequence[float],
    window: Window,
    groups: Mapping[str, Sequence[Process]],
) -> Figures:
    """Return the figures of a window, in seconds from the beginning.

    ``feeds``: each is some servers' URLs, which get an equal part of requests and clients for themselves, in turn.
    ``groups``: processes whose processor time counts together, as the cores that they keep busy.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_measure(feeds, requests, delays, window, groups))


async def _measure(
    feeds: Sequence[Sequence[str]],
    requests: Sequence[PlannedRequest],
    delays: Sequence[float],
    window: Window,
    groups: Mapping[str, Sequence[Process]],
) -> Figures:
    records: list[RequestRecord] = []
    async with AsyncExitStack() as stack:
        loads = []
        for urls in feeds:
            clients = [await stack.enter_async_context(CompletionsClient(f"{url}/v1")) for url in urls]
            loads.append(Load(InTurn(clients), PATIENCE, records.append))
        begin = perf_counter()
        parts = [
            closed_loop(load, requests[number :: len(loads)], delays[number :: len(loads)])
            for number, load in enumerate(loads)
        ]
        work = asyncio.ensure_future(run_bounded(_all(parts), window.end + FIRST_TOKEN_SECONDS, asyncio.Event()))
        await asyncio.sleep(window.begin)
        before, real = _cpu(groups), perf_counter()
        await asyncio.sleep(begin + window.end - perf_counter() - 0.01)
        cpu = {name: seconds - before[name] for name, seconds in _cpu(groups).items()}
        elapsed = perf_counter() - real
        ended = await work
        if failed := [record.reason for record in records if record.outcome == "failed"]:
            raise ScalingError(f"{len(failed)} requests failed, the first by {failed[0]}")
        if ended:
            raise RuntimeError("the load ran out of requests before the window ended")
    found = figures(records, Window(begin + window.begin, begin + window.end))
    return found | {"cores": {name: seconds / elapsed for name, seconds in cpu.items()}}


async def _all(parts: Iterable[Coroutine[Any, Any, None]]) -> None:
    async with asyncio.TaskGroup() as together:
        for part in parts:
            together.create_task(part)


def figures(records: Sequence[RequestRecord], window: Window) -> Figures:
    """Return the figures of a window that scripts.peers reads off one as well."""
    found = window_figures(records, window)
    return {name: found[name] for name in FIGURES}


def _cpu(groups: Mapping[str, Sequence[Process]]) -> dict[str, float]:
    return {name: sum(one.cpu_seconds for one in members) for name, members in groups.items()} | {
        "client": process_time()
    }
