"""Many clients at once on a real engine behind a real server: answers stay those without load, and nothing leaks."""

import asyncio
import random
import time
from collections.abc import Iterator

import httpx2
import pytest

from jaxgen.async_engine import AsyncEngine
from jaxgen.request import ModelInfo
from jaxgen.tokenizer import Tokenizer
from server.app import create_app
from tests import tiny_tokenizers
from tests.engines import LLAMA, engine_config, make_engine
from tests.live_server import serve

CLIENTS = 24
PROMPTS = [[3 + (7 * i + j * j) % 290 for j in range(1 + 9 * i)] for i in range(8)]
MALFORMED = [
    b"",
    b"{",
    b"[]",
    b"[" * 100_000,
    b'{"model": "m"}',
    b'{"model": "m", "prompt": [99999]}',
    b'{"model": "m", "prompt": "a", "n": 0}',
    b'{"model": "m", "prompt": "a", "max_tokens": 100000}',
    b'{"model": "m", "prompt": "a", "temperature": "hot"}',
    b'{"model": "nobody", "prompt": "a"}',
    b'{"model": "m", "prompt": "a", "what": 1}',
]


@pytest.fixture(scope="module")
def engine() -> Iterator[AsyncEngine]:
    # Blocks for about half of the rows at full length, so that preemption is part of the load.
    config = engine_config(token_budget=32, max_num_seqs=16, max_model_len=128, block_size=8, num_blocks=96)
    tokenizer = Tokenizer(tiny_tokenizers.byte_level())
    info = ModelInfo("m", 128, LLAMA.vocab_size)
    engine = AsyncEngine(info, tokenizer, lambda: make_engine(config=config))
    engine.start()
    engine.wait_ready()
    yield engine
    engine.stop()


def body(kind: int) -> dict[str, object]:
    prompt = PROMPTS[kind % len(PROMPTS)]
    fields: dict[str, object] = {"model": "m", "prompt": prompt, "max_tokens": 40, "ignore_eos": True}
    fields |= {"temperature": 0.0} if kind % 2 else {"temperature": 1.0, "seed": kind, "top_p": 0.9}
    if kind % 3 == 0:
        fields |= {"presence_penalty": 0.5, "logprobs": 2}
    return fields


KINDS = range(2 * len(PROMPTS))


async def ask(client: httpx2.AsyncClient, kind: int) -> str:
    answer = await client.post("/v1/completions", json=body(kind))
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["text"]
    return text


async def leave(client: httpx2.AsyncClient, kind: int, after: int) -> None:
    """Begin to stream and go away in the middle."""
    async with client.stream("POST", "/v1/completions", json={**body(kind), "stream": True}) as answer:
        assert answer.status_code == 200
        lines = 0
        async for _ in answer.aiter_lines():
            lines += 1
            if lines >= after:
                return


async def misbehave(client: httpx2.AsyncClient, content: bytes) -> None:
    answer = await client.post("/v1/completions", content=content)
    assert 400 <= answer.status_code < 500, (content[:40], answer.status_code)
    assert "error" in answer.json()


async def one_client(url: str, number: int, expected: dict[int, str], until: float, asked: list[int]) -> None:
    chance = random.Random(number)
    async with httpx2.AsyncClient(base_url=url, timeout=120) as client:
        while time.monotonic() < until:
            kind = chance.choice(KINDS)
            what = chance.random()
            if what < 0.3:
                await leave(client, kind, chance.randrange(1, 20))
            elif what < 0.5:
                await misbehave(client, chance.choice(MALFORMED))
            else:
                assert await ask(client, kind) == expected[kind], f"answer {kind} changed under load"
                asked.append(kind)


async def settle(engine: AsyncEngine) -> None:
    for _ in range(1000):
        stats = engine.stats()
        if stats.num_running == stats.num_waiting == 0 and stats.blocks_free == stats.blocks_total:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"not idle: {engine.stats()}")


async def stress(url: str, engine: AsyncEngine, seconds: float) -> None:
    async with httpx2.AsyncClient(base_url=url, timeout=120) as client:
        expected = {kind: await ask(client, kind) for kind in KINDS}
    asked: list[int] = []
    until = time.monotonic() + seconds
    async with asyncio.TaskGroup() as group:
        for number in range(CLIENTS):
            group.create_task(one_client(url, number, expected, until, asked))
    await settle(engine)
    assert len(asked) > CLIENTS
    assert engine.stats().preemptions > 0
    assert engine.stats().compilations_after_ready == 0
    async with httpx2.AsyncClient(base_url=url, timeout=120) as client:
        metrics = (await client.get("/metrics")).text
        assert 'jaxgen_num_requests_running{model_name="m"} 0.0' in metrics
        assert (await client.get("/health")).status_code == 200


def test_stress(engine: AsyncEngine) -> None:
    with serve(create_app(engine)) as url:
        asyncio.run(stress(url, engine, seconds=60))


@pytest.mark.full
def test_soak(engine: AsyncEngine) -> None:
    with serve(create_app(engine)) as url:
        asyncio.run(stress(url, engine, seconds=300))
