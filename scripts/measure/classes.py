"""What a class of service buys: the same requests with and without it, in turn, beside a flood of others.

    scripts/serve --service-class "priority ttft=1 inter-token=0.05" &
    .venv/bin/python -m scripts.measure.classes --service-tier priority --rounds 3

The flood has no class, and all its clients have begun before the first request that is measured. Prints, for each round
and all rounds together, times to the first token, times between tokens, and what the server counted as kept, late or
refused.
"""

import argparse
import asyncio
from collections import Counter

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from jaxgen.server.benchmark.client import CompletionsClient
from jaxgen.server.benchmark.load import Load, closed_loop, open_loop
from jaxgen.server.benchmark.metrics import RequestRecord, latencies
from jaxgen.server.benchmark.requests import (
    IdPrompts,
    Lengths,
    PlannedRequest,
    Planner,
    poisson_arrivals,
    request_fields,
)

COUNTER = "jaxgen_service_class_requests"
FLOOD_REQUESTS = 50
"""Of each client of the flood, at most."""


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--service-tier", default="priority", help="a class of the server's, for the requests measured")
    parser.add_argument("--rate", type=float, default=1.5, help="of these, requests a second, that come by chance")
    parser.add_argument("--requests", type=int, default=20, help="of these, in a round")
    parser.add_argument("--prompt-mean", type=int, default=200, help="tokens of these")
    parser.add_argument("--output-mean", type=int, default=40)
    parser.add_argument("--flood", type=int, default=120, help="clients, each with one request after another")
    parser.add_argument("--flood-prompt-mean", type=int, default=700)
    parser.add_argument("--flood-output-mean", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--vocab-size", type=int, default=2000)
    return parser.parse_args()


class Comparison:
    def __init__(self, args: argparse.Namespace, client: CompletionsClient, model: str) -> None:
        self._args = args
        self._client = client
        self._model = model
        self._seeds = iter(range(10**6))  # no two prompts of a run are alike

    async def measure(self, tier: str | None) -> list[RequestRecord]:
        """The measured requests of one round; what is left of the flood is broken off."""
        args = self._args
        requests = self._requests(args.requests, args.prompt_mean, args.output_mean, tier)
        flood = self._requests(FLOOD_REQUESTS * args.flood, args.flood_prompt_mean, args.flood_output_mean, None)
        measured, others = Load(self._client, 600.0), Load(self._client, 600.0)
        flooding = asyncio.create_task(closed_loop(others, flood, [0.0] * args.flood))
        await asyncio.sleep(1.0)
        await open_loop(measured, requests, poisson_arrivals(0, args.rate, len(requests)))
        if flooding.done():
            reasons = {record.reason for record in others.records if record.outcome != "completed"}
            raise SystemExit(f"the flood ended early: use longer answers; failures: {reasons or 'none'}")
        flooding.cancel()
        await asyncio.gather(flooding, return_exceptions=True)
        return measured.records

    async def outcomes(self) -> Counter[str]:
        """Those of the class that the server has counted so far."""
        found: Counter[str] = Counter()
        url = self._args.base_url.removesuffix("/v1") + "/metrics"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            for family in text_string_to_metric_families(await answer.text()):
                for sample in family.samples:
                    if sample.name == f"{COUNTER}_total" and sample.labels["service_class"] == self._args.service_tier:
                        found[sample.labels["outcome"]] += int(sample.value)
        return found

    def _requests(self, num: int, prompt: int, output: int, tier: str | None) -> list[PlannedRequest]:
        fields = request_fields(
            self._model, usage="continuous", ignore_eos=True, temperature=1.0, top_p=1.0, service_tier=tier
        )
        prompts = IdPrompts(self._args.vocab_size, 0, next(self._seeds))
        return Planner(Lengths.about(prompt, output), prompts, 0, fields, 0).requests(num)


def show(name: str, records: list[RequestRecord]) -> None:
    found = latencies(records)
    first, between = found["ttft_s"], found["inter_token_s"]
    done = sum(record.outcome == "completed" for record in records)
    print(
        f"{name}: {done} of {len(records)} done; TTFT p50 {_ms(first['p50'])}, p95 {_ms(first['p95'])}; "
        f"inter-token p50 {_ms(between['p50'])}, p95 {_ms(between['p95'])}, p99 {_ms(between['p99'])}",
        flush=True,
    )


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:.1f} ms"


async def compare(args: argparse.Namespace) -> None:
    async with CompletionsClient(args.base_url) as client:
        comparison = Comparison(args, client, (await client.models())[0]["id"])
        before = await comparison.outcomes()
        records: dict[str | None, list[RequestRecord]] = {None: [], args.service_tier: []}
        for index in range(args.rounds):
            for tier, so_far in records.items():
                measured = await comparison.measure(tier)
                show(f"round {index + 1}, {tier or 'without a class'}", measured)
                so_far.extend(measured)
        for tier, measured in records.items():
            show(f"all, {tier or 'without a class'}", measured)
        counted = await comparison.outcomes() - before
        print(f"the server's count of {args.service_tier}: " + ", ".join(f"{n} {o}" for o, n in counted.items()))


def main() -> None:
    asyncio.run(compare(options()))


if __name__ == "__main__":
    main()
