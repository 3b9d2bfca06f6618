"""Many clients at once on the embedded model behind ``jaxgen serve``: answers stay those without load, nothing leaks,
and SIGTERM lets end what is under way."""

import asyncio
import json
import re
import signal
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from tests.support.server_process import ServerProcess, served
from tests.support.stress_load import BULKY, MODEL, STREAMED, TEMPLATE, WHOLE, Ask, malformed, said

STREAMS = 120
MALFORMED = 400
"""Of a round; so many streams too, all at once."""
SENDERS = 8
"""Who send the malformed bodies, one after another each."""
GROWTH_BYTES = 8 * 2**20
"""Of the process over a round, when earlier ones have warmed it up."""
NO_LIMITS = httpx2.Limits(max_connections=None)
# Blocks for a part of the rows at full length, so that preemption is part of the load.
FLAGS = "--max-num-seqs 16 --token-budget 64 --max-model-len 512 --block-size 16 --num-blocks 64 --log-level warning"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    template = tmp_path / "chat_template.jinja"
    template.write_text(TEMPLATE)
    flags = ("--served-model-name", MODEL, "--chat-template", str(template), "--shutdown-timeout", "60")
    with served(*FLAGS.split(), *flags) as server:
        yield server


@asynccontextmanager
async def client_of(url: str, **options: Any) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(
        base_url=url, timeout=120, transport=httpx2.AsyncHTTPTransport(limits=NO_LIMITS, **options)
    ) as client:
        yield client


async def whole(client: httpx2.AsyncClient, ask: Ask) -> str:
    path, body = ask
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return said([answer.json()])


async def streamed(
    client: httpx2.AsyncClient,
    ask: Ask,
    *,
    leave_after: int | None = None,
    pause: float = 0.0,
    begun: asyncio.Semaphore | None = None,
) -> str | None:
    """What the stream says; None: left after so many events. ``pause``: seconds between reads. ``begun``: released when
    the answer has begun."""
    path, body = ask
    objects: list[Any] = []
    async with client.stream("POST", path, json={**body, "stream": True}) as answer:
        assert answer.status_code == 200, await answer.aread()
        if begun is not None:
            begun.release()
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                objects.append(json.loads(line.removeprefix("data: ")))
            if len(objects) == leave_after:
                return None
            await asyncio.sleep(pause)
    return said(objects)


async def misbehave(client: httpx2.AsyncClient, bodies: Sequence[tuple[str, bytes]]) -> None:
    for path, content in bodies:
        answer = await client.post(path, content=content)
        assert 400 <= answer.status_code < 500, (path, content[:200], answer.text)
        assert answer.json()["error"]["message"]


async def one_stream(client: httpx2.AsyncClient, slow: httpx2.AsyncClient, number: int, unloaded: list[str]) -> None:
    """A third leave midway; one in twenty reads slowly what is more than buffers hold."""
    ask, expected = STREAMED[number % len(STREAMED)], unloaded[number % len(STREAMED)]
    if number % 3 == 0:
        await streamed(client, ask, leave_after=1 + number % 17)
    elif number % 20 == 1:
        assert await streamed(slow, BULKY, pause=0.002) == unloaded[-1]
    else:
        assert await streamed(client, ask) == expected, f"{ask} is answered otherwise under load"


async def one_round(url: str, unloaded: list[str]) -> None:
    bodies = malformed(MALFORMED)
    buffer = (socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    async with client_of(url) as client, client_of(url, socket_options=[buffer]) as slow, asyncio.TaskGroup() as group:
        for number in range(STREAMS):
            group.create_task(one_stream(client, slow, number, unloaded))
        for sender in range(SENDERS):
            group.create_task(misbehave(client, bodies[sender::SENDERS]))
        for ask, expected in zip(WHOLE, unloaded[len(STREAMED) :], strict=False):
            assert await whole(client, ask) == expected


async def numbers(client: httpx2.AsyncClient) -> dict[str, float]:
    """The samples of /metrics that have no label but the model's, by name."""
    text = (await client.get("/metrics")).text
    return {name: float(value) for name, value in re.findall(r'^jaxgen_(\S+?)\{model_name="m"\} (\S+)$', text, re.M)}


async def settle(client: httpx2.AsyncClient) -> dict[str, float]:
    """The metrics once nothing runs, waits or holds a block."""
    gauges = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    for _ in range(500):
        found = await numbers(client)
        if not any(found[name] for name in gauges):
            return found
        await asyncio.sleep(0.02)
    raise AssertionError({name: found[name] for name in gauges})


async def stress(server: ServerProcess, rounds: int) -> None:
    url, memory = server.root, psutil.Process(server.process.pid)
    async with client_of(url) as client:
        unloaded = [await whole(client, ask) for ask in (*STREAMED, *WHOLE, BULKY)]
        for number in range(rounds):
            before = memory.memory_info().rss
            await one_round(url, unloaded)
            found = await settle(client)
            growth = memory.memory_info().rss - before
            assert number == 0 or growth < GROWTH_BYTES, f"{growth / 2**20:.1f} MiB more"
        assert found["num_preemptions_total"] > 0
        assert found["compilations_after_ready_total"] == 0
        assert (await client.get("/health")).status_code == 200
        assert [await whole(client, ask) for ask in (*STREAMED, *WHOLE, BULKY)] == unloaded
        await terminate(server, client, unloaded[-1])


async def terminate(server: ServerProcess, client: httpx2.AsyncClient, expected: str) -> None:
    """SIGTERM in mid-stream: what has begun ends as it would have, also where its reader is slow; then all is over."""
    begun = asyncio.Semaphore(0)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(streamed(client, BULKY, begun=begun, pause=0.002 * i)) for i in range(6)]
        for _ in tasks:
            await begun.acquire()
        assert (await numbers(client))["num_requests_running"] > 0
        server.process.send_signal(signal.SIGTERM)
    assert [task.result() for task in tasks] == [expected] * len(tasks)
    assert await asyncio.to_thread(server.process.wait, timeout=120) == 0
    assert "Traceback" not in server.log()
    assert "ERROR" not in server.log()


@pytest.mark.full
def test_soak(server: ServerProcess) -> None:
    asyncio.run(stress(server, rounds=2))
