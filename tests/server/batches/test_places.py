"""Places for lines of batches, which owners share."""

import asyncio
from pathlib import Path

from jaxgen.server.batches.places import Places
from jaxgen.server.config import ServerConfig
from jaxgen.server.limits import Batches
from tests.support.batch_client import line
from tests.support.scripted_batches import HELD, add_batch, trial


async def waiting(places: Places, owner: str) -> "asyncio.Task[None]":
    """A task that has asked for a place."""
    task = asyncio.create_task(places.take(owner))
    await asyncio.sleep(0)
    return task


def test_a_place_goes_to_the_longest_waiting_of_those_who_may_have_it() -> None:
    async def main() -> None:
        places = Places(2)
        taken = [await waiting(places, owner) for owner in ("a", "a", "b")]
        assert all(task.done() for task in taken), "b has its share beside all of the others"
        first, other, second = [await waiting(places, owner) for owner in ("a", "b", "a")]
        places.give_back("a")  # a has one of three, its share
        await asyncio.sleep(0)
        assert [task.done() for task in (first, other, second)] == [False] * 3
        places.give_back("b")  # both callers get one: a as the longest waiting, b as its share
        await asyncio.sleep(0)
        assert [task.done() for task in (first, other, second)] == [True, True, False]
        places.give_back("a")
        await asyncio.sleep(0)
        assert not second.done()
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        for owner in ("a", "b"):
            places.give_back(owner)
        assert places._shares.held("a") == places._shares.held("b") == 0

    asyncio.run(main())


def test_who_leaves_when_its_turn_comes_keeps_no_place() -> None:
    async def main() -> None:
        places = Places(1)
        await places.take("a")
        task = await waiting(places, "a")
        places.give_back("a")
        task.cancel()  # before it has seen its place
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        await asyncio.wait_for(places.take("a"), 60)

    asyncio.run(main())


def test_one_caller_with_all_places_keeps_no_other_out(tmp_path: Path) -> None:
    async def main() -> None:
        async with trial(tmp_path, ServerConfig(batches=Batches(max_batch_lines_in_flight=4))) as made:
            long, _ = add_batch(made.store, [line(str(i), **HELD) for i in range(9)], owner="long")
            await made.begin(long, 0)
            while len(made.endpoint.asked) < 4:
                await asyncio.sleep(0)
            short, _ = add_batch(made.store, [line("a"), line("b")], owner="short")
            made.runner.submit(short)
            batch, done, _ = await made.end(short)
            assert (batch["status"], len(done)) == ("completed", 2)
            assert [owner for owner, _ in made.endpoint.asked] == ["long"] * 4 + ["short"] * 2
            made.endpoint.released.set()
            assert (await made.end(long))[0]["status"] == "completed"

    asyncio.run(main())
