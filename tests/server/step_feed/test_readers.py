"""Readers that are slow or leave cost the server nothing, and no other reader notices them."""

import asyncio
from typing import Any

import pytest
from starlette.types import Message

from jaxgen.core.stats import EngineStats
from jaxgen.journal import NUM_STEPS
from jaxgen.server.api.sse import EventWriter
from jaxgen.server.config import DEFAULT_CONFIG
from jaxgen.server.metrics.metrics import Metrics
from jaxgen.server.middleware.lifecycle import Lifecycle
from jaxgen.server.step_feed import hub as hub_module
from jaxgen.server.step_feed.history import History
from jaxgen.server.step_feed.hub import Hub, Reader
from jaxgen.server.step_feed.readings import Meter
from jaxgen.server.step_feed.views import EVERYTHING
from tests.support.journals import JournalingEngine, journaling_engine
from tests.support.step_feed import FeedEvent, events_in


class Connection:
    """What a reader's events are written to; full while ``full``."""

    def __init__(self) -> None:
        self.body = b""
        self.free = asyncio.Event()
        self.free.set()

    async def send(self, message: Message) -> None:
        self.body += message["body"]
        await self.free.wait()

    def events(self) -> list[FeedEvent]:
        return list(events_in(iter(self.body.decode().splitlines())))

    def steps(self) -> tuple[list[int], int]:
        """Numbers of the steps told, and how many records were dropped."""
        told = [data for name, data in self.events() if name == "steps"]
        return [step[0] for data in told for step in data["steps"]], sum(data["dropped"] for data in told)


class World:
    """A hub whose ticks the test makes itself."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(hub_module, "INTERVAL", 1e6)
        self.engine: JournalingEngine = journaling_engine()
        meter = Meter(self.engine, Metrics(self.engine))
        history = History(self.engine, meter)
        self.lifecycle = Lifecycle(self.engine, DEFAULT_CONFIG.availability)
        self.hub = Hub(self.engine, meter, history, self.lifecycle, keyed=False)
        self.written = 0

    def join(self) -> tuple[Reader, Connection, asyncio.Task[None]]:
        connection = Connection()
        reader = Reader(EventWriter(connection.send), "", EVERYTHING)
        self.hub.join(reader, self.engine.written)
        return reader, connection, asyncio.create_task(reader.run())

    async def tick(self, steps: int) -> None:
        for _ in range(steps):
            self.written += 1
            self.engine.write_step(self.written)
        self.hub._tick(self.engine.written)
        for _ in range(5):
            await asyncio.sleep(0)


def scenario(test: Any) -> Any:
    """Run a test's coroutine in a loop."""

    def run(monkeypatch: pytest.MonkeyPatch) -> None:
        asyncio.run(asyncio.wait_for(test(World(monkeypatch)), 60))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@scenario
async def test_a_slow_reader_loses_what_comes_meanwhile_and_is_told(world: World) -> None:
    """Nothing is kept for it, others get all, and what it is told is told once."""
    slow, others = world.join(), world.join()
    await world.tick(2)
    slow[1].free.clear()
    await world.tick(3)  # this write waits, since the connection is full
    size = len(slow[1].body)
    for _ in range(50):
        await world.tick(4)
    assert len(slow[1].body) == size
    slow[1].free.set()
    await world.tick(0)
    await world.tick(1)
    assert slow[1].steps() == ([1, 2, 3, 4, 5, 206], 200)
    assert others[1].steps() == (list(range(1, 207)), 0)
    for _, _, task in (slow, others):
        task.cancel()


@scenario
async def test_what_nobody_could_read_in_time_is_counted(world: World) -> None:
    _, connection, task = world.join()
    await world.tick(NUM_STEPS + 3)
    found, dropped = connection.steps()
    assert (len(found), found[-1], dropped) == (NUM_STEPS, NUM_STEPS + 3, 3)
    task.cancel()


@scenario
async def test_a_slow_reader_learns_its_own_requests_later(world: World) -> None:
    _, connection, task = world.join()
    connection.free.clear()
    await world.tick(1)
    world.engine.write_arrival(7, "mine")
    await world.tick(1)
    assert "mine" not in {name for name, _ in connection.events()}
    connection.free.set()
    await world.tick(0)
    await world.tick(0)
    assert [data for name, data in connection.events() if name == "mine"] == [{"requests": {"7": "mine"}}]
    task.cancel()


@scenario
async def test_a_request_older_than_the_journal_is_known_while_it_lives(world: World) -> None:
    world.engine.write_arrival(0, "old").running = True
    for number in range(1, 5000):
        world.engine.write_arrival(number, f"r{number}")
        del world.engine.written.live[number]
    _, connection, task = world.join()
    (mine,) = [data["requests"] for name, data in connection.events() if name == "mine"]
    assert mine["0"] == "old"
    assert "1" not in mine
    (now,) = [data for name, data in connection.events() if name == "now"]
    assert now["classes"] == {"default": {"running": 1, "waiting": 0}}
    task.cancel()


@scenario
async def test_now_comes_with_every_fifth_tick(world: World) -> None:
    _, connection, task = world.join()
    for _ in range(10):
        await world.tick(0)
    assert [name for name, _ in connection.events()] == ["hello", "now", "now", "now"]
    task.cancel()


@scenario
async def test_nothing_runs_without_readers(world: World) -> None:
    reader, _, task = world.join()
    assert world.hub._timer is not None
    timer = world.hub._timer
    world.hub.leave(reader)
    assert timer.cancelled()
    assert world.hub._timer is None
    task.cancel()


@scenario
async def test_a_connection_that_breaks_ends_its_reader_alone(world: World) -> None:
    async def broken(message: Message) -> None:
        raise OSError("gone")

    _, other, task = world.join()
    reader = Reader(EventWriter(broken), "", EVERYTHING)
    world.hub.join(reader, world.engine.written)
    await asyncio.wait_for(reader.run(), 10)
    await world.tick(1)
    assert other.steps() == ([1], 0)
    task.cancel()


@scenario
async def test_a_drain_ends_readers(world: World) -> None:
    _, connection, task = world.join()
    world.engine.numbers = EngineStats()
    world.lifecycle.draining = True
    await world.tick(1)
    await asyncio.wait_for(task, 120)
    assert connection.steps() == ([1], 0), "what had come is told"
