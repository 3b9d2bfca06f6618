"""Conversations of several turns over one system prompt, as agents have them: what a prefix cache is for.

Each turn sends all tokens before, with answers as the server gave them, and some new ones. Every run has prompts of its
own, so only its own tokens can be cached.
"""

import argparse
import asyncio
import json
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter
from typing import Any

import aiohttp

from jaxgen.server.benchmark.client import LoadError
from jaxgen.server.benchmark.metrics import RequestRecord, spread
from jaxgen.server.benchmark.requests import FIRST_ID
from scripts.peers.load import VOCAB_SIZE, Times
from scripts.peers.peer import SERVED_NAME, Peer
from scripts.peers.shapes import SHAPES as ALL_SHAPES
from scripts.peers.shapes import Shape
from scripts.peers.tables import ms

Read = Callable[[dict[str, Any]], list[int]]
"""Returns the ids of the tokens of an answer, or of a piece of one."""


@dataclass(frozen=True, slots=True, order=True)
class Agents:
    """A load: ``agents`` conversations at once, each of ``turns``. Tokens: of the system prompt, new in each turn, and
    of an answer, which has up to ``spread`` more or fewer.

    Without a spread all agents stay one step apart: each sends its turn while the prompt of the one before is computed,
    in every turn again. Agents whose answers differ meet by chance.
    """

    agents: int
    turns: int
    system: int = 2000
    new: int = 150
    answer: int = 120
    spread: int = 0

    @classmethod
    def of(cls, figures: dict[str, Any]) -> "Agents":
        """Return the load whose figures these are."""
        return cls(*(figures[name] for name in ("agents", "turns", "system", "new", "answer", "spread")))

    @property
    def name(self) -> str:
        lengths = (
            f", completions of {self.answer - self.spread} to {self.answer + self.spread} tokens" if self.spread else ""
        )
        return f"{self.agents} agent{'s' * (self.agents != 1)} of {self.turns} turns{lengths}"

    def measure(self, base_url: str, peer: Peer, times: Times, seed: int) -> dict[str, Any]:
        """Return the figures of one run, ready for JSON. Raises LoadError, aiohttp.ClientError or OSError."""
        began = perf_counter()
        turns = asyncio.run(run(base_url, SERVED_NAME, self, VOCAB_SIZE, seed, peer.tokens, times.patience))
        return figures(turns, perf_counter() - began)

    def summary(self, figures: dict[str, Any]) -> str:
        """Return the figures in a line."""
        first, gap = (" / ".join(ms(figures[name][q]) for q in ("p50", "p95")) for name in ("ttft_s", "inter_token_s"))
        again = figures["computed_again"]
        known = (
            "cached tokens not told"
            if again is None
            else f"computed again per turn {again['median']:g}, {again['most']} at most"
        )
        return (
            f"TTFT after the first turn {first} ms, inter-token {gap} ms (P50 / P95); "
            f"{figures['output_tokens_per_s']:.0f} output tokens/s; {known}"
        )


SPREAD = 40
CELLS = {
    "88m": (Agents(1, 12), Agents(8, 12), Agents(8, 12, spread=SPREAD)),
    "1b": (Agents(1, 6), Agents(4, 6), Agents(4, 6, spread=SPREAD)),
}
"""What is run of each shape, unless a flag says otherwise."""
SHAPES: dict[str, Shape] = {
    "88m": replace(
        ALL_SHAPES["88m"],
        load="agents",
        peers=("jaxgen", "OpenVINO GenAI", "vLLM", "llama.cpp"),
        formats=("bfloat16",),
        vocabulary="",
    ),
    "1b": replace(
        ALL_SHAPES["1b"],
        load="agents",
        peers=("jaxgen", "OpenVINO GenAI", "llama.cpp"),
        formats=("int8",),
        vocabulary="",
    ),
}


def cells(args: argparse.Namespace) -> list[Agents]:
    """Return the runs that flags ask for, or those of the shape."""
    return list(args.agents or CELLS[args.shape])


@dataclass(frozen=True, slots=True)
class Turn:
    """``known``: tokens of its prompt that the server has had before; ``cached``: tokens that it says it had
    cached, None if it does not say."""

    record: RequestRecord
    known: int
    cached: int | None


async def run(
    base_url: str, model: str, load: Agents, vocab_size: int, seed: int, read: Read, patience: float
) -> list[list[Turn]]:
    """Return the turns of each conversation. ``patience``: seconds that a turn may take.

    Raises LoadError, aiohttp.ClientError or OSError.
    """
    draw = random.Random(seed)
    system = [draw.randrange(FIRST_ID, vocab_size) for _ in range(load.system)]
    draws = [random.Random(draw.random()) for _ in range(load.agents)]
    # A new connection for each request, as in CompletionsClient.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=patience)) as session:

        async def conversation(draw: random.Random) -> list[Turn]:
            tokens, turns = list(system), []
            for number in range(load.turns):
                # The last token of an answer is never computed: the next turn computes it as a new one.
                known = len(tokens) if number else 0
                tokens += [draw.randrange(FIRST_ID, vocab_size) for _ in range(load.new)]
                answer = load.answer + (draw.randint(-load.spread, load.spread) if load.spread else 0)
                turns.append(await _turn(session, f"{base_url}/completions", model, tokens, known, answer, read))
            return turns

        return list(await asyncio.gather(*map(conversation, draws)))


async def _turn(
    session: aiohttp.ClientSession, url: str, model: str, tokens: list[int], known: int, answer: int, read: Read
) -> Turn:
    """Send one turn and append its answer to ``tokens``."""
    body = {"model": model, "prompt": tokens, "max_tokens": answer, "ignore_eos": True, "temperature": 0}
    body |= {"stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}
    start, asked = perf_counter(), len(tokens)
    arrivals: list[tuple[float, int]] = []
    cached: int | None = None
    async with session.post(url, json=body) as response:
        if response.status != 200:
            raise LoadError(f"HTTP {response.status}: {(await response.text())[:300]}")
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            now, event = perf_counter(), json.loads(line[6:])
            if "error" in event:
                raise LoadError(f"error event: {event['error']}")
            details = (event.get("usage") or {}).get("prompt_tokens_details") or {}
            cached = details.get("cached_tokens", cached)
            if event.get("choices") and (found := read(event)):
                arrivals.append((now, len(found)))
                tokens += found
    record = RequestRecord(
        outcome="completed",
        start=start,
        end=perf_counter(),
        prompt_tokens=asked,
        output_tokens=len(tokens) - asked,
        max_tokens=answer,
        arrivals=tuple(arrivals),
    )
    return Turn(record, known, cached)


def figures(conversations: list[list[Turn]], seconds: float) -> dict[str, Any]:
    """Return the figures of a run of the given seconds, ready for JSON.

    Times to the first token and tokens computed again are of turns after the first.
    """
    turns = [turn for turns in conversations for turn in turns]
    later = [turn for turns in conversations for turn in turns[1:]]
    by_turn = list(zip(*conversations, strict=True))
    return {
        "run_s": seconds,
        "output_tokens_per_s": sum(turn.record.output_tokens for turn in turns) / seconds,
        "ttft_s": spread(turn.record.first_token_time for turn in later),
        "ttft_by_turn_s": [median(turn.record.first_token_time for turn in turns) for turns in by_turn],
        "inter_token_s": spread(gap for turn in turns for _, gap in turn.record.later_tokens()),
        "cached_by_turn": [_median(turn.cached for turn in turns) for turns in by_turn],
        "computed_again": _again(later),
        "completed": len(turns),
        "failed": 0,
        "wrong_lengths": sum(turn.record.output_tokens != turn.record.max_tokens for turn in turns),
    }


def _again(turns: list[Turn]) -> dict[str, float] | None:
    """Return by how many tokens turns computed more than the new ones; None where a server does not say."""
    computed = [turn.known - turn.cached for turn in turns if turn.cached is not None]
    return {"median": median(computed), "most": max(computed)} if computed else None


def _median(values: Iterable[int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
