"""What a BatchRunner needs, without a server or an engine: lines are answered as a test says."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from jaxgen.server.batches.runner import BatchRunner
from jaxgen.server.batches.store import Store
from jaxgen.server.batches.tables import new_id
from jaxgen.server.config import ServerConfig
from jaxgen.server.limits import Batches
from jaxgen.server.middleware.lifecycle import Lifecycle as ServerLifecycle
from tests.support.batch_client import PATH, jsonl

HELD = {"held": True}
"""In the body of a line: it is answered when the test says so."""


class Lifecycle(ServerLifecycle):
    """That of a server that is always ready."""

    def __init__(self) -> None:
        self.draining = False

    def trouble(self) -> None:
        return None


class Endpoint:
    """Answers each line with ``reply``; one with ``held`` in its body once ``released`` is set."""

    def __init__(self) -> None:
        self.reply: dict[str, Any] = {"ok": True}
        self.released = asyncio.Event()
        self.asked: list[tuple[str, dict[str, Any]]] = []

    async def answer_whole(self, data: dict[str, Any], caller: str) -> dict[str, Any]:
        self.asked.append((caller, data))
        if data.get("held"):
            await self.released.wait()
        return self.reply


def add_batch(store: Store, lines: Sequence[dict[str, Any]], owner: str = "o") -> tuple[str, str]:
    """The ids of a new batch, and of its input."""
    file_id, content = new_id("file"), jsonl(*lines)
    store.path(file_id).write_bytes(content)
    store.add_file(owner, "batch", "in.jsonl", file_id, len(content))
    return store.add_batch(owner, file_id, PATH, None)["id"], file_id


class Trial:
    """A store with a batch, and a runner of it."""

    def __init__(self, directory: Path, config: ServerConfig, now: Callable[[], float]) -> None:
        self.store = Store(directory, config.batches, now)
        self.endpoint = Endpoint()
        endpoints, most = {PATH: self.endpoint}, config.limits.max_body_bytes
        self.runner = BatchRunner(self.store, endpoints, Lifecycle(), config.batches, most, now)

    async def begin(self, batch_id: str, answers: int) -> None:
        """Run a batch until ``answers`` of its lines have results, and the others are held."""
        self.runner.submit(batch_id)
        while (await self.batch(batch_id))["request_counts"]["completed"] < answers:
            await asyncio.sleep(0)

    async def batch(self, batch_id: str) -> dict[str, Any]:
        return await self.store.do(self.store.batch, None, batch_id)

    async def end(self, batch_id: str) -> tuple[dict[str, Any], list[Any], list[Any]]:
        """The batch when its task has ended, with its results and its errors."""
        if batch_id in self.runner._tasks:
            await self.runner._tasks[batch_id]
        batch = await self.batch(batch_id)
        files = [batch[name] for name in ("output_file_id", "error_file_id")]
        done, failed = ([] if name is None else self.lines(name) for name in files)
        return batch, done, failed

    def lines(self, file_id: str) -> list[Any]:
        return [json.loads(text) for text in self.store.path(file_id).read_text().splitlines()]

    async def cancel(self, batch_id: str) -> None:
        await self.store.do(self.store.move, batch_id, ("validating", "in_progress"), "cancelling")
        self.runner.cancel(batch_id)


@asynccontextmanager
async def trial(
    directory: Path, config: ServerConfig | None = None, now: Callable[[], float] = lambda: 1e9
) -> AsyncIterator[Trial]:
    made = Trial(directory, config or ServerConfig(batches=Batches(max_batch_lines_in_flight=4)), now)
    try:
        yield made
        assert made.runner._places._shares.held("o") == 0
    finally:
        for task in made.runner._tasks.values():
            task.cancel()
        await asyncio.gather(*made.runner._tasks.values(), return_exceptions=True)
        made.store.close()


def codes(batch: dict[str, Any]) -> list[str]:
    return [fault["code"] for fault in (batch["errors"] or {"data": []})["data"]]
