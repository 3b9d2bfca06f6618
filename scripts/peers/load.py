"""The loads, and what is read off one: everything in a window of time after a warm-up of the same load."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from time import perf_counter, process_time
from typing import Any

import uvloop

from jaxgen.server.benchmark.client import CompletionsClient
from jaxgen.server.benchmark.load import Load, closed_loop, open_loop, run_bounded
from jaxgen.server.benchmark.metrics import RequestRecord, spread
from jaxgen.server.benchmark.requests import (
    STD_SHARE,
    IdPrompts,
    Lengths,
    PlannedRequest,
    Planner,
    request_fields,
    stagger,
)
from scripts.peers.peer import SERVED_NAME

VOCAB_SIZE = 8000
PROMPT_MEAN, OUTPUT_MEAN = 256, 60
LONG_PROMPT, LONG_ANSWER = 2000, 16
LONG_EVERY_SECONDS = 1.0
DRAIN_SECONDS = 60.0
MOST_WARMUP = 30.0
"""Seconds after which the window begins in any case."""
REQUESTS_PER_SECOND = 32
"""More than any server here completes of this model on two cores; a load that runs out of requests fails."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A closed loop; with ``long_prompts`` a long prompt arrives every second meanwhile."""

    clients: int
    long_prompts: bool = False

    @property
    def name(self) -> str:
        return f"{self.clients} clients, long prompts" if self.long_prompts else f"{self.clients} clients"


@dataclass(slots=True)
class Window:
    """Readings of ``perf_counter``."""

    begin: float
    end: float

    def __contains__(self, time: float) -> bool:
        return self.begin <= time < self.end

    def move(self, begin: float) -> None:
        """It is as long, from there on."""
        self.begin, self.end = begin, begin + self.end - self.begin


def measure(base_url: str, usage: str, cell: Cell, *, warmup: float, seconds: float, seed: int) -> dict[str, Any]:
    """Figures of one cell, ready for JSON. ``warmup``, ``seconds``: of the load, before the window at least and in it.

    Clients begin together, so at first there are prompts alone: without long prompts the window does not begin before
    as many answers are there as there are clients, or MOST_WARMUP is over.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_measure(base_url, usage, cell, warmup, seconds, seed))


async def _measure(base_url: str, usage: str, cell: Cell, warmup: float, seconds: float, seed: int) -> dict[str, Any]:
    most = warmup if cell.long_prompts else max(warmup, MOST_WARMUP)
    requests = _planner(usage, seed, PROMPT_MEAN, OUTPUT_MEAN).requests(round(REQUESTS_PER_SECOND * (most + seconds)))
    long = _planner(usage, seed + 1, LONG_PROMPT, LONG_ANSWER, std_share=0.0).requests(ceil(warmup + seconds))
    async with CompletionsClient(base_url) as client:
        begin = perf_counter()
        window = Window(begin + most, begin + most + seconds)

        def note(record: RequestRecord) -> None:
            if len(load.records) == cell.clients and not cell.long_prompts:
                window.move(min(max(record.end, begin + warmup), window.begin))

        load, long_load = Load(client, DRAIN_SECONDS, note), Load(client, DRAIN_SECONDS)
        work = closed_loop(load, _until(window, requests), stagger(seed, cell.clients))
        cpu = process_time()
        if cell.long_prompts:
            arrivals = [LONG_EVERY_SECONDS * i for i in range(len(long))]
            async with asyncio.TaskGroup() as both:
                limit = window.end - perf_counter()
                # Long prompts can come faster than they are done, so what is left of them is not waited for.
                both.create_task(run_bounded(open_loop(long_load, long, arrivals), limit, asyncio.Event()))
                both.create_task(run_bounded(work, limit + DRAIN_SECONDS, asyncio.Event()))
        else:
            await run_bounded(work, most + seconds + DRAIN_SECONDS, asyncio.Event())
        share = (process_time() - cpu) / (perf_counter() - begin)
    figures = {**window_figures(load.records, window), "client_cpu_share": share, "warmup_s": window.begin - begin}
    if cell.long_prompts:
        figures["long"] = window_figures(long_load.records, window)
    return figures


def _planner(usage: str, seed: int, prompt: int, output: int, std_share: float = STD_SHARE) -> Planner:
    fields = request_fields(SERVED_NAME, usage=usage, ignore_eos=True, temperature=0.0, top_p=1.0)
    lengths = Lengths.about(prompt, output, std_share)
    return Planner(lengths, IdPrompts(VOCAB_SIZE, 0, seed), 0, fields, seed)


def _until(window: Window, requests: Iterable[PlannedRequest]) -> Iterator[PlannedRequest]:
    """Those that begin before it ends, which may move meanwhile."""
    for request in requests:
        if perf_counter() >= window.end:
            return
        yield request
    raise RuntimeError("the load ran out of requests: the server is faster than REQUESTS_PER_SECOND")


def window_figures(records: Sequence[RequestRecord], window: Window) -> dict[str, Any]:
    """Rates count what arrived in the window; TTFT is of requests that started in it, inter-token times of tokens that
    arrived in it. ``wrong_lengths``: completed requests whose answers had more or fewer tokens than were asked for."""
    started = [record for record in records if record.start in window]
    completed = [record for record in records if record.outcome == "completed"]
    failed = [record for record in records if record.outcome == "failed"]
    seconds = window.end - window.begin
    return {
        "requests_per_s": sum(record.end in window for record in completed) / seconds,
        "output_tokens_per_s": sum(tokens for r in records for time, tokens in r.arrivals if time in window) / seconds,
        "prompt_tokens_per_s": sum(r.prompt_tokens for r in records if r.start + r.first_token_time in window)
        / seconds,
        "ttft_s": spread(record.first_token_time for record in started),
        "inter_token_s": spread(gap for record in records for gap in gaps(record, window)),
        "completed": len(completed),
        "cut": len(records) - len(completed) - len(failed),
        "failed": len(failed),
        "reasons": sorted({record.reason for record in failed})[:3],
        "wrong_lengths": sum(record.output_tokens != record.max_tokens for record in completed),
    }


def gaps(record: RequestRecord, window: Window) -> list[float]:
    """Return the inter-token times of tokens that arrived in the window, seconds.

    Unlike in ``inter_token_times``, tokens that came with the first one have none.
    """
    return [seconds for time, seconds in record.later_tokens() if time in window]
