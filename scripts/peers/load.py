"""The loads, and what is read off one: everything in a window of time after a warm-up of the same load."""

import argparse
import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import fmean
from time import perf_counter, process_time
from typing import Any

import uvloop

from jaxgen.server.benchmark.client import CompletionsClient
from jaxgen.server.benchmark.load import Load, closed_loop, open_loop, run_bounded
from jaxgen.server.benchmark.metrics import SLAS, RequestRecord, SloTargets, spread
from jaxgen.server.benchmark.requests import (
    STD_SHARE,
    IdPrompts,
    Lengths,
    PlannedRequest,
    Planner,
    poisson_arrivals,
    request_fields,
    stagger,
)
from scripts.peers.peer import SERVED_NAME, Peer
from scripts.peers.shapes import SHAPES

VOCAB_SIZE = 2000
"""Ids of prompts are below it: the smallest vocabulary here has a few more."""
PROMPT_MEAN, OUTPUT_MEAN = 256, 60
LONG_PROMPT, LONG_ANSWER = 2000, 16
REQUESTS_PER_SECOND = 32
"""More than any server here completes of these models on two cores; a closed loop that runs out of requests fails."""


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """A load: a closed loop of ``clients``, or an open one of ``rate`` requests a second, whatever became of those
    before. ``long_every``: seconds after which a long prompt arrives meanwhile, each time; 0: none does."""

    long_every: float = 0.0
    rate: float = 0.0
    clients: int = 0

    @property
    def name(self) -> str:
        name = f"{self.rate:g} requests/s" if self.rate else f"{self.clients} client{'s' * (self.clients != 1)}"
        every = "every second" if self.long_every == 1.0 else f"every {self.long_every:g} s"
        return f"{name} with a prompt of {LONG_PROMPT:,} tokens {every}" if self.long_every else name

    @classmethod
    def of(cls, figures: dict[str, Any]) -> "Cell":
        """Return the load whose figures these are."""
        return cls(figures["long_every"], figures["rate"], figures["clients"])

    def measure(self, base_url: str, peer: Peer, times: "Times", seed: int) -> dict[str, Any]:
        return measure(base_url, peer.usage, self, times, seed)

    def summary(self, figures: dict[str, Any]) -> str:
        """Return the figures in a line."""
        ttft, token = (
            " / ".join("-" if figures[name][q] is None else f"{1e3 * figures[name][q]:.1f}" for q in ("p50", "p95"))
            for name in ("ttft_s", "inter_token_s")
        )
        effective = " / ".join(f"{rate:.2f}" for rate in figures["effective_per_s"].values())
        return (
            f"{figures['output_tokens_per_s']:.0f} output tokens/s, TTFT {ttft} ms, "
            f"inter-token {token} ms (P50 / P95); "
            f"effective {effective} requests/s; "
            f"{figures['completed']} answers, {figures['wrong_lengths']} of the wrong length"
        )


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of a load: ``measured``, ``warmup`` before that at least, and ``patience``, which a request may take at
    most, and the warm-up too where it waits for answers."""

    measured: float
    warmup: float
    patience: float


def cells(args: argparse.Namespace) -> list[Cell]:
    """Return the loads that flags ask for, or those of the shape, in the order in which they are run."""
    shape = SHAPES[args.shape]
    loads = [Cell(clients=clients) for clients in (shape.clients if args.clients is None else args.clients)]
    if long_clients := shape.long_clients if args.long_clients is None else args.long_clients:
        loads.append(Cell(clients=long_clients, long_every=args.long_every))
    return loads + [Cell(rate=rate) for rate in args.rates]


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


def measure(
    base_url: str,
    usage: str,
    cell: Cell,
    times: Times,
    seed: int,
    planner: Planner | None = None,
    requests_per_second: float = REQUESTS_PER_SECOND,
) -> dict[str, Any]:
    """Return the figures of one load, ready for JSON. ``planner``: makes the requests of clients; None: as usual.
    ``requests_per_second``: more than the server completes.

    Clients begin together, so at first there are prompts alone: in a closed loop without long prompts the window does
    not begin before as many answers are there as there are clients, or the patience is over.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        plans = planner or make_planner(usage, seed, PROMPT_MEAN, OUTPUT_MEAN)
        return runner.run(_measure(base_url, usage, cell, times, seed, plans, requests_per_second))


async def _measure(
    base_url: str, usage: str, cell: Cell, times: Times, seed: int, planner: Planner, requests_per_second: float
) -> dict[str, Any]:
    settles = cell.clients > 0 and not cell.long_every
    most = max(times.warmup, times.patience) if settles else times.warmup
    limit = most + times.measured
    requests, arrivals = _requests(planner, cell, limit, seed, requests_per_second)
    long_arrivals = [cell.long_every * i for i in range(ceil(limit / cell.long_every))] if cell.long_every else []
    long = make_planner(usage, seed + 1, LONG_PROMPT, LONG_ANSWER, std_share=0.0).requests(len(long_arrivals))
    async with CompletionsClient(base_url) as client:
        begin = perf_counter()
        window = Window(begin + most, begin + limit)

        def note(record: RequestRecord) -> None:
            if settles and len(load.records) == cell.clients:
                window.move(min(max(record.end, begin + times.warmup), window.begin))

        load, long_load = Load(client, times.patience, note), Load(client, times.patience)
        if cell.clients:
            work = closed_loop(load, _until(window, requests), stagger(seed, cell.clients))
        else:
            work = open_loop(load, requests, arrivals)
        cpu = process_time()
        async with asyncio.TaskGroup() as both:
            both.create_task(run_bounded(work, limit + times.patience, asyncio.Event()))
            if cell.long_every:
                # Long prompts can come faster than they are done, so what is left of them is not waited for.
                both.create_task(run_bounded(open_loop(long_load, long, long_arrivals), limit, asyncio.Event()))
        share = (process_time() - cpu) / (perf_counter() - begin)
    figures = {**window_figures(load.records, window), "client_cpu_share": share, "warmup_s": window.begin - begin}
    if cell.long_every:
        figures["long"] = window_figures(long_load.records, window)
    return figures


def _requests(
    planner: Planner, cell: Cell, seconds: float, seed: int, requests_per_second: float
) -> tuple[list[PlannedRequest], list[float]]:
    """Return the requests of a load of the given seconds and, of an open loop, when they arrive."""
    if cell.clients:
        return planner.requests(round(requests_per_second * seconds)), []
    drawn = poisson_arrivals(seed, cell.rate, ceil(2.0 * cell.rate * seconds) + 32)
    arrivals = [time for time in drawn if time < seconds]
    return planner.requests(len(arrivals)), arrivals


def make_planner(
    usage: str, seed: int, prompt: int, output: int, std_share: float = STD_SHARE, model: str = SERVED_NAME
) -> Planner:
    """Return what makes greedy requests of these mean lengths, whose prompts are random token ids."""
    fields = request_fields(model, usage=usage, ignore_eos=True, temperature=0.0, top_p=1.0)
    lengths = Lengths.about(prompt, output, std_share)
    return Planner(lengths, IdPrompts(VOCAB_SIZE, 0, seed), 0, fields, seed)


def _until(window: Window, requests: Iterable[PlannedRequest]) -> Iterator[PlannedRequest]:
    """Requests that begin before the window ends, which may move meanwhile."""
    for request in requests:
        if perf_counter() >= window.end:
            return
        yield request
    raise RuntimeError("the load ran out of requests: the server completes more in a second than were planned")


def window_figures(records: Sequence[RequestRecord], window: Window) -> dict[str, Any]:
    """Rates count what arrived in the window; TTFT and effective throughput, by SLA, are of requests that started in
    it, inter-token times of tokens that arrived in it. ``wrong_lengths``: completed requests whose answers had more or
    fewer tokens than were asked for."""
    started = [record for record in records if record.start in window]
    completed = [record for record in records if record.outcome == "completed"]
    failed = [record for record in records if record.outcome == "failed"]
    seconds = window.end - window.begin
    return {
        "requests_per_s": sum(record.end in window for record in completed) / seconds,
        "output_tokens_per_s": sum(_tokens_in(window, record) for record in records) / seconds,
        "prompt_tokens_per_s": sum(r.prompt_tokens for r in records if r.start + r.first_token_time in window)
        / seconds,
        "ttft_s": spread(record.first_token_time for record in started),
        "inter_token_s": spread(gap for record in records for gap in gaps(record, window)),
        "effective_per_s": {
            f"{sla:g}": sum(SloTargets(sla=sla).met_by(record) for record in started) / seconds for sla in SLAS
        },
        "answer_tokens": fmean(record.output_tokens for record in completed) if completed else None,
        "completed": len(completed),
        "cut": len(records) - len(completed) - len(failed),
        "failed": len(failed),
        "reasons": sorted({record.reason for record in failed})[:3],
        "wrong_lengths": sum(record.output_tokens != record.max_tokens for record in completed),
    }


def _tokens_in(window: Window, record: RequestRecord) -> float:
    """Return the tokens that arrived in the window. Where only the end tells their number, chunks share them: a server
    holds back tokens that are a part of a character."""
    chunks = sum(tokens for _, tokens in record.arrivals)
    share = record.output_tokens / chunks if record.counted_by == "final usage" and chunks else 1.0
    return share * sum(tokens for time, tokens in record.arrivals if time in window)


def gaps(record: RequestRecord, window: Window) -> list[float]:
    """Return the inter-token times of tokens that arrived in the window, seconds.

    Unlike in ``inter_token_times``, tokens that came with the first one have none.
    """
    return [seconds for time, seconds in record.later_tokens() if time in window]
