"""Measure whether first tokens come when /v1/latency said: prompts are quoted and then sent, side by side.

    scripts/serve &
    .venv/bin/python -m scripts.measure.quotes --clients 1,4,16,48 --seconds 15
    .venv/bin/python -m scripts.measure.quotes --service-tier priority        a class of the server's

Clients in closed loops begin within the first quarter of the time. Each asks for a quote and sends the request at once,
or asks for another where it would be refused. Times are the client's, from sending to the first token, with HTTP
in them. Prints a line of JSON for each load. Keep the machine otherwise idle.
"""

import argparse
import asyncio
import json
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import aiohttp

from jaxgen.hardware.device_info import this_cpu
from jaxgen.server.benchmark.client import CompletionsClient, LoadError
from jaxgen.server.benchmark.load import Load, closed_loop, run_bounded
from jaxgen.server.benchmark.metrics import RequestRecord, percentile
from jaxgen.server.benchmark.requests import IdPrompts, Lengths, PlannedRequest, Planner, request_fields, stagger

PATIENCE = 120.0
JSON = {"Content-Type": "application/json"}
PER_CLIENT_SECOND = 20
"""Requests that are planned for each client and second: more than it gets to."""


@dataclass(frozen=True, slots=True)
class QuoteResult:
    """A quote and what came of it, in seconds."""

    quote: dict[str, Any]
    record: RequestRecord
    asked_seconds: float

    @property
    def first(self) -> float:
        return self.record.first_token_time


class QuotedLoad(Load):
    """Asks for a quote before it sends a request; sends none that would be refused."""

    def __init__(self, client: CompletionsClient, session: aiohttp.ClientSession, url: str) -> None:
        super().__init__(client, PATIENCE)
        self._session = session
        self._url = url
        self.kept: list[QuoteResult] = []
        self.refused = 0

    async def send(self, request: PlannedRequest, arrival: float | None = None) -> None:
        asked = perf_counter()
        async with self._session.post(self._url, data=request.body, headers=JSON) as answer:
            quote = json.loads(await answer.read())
        if answer.status != 200:
            raise LoadError(f"{self._url} answered {answer.status}: {quote}")
        took = perf_counter() - asked
        if quote["refused"] is not None:
            self.refused += 1
            await asyncio.sleep(0.1)
            return
        single = Load(self._client, PATIENCE)
        await single.send(request, arrival)
        (record,) = single.records
        if record.arrivals:
            self.kept.append(QuoteResult(quote, record, took))


def row_of(clients: int, tier: str | None, load: QuotedLoad) -> dict[str, Any]:
    """Return the figures of one load, in seconds.

    Shares are of requests that were sent, or of gaps. ``later``: of first tokens that came after ``most_seconds``.
    """
    kept = load.kept
    if not kept:
        raise SystemExit("no request got its first token")
    late = [one.first - one.quote["first_token"]["most_seconds"] for one in kept]
    ratios = [one.first / max(1e-6, one.quote["first_token"]["expected_seconds"]) for one in kept]
    gaps = [gap <= one.quote["inter_token"]["most_seconds"] for one in kept for gap in one.record.arrival_gaps()]
    return {
        "clients": clients,
        "service_tier": tier,
        "requests": len(kept),
        "refused": load.refused,
        "as_expected": sum(one <= 1.0 for one in ratios) / len(kept),
        "kept": sum(by <= 0.0 for by in late) / len(kept),
        "gaps_kept": sum(gaps) / max(1, len(gaps)),
        **_percentiles("first", [one.first for one in kept]),
        **_percentiles("later", [by for by in late if by > 0.0]),
        **_percentiles("ratio", ratios),
        **_percentiles("quote", [one.asked_seconds for one in kept]),
    }


def _percentiles(name: str, values: list[float]) -> dict[str, float | None]:
    ordered = sorted(values)
    return {f"{name}_p{q}": percentile(ordered, q) if ordered else None for q in (5, 50, 95)}


async def measure(args: argparse.Namespace, clients: int, seed: int) -> dict[str, Any]:
    async with CompletionsClient(args.base_url) as client, aiohttp.ClientSession() as session:
        model = (await client.models())[0]["id"]
        fields = request_fields(
            model, usage="continuous", ignore_eos=True, temperature=0.0, top_p=1.0, service_tier=args.service_tier
        )
        lengths = Lengths.about(args.prompt_mean, args.output_mean, args.std_share)
        planner = Planner(
            lengths, IdPrompts(args.vocab_size, args.shared_prefix, seed), args.shared_prefix, fields, seed
        )
        requests = planner.requests(round(clients * args.seconds * PER_CLIENT_SECOND) + clients)
        load = QuotedLoad(client, session, f"{args.base_url}/latency")
        await run_bounded(
            closed_loop(load, requests, stagger(seed, clients, args.seconds / 4 / clients)),
            args.seconds,
            asyncio.Event(),
        )
        return row_of(clients, args.service_tier, load)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--clients", default="1,4,16,48", help="comma-separated; a load of each")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each load")
    parser.add_argument("--service-tier", help="a class of the server's")
    parser.add_argument("--prompt-mean", type=int, default=300)
    parser.add_argument("--output-mean", type=int, default=60)
    parser.add_argument("--std-share", type=float, default=0.3, help="of both, deviation / mean")
    parser.add_argument("--shared-prefix", type=int, default=0, help="first tokens that all prompts share")
    parser.add_argument("--vocab-size", type=int, default=2000)
    return parser.parse_args()


def main() -> None:
    args = options()
    load = {"prompt": args.prompt_mean, "output": args.output_mean, "shared_prefix": args.shared_prefix}
    for seed, clients in enumerate(map(int, args.clients.split(","))):
        row = {"machine": this_cpu().title, **load, **asyncio.run(measure(args, clients, seed))}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
