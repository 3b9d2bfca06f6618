"""Measure what a choice costs or buys: the same load without it and with it, in turn.

    .venv/bin/python -m scripts.measure.pairs flags --model DIR --flags=--single-shape --clients 1,4 --pairs 10
    .venv/bin/python -m scripts.measure.pairs batch --clients 4            at a server with --batch-dir
    .venv/bin/python -m scripts.measure.pairs class --service-tier priority --rate 1.5 --requests 20

``flags``: two servers are up, one with the flags. ``batch``: a batch runs next to the load. ``class``: the load has a
class of service, next to a flood of requests without one. Which of a pair comes first alternates, so that a machine
that others use meets both alike. Prints for each figure the medians, and the ratio of each pair, with over without, as
a median with the second and the eighth of ten.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import aiohttp
import openai
from prometheus_client.parser import text_string_to_metric_families

from jaxgen.server.benchmark.client import CompletionsClient
from jaxgen.server.benchmark.load import Load, closed_loop, open_loop
from jaxgen.server.benchmark.metrics import RequestRecord, latencies
from jaxgen.server.benchmark.requests import IdPrompts, Lengths, Planner, poisson_arrivals, request_fields, stagger
from scripts.peers.peer import SERVED_NAME, Launch
from scripts.peers.process import free_port, running

FIGURES = {"TTFT": ("ttft_s", ("p50", "p95")), "between tokens": ("inter_token_s", ("p50", "p95", "p99"))}
"""Latencies that are shown, by their names in ``latencies``."""
FLOOD_REQUESTS = 50
"""Of each client of the flood, at most."""
PATIENCE = 600.0
Measure = Callable[[], Awaitable[list[RequestRecord]]]
"""Sends one load."""


class Server:
    """A server that is measured; no two prompts of a run are alike."""

    def __init__(self, args: argparse.Namespace, client: CompletionsClient, model: str) -> None:
        self.args, self.client, self._model = args, client, model
        self._seeds = count()

    def planner(self, prompt: int, output: int, tier: str | None = None) -> Planner:
        fields = request_fields(
            self._model, usage="continuous", ignore_eos=True, temperature=1.0, top_p=1.0, service_tier=tier
        )
        prompts = IdPrompts(self.args.vocab_size, 0, next(self._seeds))
        return Planner(Lengths.about(prompt, output), prompts, 0, fields, 0)

    async def load(self, clients: int, tier: str | None = None) -> list[RequestRecord]:
        """Send the measured requests: of ``clients`` in closed loops, or at ``--rate``."""
        args, load = self.args, Load(self.client, PATIENCE)
        requests = self.planner(args.prompt_mean, args.output_mean, tier).requests(args.requests)
        if args.rate is None:
            await closed_loop(load, requests, stagger(0, clients, 0.05))
        else:
            await open_loop(load, requests, poisson_arrivals(0, args.rate, len(requests)))
        return load.records

    async def beside_a_batch(self, sdk: Any, clients: int) -> list[RequestRecord]:
        """Send them while a batch runs, and say how many of its lines were done meanwhile."""
        planned = self.planner(self.args.prompt_mean, self.args.output_mean).requests(self.args.lines)
        lines = [_line(number, json.loads(request.body)) for number, request in enumerate(planned)]
        file = await sdk.files.create(file=("in.jsonl", "".join(lines).encode()), purpose="batch")
        batch = await sdk.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
        while batch.status == "validating":
            await asyncio.sleep(0.05)
            batch = await sdk.batches.retrieve(batch.id)
        before = (await sdk.batches.retrieve(batch.id)).request_counts.completed
        records = await self.load(clients)
        batch = await sdk.batches.retrieve(batch.id)
        if batch.status != "in_progress":
            raise SystemExit("the batch ended before the load: use more --lines")
        print(f"  lines of the batch done meanwhile: {batch.request_counts.completed - before}", flush=True)
        await sdk.batches.cancel(batch.id)
        while (await sdk.batches.retrieve(batch.id)).status != "cancelled":
            await asyncio.sleep(0.05)
        await sdk.files.delete(file.id)
        return records

    async def beside_a_flood(self, clients: int, tier: str | None) -> list[RequestRecord]:
        """Send them, with or without their class, while a flood of others runs; what is left of that is broken off."""
        args, others = self.args, Load(self.client, PATIENCE)
        flood = self.planner(args.flood_prompt_mean, args.flood_output_mean).requests(FLOOD_REQUESTS * args.flood)
        flooding = asyncio.create_task(closed_loop(others, flood, [0.0] * args.flood))
        await asyncio.sleep(1.0)
        records = await self.load(clients, tier)
        if flooding.done():
            raise SystemExit("the flood ended early: use longer answers")
        flooding.cancel()
        await asyncio.gather(flooding, return_exceptions=True)
        return records

    async def outcomes(self, tier: str) -> Counter[str]:
        """Return what the server has counted of a class so far."""
        result: Counter[str] = Counter()
        url = self.args.base_url.removesuffix("/v1") + "/metrics"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            for family in text_string_to_metric_families(await answer.text()):
                for one in family.samples:
                    if one.name == "jaxgen_service_class_requests_total" and one.labels["service_class"] == tier:
                        result[one.labels["outcome"]] += int(one.value)
        return result


def _line(number: int, body: dict[str, Any]) -> str:
    body = {name: value for name, value in body.items() if not name.startswith("stream")}
    line = {"custom_id": f"line-{number}", "method": "POST", "url": "/v1/completions", "body": body}
    return json.dumps(line) + "\n"


async def compare(title: str, without: Measure, beside: Measure, pairs: int) -> None:
    """Measure both ``pairs`` times and print a line for each figure."""
    sides: list[list[dict[str, Any]]] = [[], []]
    failed = Counter[str]()
    for pair in range(pairs):
        for which in (0, 1) if pair % 2 == 0 else (1, 0):
            records = await (without, beside)[which]()
            failed.update(str(record.reason) for record in records if record.outcome != "completed")
            sides[which].append(latencies(records))
    print(f"{title}, {pairs} pairs" + (f"; failed: {dict(failed)}" if failed else ""))
    for shown, (name, places) in FIGURES.items():
        for place in places:
            values = [[one[name][place] for one in side] for side in sides]
            both = [(a, b) for a, b in zip(*values, strict=True) if a and b]
            if both:
                before, after = (1e3 * median(side) for side in zip(*both, strict=True))
                print(f"  {shown} {place.upper()}: {before:.2f} -> {after:.2f} ms, {_ratios([b / a for a, b in both])}")
    sys.stdout.flush()


def _ratios(values: list[float]) -> str:
    tenths = quantiles(values, n=10) if len(values) > 1 else values * 9
    return f"{median(values):.3f} ({tenths[1]:.3f} to {tenths[7]:.3f})"


@asynccontextmanager
async def server_at(args: argparse.Namespace, url: str) -> AsyncIterator[Server]:
    """Connect to a server that has one model, and warm it up."""
    async with CompletionsClient(url) as client:
        server = Server(args, client, (await client.models())[0]["id"])
        await server.load(1)
        yield server


async def measure_flags(args: argparse.Namespace, urls: list[str]) -> None:
    async with server_at(args, urls[0]) as plain, server_at(args, urls[1]) as flagged:
        for clients in args.clients:
            title = f"{args.flags} over none, {clients} clients"
            await compare(title, partial(plain.load, clients), partial(flagged.load, clients), args.pairs)


async def measure_batch(args: argparse.Namespace) -> None:
    sdk = openai.AsyncOpenAI(base_url=args.base_url, api_key="none", max_retries=0, timeout=PATIENCE)
    async with sdk, server_at(args, args.base_url) as server:
        for clients in args.clients:
            title = f"beside a batch over without, {clients} clients"
            await compare(
                title,
                partial(server.load, clients),
                partial(server.beside_a_batch, sdk, clients),
                args.pairs,
            )


async def measure_class(args: argparse.Namespace) -> None:
    async with server_at(args, args.base_url) as server:
        before = await server.outcomes(args.service_tier)
        for clients in args.clients:
            title = f"{args.service_tier} over no class, {clients} clients"
            await compare(
                title,
                partial(server.beside_a_flood, clients, None),
                partial(server.beside_a_flood, clients, args.service_tier),
                args.pairs,
            )
        counted = await server.outcomes(args.service_tier) - before
        print(f"the server's count of {args.service_tier}: " + ", ".join(f"{n} {o}" for o, n in counted.items()))


def serve_both(args: argparse.Namespace) -> None:
    """Start a server without the flags and one with them, and compare them."""
    command = [sys.executable, "-m", "jaxgen.server.cli", "serve", "--served-model-name", SERVED_NAME]
    command += ["--model", args.model] if args.model else []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as servers:
        urls = []
        for name, flags in (("plain", []), ("flags", args.flags.split())):
            port, log = free_port(), Path(folder) / f"{name}.log"
            launch = Launch([*command, "--port", str(port), *flags])
            urls.append(servers.enter_context(running(launch, port, sorted(os.sched_getaffinity(0)), log)).base_url)
        asyncio.run(measure_flags(args, urls))


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("flags", "batch", "class"))
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1", help="of batch and class")
    parser.add_argument("--model", help="directory, of flags (default: the embedded model)")
    parser.add_argument("--flags", default="", help="of one of the servers, as in --flags=--single-shape")
    parser.add_argument("--service-tier", default="priority", help="a class of the server's")
    parser.add_argument(
        "--clients",
        default=[4],
        type=lambda text: [int(n) for n in text.split(",")],
        help="closed loops, comma-separated",
    )
    parser.add_argument("--rate", type=float, help="instead of these, requests a second that come by chance")
    parser.add_argument("--requests", type=int, default=100, help="of each load")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--prompt-mean", type=int, default=256)
    parser.add_argument("--output-mean", type=int, default=60)
    parser.add_argument("--lines", type=int, default=2000, help="of a batch; what a load leaves is cancelled")
    parser.add_argument("--flood", type=int, default=120, help="clients, each with one request after another")
    parser.add_argument("--flood-prompt-mean", type=int, default=700)
    parser.add_argument("--flood-output-mean", type=int, default=200)
    parser.add_argument("--vocab-size", type=int, default=2000)
    return parser.parse_args()


def main() -> None:
    args = options()
    if args.what == "flags":
        serve_both(args)
    else:
        asyncio.run(measure_batch(args) if args.what == "batch" else measure_class(args))


if __name__ == "__main__":
    main()
