"""What a batch costs online requests: the same load without one and with one, in turn, at a server with --batch-dir.

    scripts/serve --batch-dir DIRECTORY &
    .venv/bin/python -m scripts.measure.batches --clients 4 --rounds 3

Prints, for each round and all rounds together, the online latencies with a batch as ratios of those without one, and
how many tokens of batches were generated meanwhile.
"""

import argparse
import asyncio
import json
from itertools import count
from typing import Any

import openai

from jaxgen.server.benchmark.client import CompletionsClient
from jaxgen.server.benchmark.load import Load, closed_loop, open_loop
from jaxgen.server.benchmark.metrics import RequestRecord, latencies
from jaxgen.server.benchmark.requests import IdPrompts, Lengths, Planner, poisson_arrivals, request_fields, stagger

LATENCIES = {"ttft_s": "ttft", "inter_token_s": "inter-token", "e2e_s": "whole answer"}
"""The latencies that are shown, by their names in ``latencies``."""


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--clients", type=int, default=4, help="online clients, each with one request at a time")
    parser.add_argument("--rate", type=float, help="instead of these, requests a second that come by chance")
    parser.add_argument("--requests", type=int, default=100, help="online requests of a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt-mean", type=int, default=256)
    parser.add_argument("--output-mean", type=int, default=60)
    parser.add_argument("--vocab-size", type=int, default=2000)
    parser.add_argument("--lines", type=int, default=2000, help="of a batch; what a round leaves is cancelled")
    return parser.parse_args()


class Comparison:
    def __init__(
        self, args: argparse.Namespace, client: CompletionsClient, sdk: openai.AsyncOpenAI, model: str
    ) -> None:
        self._args = args
        self._client = client
        self._sdk = sdk
        self._model = model
        lengths = Lengths.about(args.prompt_mean, args.output_mean)
        fields = request_fields(model, usage="none", ignore_eos=True, temperature=1.0, top_p=1.0)
        self._planner = Planner(lengths, IdPrompts(args.vocab_size, 0, 0), 0, fields, 0)
        self._names = count()

    async def online(self) -> list[RequestRecord]:
        """One round's requests."""
        args, requests = self._args, self._planner.requests(self._args.requests)
        load = Load(self._client, 600.0)
        if args.rate is None:
            await closed_loop(load, requests, stagger(0, args.clients, 0.05))
        else:
            await open_loop(load, requests, poisson_arrivals(0, args.rate, len(requests)))
        failed = [record for record in load.records if record.outcome != "completed"]
        if failed:
            raise SystemExit(f"{len(failed)} online requests failed: {failed[0].reason}")
        return load.records

    async def beside_a_batch(self) -> tuple[list[RequestRecord], int]:
        """The same, and lines of a batch done meanwhile."""
        lines = [self._line(json.loads(request.body)) for request in self._planner.requests(self._args.lines)]
        file = await self._sdk.files.create(file=("in.jsonl", "".join(lines).encode()), purpose="batch")
        batch = await self._sdk.batches.create(
            input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
        )
        while batch.status == "validating":
            await asyncio.sleep(0.05)
            batch = await self._sdk.batches.retrieve(batch.id)
        await asyncio.sleep(0.5)
        before = await self._done(batch.id)
        records = await self.online()
        done = await self._done(batch.id) - before
        if (await self._sdk.batches.retrieve(batch.id)).status == "in_progress":
            await self._sdk.batches.cancel(batch.id)
        else:
            raise SystemExit("the batch ended before the round: use more --lines")
        while (await self._sdk.batches.retrieve(batch.id)).status != "cancelled":
            await asyncio.sleep(0.05)
        await self._sdk.files.delete(file.id)
        return records, done

    async def _done(self, batch_id: str) -> int:
        counts = (await self._sdk.batches.retrieve(batch_id)).request_counts
        return 0 if counts is None else counts.completed

    def _line(self, body: dict[str, Any]) -> str:
        body = {name: value for name, value in body.items() if not name.startswith("stream")}
        line = {"custom_id": f"line-{next(self._names)}", "method": "POST", "url": "/v1/completions", "body": body}
        return json.dumps(line) + "\n"


def show(name: str, without: list[RequestRecord], beside: list[RequestRecord], done: int) -> None:
    alone, loaded = latencies(without), latencies(beside)
    cells = []
    for latency, shown in LATENCIES.items():
        for q in ("p50", "p99"):
            a, b = alone[latency][q] or float("nan"), loaded[latency][q] or float("nan")
            cells.append(f"{shown} {q} {1e3 * a:.2f} -> {1e3 * b:.2f} ms ({b / a:.3f})")
    print(f"{name}: {'; '.join(cells)}; lines done {done}", flush=True)


async def main() -> None:
    args = options()
    sdk = openai.AsyncOpenAI(base_url=args.base_url, api_key="none", max_retries=0, timeout=600.0)
    async with sdk, CompletionsClient(args.base_url) as client:
        comparison = Comparison(args, client, sdk, (await client.models())[0]["id"])
        await comparison.online()  # warms up
        without, beside, lines = [], [], 0
        for index in range(args.rounds):
            alone = await comparison.online()
            loaded, done = await comparison.beside_a_batch()
            show(f"round {index + 1}", alone, loaded, done)
            without += alone
            beside += loaded
            lines += done
        show("all", without, beside, lines)


if __name__ == "__main__":
    asyncio.run(main())
