"""First tokens of agents: conversations of several turns over one system prompt, at one server or at several in turns.

    .venv/bin/python -m scripts.measure.agents --base-url http://127.0.0.1:8000/v1
    .venv/bin/python -m scripts.measure.agents --base-url http://127.0.0.1:8000/v1 --base-url http://127.0.0.1:8001/v1

The load is that of ``scripts.peers --load agents``, at servers that run already. A row has the times of turns after the
first, the tokens/s of the round, and the tokens that a turn computed beyond its new ones because the prefix
cache did not have them. Then come facts of the round from the step feed: the chunks of prompts that were partly cached,
and the predicted over the measured time of steps. Keep the machine otherwise idle.
"""

import argparse
import asyncio
import json
from collections import Counter
from statistics import median
from time import perf_counter
from typing import Any

import aiohttp

from jaxgen.hardware.device_info import this_cpu
from jaxgen.server.benchmark.client import LoadError
from scripts.peers.loads.agents import Agents, figures, run
from scripts.peers.peer import token_ids

PATIENCE = 600.0
"""Seconds of a turn."""


async def model_of(url: str) -> str:
    """Return the name of a server's model."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/models") as response:
        return str((await response.json())["data"][0]["id"])


async def feed(url: str) -> dict[str, Any] | None:
    """Return what the step feed still holds: names of ``fields``, ``steps`` and ``events``; None without a feed."""
    hello: dict[str, Any] = {}
    seconds = 0
    async with aiohttp.ClientSession() as session, session.get(f"{url.removesuffix('/v1')}/steps") as response:
        if response.status != 200:
            return None
        async for line in response.content:
            data = json.loads(line[6:]) if line.startswith(b"data: ") else {}
            hello = hello or data
            seconds += "classes" in data  # the event of each second
            if "steps" in data or seconds > 1:  # a server that has run no step sends none
                found = {name: data.get(name, []) for name in ("steps", "events")}
                return {"fields": hello["step_fields"], **found}
    return None


def told(found: dict[str, Any], since: float) -> str:
    """Return what a step feed says of the time after ``since``, Unix seconds."""
    steps = [dict(zip(found["fields"], step, strict=True)) for step in found["steps"]]
    steps = [step for step in steps if step["time"] > since]
    events = [event for event in found["events"] if event[0] > since]
    hits = {request for _, request, kind, *values in events if kind == "begun" and values[0] > 0}
    chunks = Counter(request for _, request, kind, *_ in events if kind == "chunk" and request in hits)
    ratios = {
        name: [step["predicted"] / step["seconds"] for step in steps if bool(step["prompt"]) is prompts]
        for name, prompts in (("decodes alone", False), ("with prompts", True))
    }
    shown = "; ".join(f"{name} {median(values):.2f}" for name, values in ratios.items() if values)
    return f"chunks per hit: {dict(sorted(Counter(chunks.values()).items()))}; predicted over measured: {shown}"


def measure(url: str, load: Agents, vocab_size: int, seed: int) -> None:
    """Run the conversations at a server and print a row."""
    model = asyncio.run(model_of(url))
    before = asyncio.run(feed(url))
    since = max([step[1] for step in before["steps"]], default=0.0) if before else 0.0
    began = perf_counter()
    turns = asyncio.run(run(url, model, load, vocab_size, seed, token_ids, PATIENCE))
    result = figures(turns, perf_counter() - began)
    firsts = [one[0].cached for one in turns]
    print(f"{url}: {load.summary(result)}; cached of the first turns: {firsts}", flush=True)
    if after := asyncio.run(feed(url)):
        print(f"  {told(after, since)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", action="append", required=True, help="of a server; may be given several times")
    parser.add_argument("--agents", type=int, default=8, help="conversations at once")
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--system", type=int, default=2000, help="tokens that all conversations begin with")
    parser.add_argument("--new", type=int, default=150, help="tokens that each turn adds")
    parser.add_argument("--answer", type=int, default=120, help="tokens of each answer")
    parser.add_argument("--spread", type=int, default=0, help="tokens that answers have more or fewer at most")
    parser.add_argument("--vocab-size", type=int, default=8000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="of the first round; each round's prompts follow from it")
    args = parser.parse_args()
    load = Agents(args.agents, args.turns, args.system, args.new, args.answer, args.spread)
    print(f"{load} on {this_cpu()}")
    for number in range(args.rounds):
        for url in args.base_url[:: 1 if number % 2 else -1]:
            try:
                measure(url, load, args.vocab_size, args.seed + number)
            except LoadError as error:
                raise SystemExit(f"{url}: {error}") from None


if __name__ == "__main__":
    main()
