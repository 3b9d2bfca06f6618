"""The loads: clients in closed loops, and long prompts one after another. The client is that of scripts.peers."""

import asyncio
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any, Protocol

import uvloop

from jaxgen.server.benchmark.client import CompletionsClient
from jaxgen.server.benchmark.load import Load as Requests
from jaxgen.server.benchmark.load import closed_loop, run_bounded
from scripts.peers.load import Cell, Times, Window, make_planner, measure, window_figures

REQUESTS_PER_SECOND = 200.0
"""More than a GPU completes of these loads."""
PLANNING_SECONDS = 2.0
"""In which the client makes the requests of a load, at most."""


@dataclass(frozen=True, slots=True)
class Target:
    """A server that is ready. ``model``: its name in requests; ``usage``: as of ``jaxgen benchmark``."""

    base_url: str
    model: str
    usage: str


class Load(Protocol):
    """What is measured of a server at a time."""

    @property
    def name(self) -> str: ...

    @property
    def key(self) -> dict[str, Any]:
        """Fields that name the load in the records."""
        ...

    @property
    def most_seconds(self) -> float:
        """Seconds after which the load has ended in any case."""
        ...

    def measure(self, target: Target, seed: int) -> dict[str, Any]:
        """Return figures of a server under this load, ready for JSON."""
        ...


@dataclass(frozen=True, slots=True)
class Clients:
    """A closed loop. ``seconds``: of the window, which begins when as many completions are there as clients.

    ``patience``: seconds that are waited for these at most, and that a request may take.
    """

    clients: int
    prompt: int
    completion: int
    seconds: float
    patience: float

    @property
    def cell(self) -> Cell:
        return Cell(clients=self.clients)

    @property
    def name(self) -> str:
        return self.cell.name

    @property
    def key(self) -> dict[str, Any]:
        return {**asdict(self.cell), "prompt": self.prompt, "completion": self.completion, "seconds": self.seconds}

    @property
    def most_seconds(self) -> float:
        return PLANNING_SECONDS + self.patience + self.seconds + self.patience

    def measure(self, target: Target, seed: int) -> dict[str, Any]:
        planner = make_planner(target.usage, seed, self.prompt, self.completion, model=target.model)
        times = Times(self.seconds, 0.0, self.patience)
        return measure(target.base_url, target.usage, self.cell, times, seed, planner, REQUESTS_PER_SECOND)


@dataclass(frozen=True, slots=True)
class Batch:
    """A number of requests by clients in a closed loop: long prompts by one, or a warm-up. ``patience``: seconds."""

    title: str
    requests: int
    clients: int
    prompt: int
    completion: int
    patience: float

    @property
    def name(self) -> str:
        return self.title

    @property
    def key(self) -> dict[str, Any]:
        return {"requests": self.requests, "clients": self.clients, "prompt": self.prompt}

    @property
    def most_seconds(self) -> float:
        return PLANNING_SECONDS + self.patience

    def measure(self, target: Target, seed: int) -> dict[str, Any]:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(self._measure(target, seed))

    async def _measure(self, target: Target, seed: int) -> dict[str, Any]:
        planner = make_planner(target.usage, seed, self.prompt, self.completion, std_share=0.0, model=target.model)
        requests = planner.requests(self.requests)
        async with CompletionsClient(target.base_url) as client:
            load, begin = Requests(client, self.patience), perf_counter()
            await run_bounded(closed_loop(load, requests, [0.0] * self.clients), self.patience, asyncio.Event())
        return window_figures(load.records, Window(begin, perf_counter()))
