"""First tokens of agents: conversations of several turns over one system prompt, at one server or at several in turns.

    .venv/bin/python -m scripts.measure.agents --base-url http://127.0.0.1:8000/v1
    .venv/bin/python -m scripts.measure.agents --base-url http://127.0.0.1:8000/v1 --base-url http://127.0.0.1:8001/v1

Each turn sends all tokens before, with answers as the server gave them, and ``--new`` more. Every round has prompts of
its own, so only its own tokens can be cached. A row has the times of turns after the first, the tokens/s of the round,
and the tokens that a turn computed beyond its new ones: those that the prefix cache did not give. Keep the machine
otherwise idle.
"""

import argparse
import asyncio
import json
import random
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Any

import aiohttp

from jaxgen.hardware.device_info import this_cpu
from jaxgen.server.benchmark.client import LoadError
from jaxgen.server.benchmark.metrics import spread


@dataclass(frozen=True, slots=True)
class Turn:
    """Seconds to the first token and between tokens of one turn, and the tokens that it computed twice."""

    first: float
    gaps: tuple[float, ...]
    again: int


@dataclass(frozen=True, slots=True)
class Load:
    """Conversations at once, their turns, and tokens: of the system prompt, new in each turn, and of an answer."""

    agents: int
    turns: int
    system: int
    new: int
    answer: int
    vocab_size: int


async def turn(session: aiohttp.ClientSession, url: str, model: str, tokens: list[int], load: Load) -> tuple[Turn, int]:
    """Send one turn and append its answer to ``tokens``. Returns it, and the tokens that the server had cached."""
    body = {"model": model, "prompt": tokens, "max_tokens": load.answer, "ignore_eos": True, "temperature": 0}
    body |= {"stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}
    sent, arrivals, cached, answer = perf_counter(), [], 0, list[int]()
    async with session.post(f"{url}/completions", json=body) as response:
        if response.status != 200:
            raise LoadError(f"{url} answered {response.status}: {await response.text()}")
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            event: dict[str, Any] = json.loads(line[6:])
            if event.get("usage"):
                cached = (event["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0)
            found = [token for choice in event["choices"] for token in choice.get("token_ids") or ()]
            if found:
                arrivals.append(perf_counter())
                answer += found
    # The last token of an answer is never computed, so the next turn computes it as a new one.
    again = len(tokens) - load.new - cached
    tokens += answer
    return Turn(arrivals[0] - sent, tuple(b - a for a, b in pairwise(arrivals)), again), cached


async def conversation(
    session: aiohttp.ClientSession, url: str, model: str, system: list[int], draw: random.Random, load: Load
) -> list[Turn]:
    """Return the turns of one conversation."""
    tokens, turns = list(system), []
    for _ in range(load.turns):
        tokens += [draw.randrange(4, load.vocab_size) for _ in range(load.new)]
        turns.append((await turn(session, url, model, tokens, load))[0])
    return turns


async def measure(url: str, load: Load, seed: int) -> None:
    """Run the conversations at a server and print a row."""
    draw = random.Random(seed)
    system = [draw.randrange(4, load.vocab_size) for _ in range(load.system)]
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as session:
        async with session.get(f"{url}/models") as response:
            model = (await response.json())["data"][0]["id"]
        began = perf_counter()
        draws = [random.Random(draw.random()) for _ in range(load.agents)]
        done = await asyncio.gather(*[conversation(session, url, model, system, one, load) for one in draws])
        seconds = perf_counter() - began
    later = [turn for turns in done for turn in turns[1:]]
    first, gaps = spread([turn.first for turn in later]), spread([gap for turn in later for gap in turn.gaps])
    rate = load.agents * load.turns * load.answer / seconds
    print(
        f"{url}: first token P50 {1e3 * (first['p50'] or 0):.0f} ms, P95 {1e3 * (first['p95'] or 0):.0f} ms; "
        f"gaps P50 {1e3 * (gaps['p50'] or 0):.1f} ms, P95 {1e3 * (gaps['p95'] or 0):.1f} ms; {rate:.0f} tokens/s; "
        f"computed again per turn: median {median(turn.again for turn in later):.0f}, "
        f"most {max(turn.again for turn in later)}; first turns: {[turns[0].again - load.system for turns in done]}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", action="append", required=True, help="of a server; may be given several times")
    parser.add_argument("--agents", type=int, default=8, help="conversations at once")
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--system", type=int, default=2000, help="tokens that all conversations begin with")
    parser.add_argument("--new", type=int, default=150, help="tokens that each turn adds")
    parser.add_argument("--answer", type=int, default=120, help="tokens of each answer")
    parser.add_argument("--vocab-size", type=int, default=8000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="of the first round; each round's prompts follow from it")
    args = parser.parse_args()
    load = Load(args.agents, args.turns, args.system, args.new, args.answer, args.vocab_size)
    print(f"{load} on {this_cpu()}")
    for number in range(args.rounds):
        for url in args.base_url[:: 1 if number % 2 else -1]:
            try:
                asyncio.run(measure(url, load, args.seed + number))
            except LoadError as error:
                raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
