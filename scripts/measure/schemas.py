"""Measure answers under a JSON schema, and the same load without one, at one server or at several in turns.

    .venv/bin/jaxgen serve --model smollm2-135m
    .venv/bin/python -m scripts.measure.schemas --base-url http://127.0.0.1:8000/v1

Any server will do that has ``response_format`` with a JSON schema in chat completions. In a round every client sends
one request after another, at first with the schema, then without it, each answer as long as the mean under the schema.
A row has what came in the measured seconds: tokens/s, seconds between pieces of an answer, and tokens per answer. Where
``/metrics`` is jaxgen's it has the tokens per step too. Keep the machine otherwise idle.
"""

import argparse
import asyncio
import json
import random
import re
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import mean
from time import perf_counter
from typing import Any

import aiohttp

from jaxgen.hardware.device_info import this_cpu
from jaxgen.server.benchmark.client import LoadError
from jaxgen.server.benchmark.metrics import spread
from scripts.peers.loads.forms import TICKET

FORMAT = {"type": "json_schema", "json_schema": {"name": "ticket", "schema": TICKET, "strict": True}}
WORDS = ("lamp", "table", "parcel", "late", "broken", "lost", "again", "order", "paid", "twice", "street", "blue")
MOST_TOKENS = 250


@dataclass
class Window:
    """Events in the measured time. ``answers``: tokens of the answers that ended."""

    begin: float
    end: float
    tokens: int = 0
    gaps: list[float] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)

    def note(self, arrivals: list[tuple[float, int]]) -> None:
        """Add an answer: when its pieces came, and how many tokens it then had."""
        for (before, had), (time, has) in pairwise([(0.0, 0), *arrivals]):
            if self.begin <= time < self.end:
                self.tokens += has - had
                self.gaps += [time - before] if had else []
        if arrivals and self.begin <= arrivals[-1][0] < self.end:
            self.answers.append(arrivals[-1][1])


async def answer(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> list[tuple[float, int]]:
    """Return when each piece of an answer came, and how many tokens it then had."""
    arrivals: list[tuple[float, int]] = []
    async with session.post(f"{url}/chat/completions", json=body) as response:
        if response.status != 200:
            raise LoadError(f"{url} answered {response.status}: {await response.text()}")
        async for line in response.content:
            if line.startswith(b"data: {"):
                usage = json.loads(line[6:]).get("usage")
                if usage and usage["completion_tokens"]:
                    arrivals.append((perf_counter(), usage["completion_tokens"]))
    return arrivals


async def measure(url: str, clients: int, seconds: float, warmup: float, seed: int, length: int | None) -> int:
    """Run a load and print its row. ``length``: of each answer; None: under the schema. Returns the mean length."""
    draw = random.Random(seed)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as session:
        async with session.get(f"{url}/models") as response:
            model = (await response.json())["data"][0]["id"]
        began, before = perf_counter(), await steps(session, url)
        window = Window(began + warmup, began + warmup + seconds)

        async def client() -> None:
            while perf_counter() < window.end:
                text = f"Message {draw.randrange(10**6)}: {' '.join(draw.choices(WORDS, k=20))}. Fill in a ticket."
                body = {"model": model, "messages": [{"role": "user", "content": text}], "temperature": 1.0}
                body |= {"seed": draw.randrange(10**6), "stream": True}
                body |= {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
                body |= (
                    {"response_format": FORMAT, "max_tokens": MOST_TOKENS}
                    if length is None
                    else {"max_tokens": length, "ignore_eos": True}
                )
                window.note(await answer(session, url, body))

        await asyncio.gather(*(client() for _ in range(clients)))
        after = await steps(session, url)
    gaps, answer_tokens = spread(window.gaps), round(mean(window.answers)) if window.answers else MOST_TOKENS
    per_step = f"; {(after[1] - before[1]) / (after[0] - before[0]):.1f} tokens a step" if before and after else ""
    print(
        f"{url} {'with the schema' if length is None else 'without'}: {window.tokens / seconds:.0f} tokens/s; gaps P50 "
        f"{1e3 * (gaps['p50'] or 0):.1f} ms, P95 {1e3 * (gaps['p95'] or 0):.1f} ms; {answer_tokens} tokens an answer, "
        f"of {len(window.answers)}{per_step}",
        flush=True,
    )
    return answer_tokens


async def steps(session: aiohttp.ClientSession, url: str) -> tuple[float, float] | None:
    """Return the steps and the generated tokens that a server counts; None where it does not."""
    async with session.get(f"{url.removesuffix('/v1')}/metrics") as response:
        text = await response.text()
    counted = [
        re.search(rf"^jaxgen_{name}_total\S* (\S+)$", text, re.MULTILINE) for name in ("steps", "generation_tokens")
    ]
    values = [float(one[1]) for one in counted if one]
    return (values[0], values[1]) if len(values) == 2 else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", action="append", required=True, help="of a server; may be given several times")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=12.0, help="measured of each load")
    parser.add_argument("--warmup", type=float, default=3.0, help="of the same load before these, seconds")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="of the first round; each round's prompts follow from it")
    args = parser.parse_args()
    print(f"{args.clients} clients on {this_cpu()}")
    for number in range(args.rounds):
        for url in args.base_url[:: 1 if number % 2 else -1]:
            given = url.rstrip("/"), args.clients, args.seconds, args.warmup, args.seed + number
            try:
                length = asyncio.run(measure(*given, None))
                asyncio.run(measure(*given, length))
            except LoadError as error:
                raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
