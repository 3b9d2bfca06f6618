"""The engine's thread: streams, aborts, refusals, death, several event loops."""

import asyncio
import sys
import threading
import time
from contextlib import aclosing

import pytest

from jaxgen.core.errors import EngineDeadError, RequestRefusedError
from jaxgen.core.model_info import ModelInfo
from jaxgen.core.request import FinishReason, Request, TokenEvent
from jaxgen.engine.async_engine import SWITCH_SECONDS, AsyncEngine
from jaxgen.engine.engine import Engine
from jaxgen.engine.inbox import MOST_MESSAGES
from jaxgen.text.constraint import Constraint
from jaxgen.text.tokenizer import Tokenizer
from tests.support.engines import LLAMA, make_engine, request, run, tokens
from tests.support.tiny_tokenizers import byte_level

INFO = ModelInfo("tiny", 256, LLAMA.vocab_size)
PROMPT = [5, 9, 30, 7]


@pytest.fixture
def engine():  # type: ignore[no-untyped-def]
    made: list[Engine] = []

    def build() -> Engine:
        made.append(make_engine())
        return made[0]

    engine = AsyncEngine(INFO, Tokenizer(byte_level()), build)
    engine.start()
    engine.wait_ready()
    engine.inner = made[0]  # type: ignore[attr-defined]
    yield engine
    engine.stop()


async def collect(engine: AsyncEngine, one: Request) -> list[TokenEvent]:
    return [event async for event in engine.generate(one)]


def greedy(name: str, **params: object) -> Request:
    return request(name, PROMPT, **{"temperature": 0.0, "max_tokens": 20, "ignore_eos": True, **params})


async def until(condition) -> None:  # type: ignore[no-untyped-def]
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("condition did not come true")


@pytest.mark.parametrize(("before", "after"), [(0.005, SWITCH_SECONDS), (1e-4, 1e-4)])
def test_threads_take_turns_often(before: float, after: float) -> None:
    found = sys.getswitchinterval()
    try:
        sys.setswitchinterval(before)
        engine = AsyncEngine(INFO, Tokenizer(byte_level()), make_engine)
        engine.start()
        engine.stop()
        assert sys.getswitchinterval() == pytest.approx(after)
    finally:
        sys.setswitchinterval(found)


def test_streams_what_the_engine_makes(engine: AsyncEngine) -> None:
    want = tokens(run(make_engine(), [greedy("a")])["a"])

    async def main() -> list[list[TokenEvent]]:
        return await asyncio.gather(*(collect(engine, greedy(f"r{i}")) for i in range(9)))

    for events in asyncio.run(main()):
        assert tokens(events) == want
        assert [event.finish_reason for event in events[:-1]] == [None] * 19
        assert events[-1].finish_reason is FinishReason.LENGTH
    assert engine.status().state == "ready"
    assert engine.status().stalled_seconds == 0


def test_two_event_loops_share_an_engine(engine: AsyncEngine) -> None:
    results: list[list[TokenEvent]] = []
    threads = [
        threading.Thread(target=lambda i=i: results.append(asyncio.run(collect(engine, greedy(f"t{i}")))))
        for i in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({tuple(tokens(events)) for events in results}) == 1


def test_leaving_early_frees_the_request(engine: AsyncEngine) -> None:
    async def main() -> None:
        async with aclosing(engine.generate(greedy("long", max_tokens=200))) as events:
            async for _ in events:
                break
        await until(lambda: engine.stats().blocks_free == engine.stats().blocks_total)
        assert engine.stats().num_running == 0

    asyncio.run(main())
    assert engine.stats().generation_tokens < 200


@pytest.mark.parametrize("end", ["no more", "error", "cancelled"])
def test_one_that_wants_no_more_ends_alone(engine: AsyncEngine, end: str) -> None:
    """It gets no further event and frees what it held; what came in the same steps reaches the other."""
    got: dict[str, list[TokenEvent]] = {"short": [], "whole": []}
    tasks: dict[str, asyncio.Task[None]] = {}

    def take(event: TokenEvent) -> bool:
        got[event.request_id].append(event)
        if event.request_id == "whole" or len(got["short"]) < 3:
            return True
        if end == "error":
            raise LookupError("of the taker's own")
        if end == "cancelled":
            tasks["short"].cancel()
            return True
        return False

    async def main() -> list[BaseException | None]:
        for name, count in (("short", 200), ("whole", 40)):
            tasks[name] = asyncio.create_task(engine.follow(greedy(name, max_tokens=count), take))
        results = await asyncio.gather(*tasks.values(), return_exceptions=True)
        await until(lambda: engine.stats().blocks_free == engine.stats().blocks_total)
        return results

    short, whole = asyncio.run(main())
    assert type(short) is {"no more": type(None), "error": LookupError, "cancelled": asyncio.CancelledError}[end]
    assert whole is None
    assert (len(got["short"]), len(got["whole"])) == (3, 40)
    assert engine.stats().generation_tokens < 200


def test_a_closed_loop_does_not_leave_work_behind(engine: AsyncEngine) -> None:
    """An event loop that vanished without closing its streams: nobody is left to read."""
    loop = asyncio.new_event_loop()
    stream = engine.generate(greedy("gone", max_tokens=200))
    loop.run_until_complete(anext(stream))
    loop.close()
    asyncio.run(until(lambda: engine.stats().blocks_free == engine.stats().blocks_total))
    assert engine.stats().generation_tokens < 200


def test_refusals_are_answers(engine: AsyncEngine) -> None:
    with pytest.raises(RequestRefusedError, match="max_tokens"):
        asyncio.run(collect(engine, greedy("big", max_tokens=10_000)))

    async def twice() -> None:
        async with aclosing(engine.generate(greedy("same", max_tokens=200))) as first:
            await anext(first)
            with pytest.raises(RequestRefusedError, match="same"):
                await collect(engine, greedy("same"))
            await anext(first)

    asyncio.run(twice())


def test_max_tokens_zero_is_answered(engine: AsyncEngine) -> None:
    (event,) = asyncio.run(collect(engine, greedy("zero", max_tokens=0)))
    assert event.finish_reason is FinishReason.LENGTH
    assert event.token is None


def test_death_reaches_everybody(engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(self: Engine) -> list[TokenEvent]:
        raise SystemError("the device fell off")

    async def main() -> None:
        stream = engine.generate(greedy("victim", max_tokens=200))
        await anext(stream)
        monkeypatch.setattr(Engine, "step", explode)
        with pytest.raises(EngineDeadError, match="the device fell off"):
            async for _ in stream:
                pass
        with pytest.raises(EngineDeadError):
            await collect(engine, greedy("late"))

    asyncio.run(main())
    assert engine.status().state == "dead"
    assert "the device fell off" in engine.status().reason


def test_a_failing_build_is_told() -> None:
    def build() -> Engine:
        raise ValueError("no such file")

    engine = AsyncEngine(INFO, Tokenizer(byte_level()), build)
    assert engine.status().state == "starting"
    engine.start()
    with pytest.raises(ValueError, match="no such file"):
        engine.wait_ready()
    assert engine.status().state == "dead"
    with pytest.raises(EngineDeadError):
        asyncio.run(collect(engine, greedy("a")))


def test_stop_ends_live_requests(engine: AsyncEngine) -> None:
    async def main() -> None:
        stream = engine.generate(greedy("live", max_tokens=200))
        await anext(stream)
        await asyncio.to_thread(engine.stop)
        with pytest.raises(EngineDeadError, match="stopped"):
            async for _ in stream:
                pass

    asyncio.run(main())


def test_a_stuck_step_shows_in_the_status(engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    real = Engine.step

    def hang(self: Engine) -> list[TokenEvent]:
        release.wait(120)
        return real(self)

    monkeypatch.setattr(Engine, "step", hang)

    async def main() -> None:
        task = asyncio.create_task(collect(engine, greedy("stuck")))
        await until(lambda: engine.status().stalled_seconds > 0.05)
        release.set()
        await task

    asyncio.run(main())
    asyncio.run(until(lambda: engine.status().stalled_seconds == 0))


def test_a_thread_that_does_not_end_in_time_is_told() -> None:
    """Here it loads; a step that hangs is the same to whoever stops it."""
    release = threading.Event()

    def build() -> Engine:
        release.wait(60)
        raise ValueError

    engine = AsyncEngine(INFO, Tokenizer(byte_level()), build)
    assert engine.stop(), "it has not begun"
    engine = AsyncEngine(INFO, Tokenizer(byte_level()), build)
    engine.start()
    assert not engine.stop(0.05)
    release.set()
    assert engine.stop()


def test_a_quote_comes_between_steps_and_leaves_seeds_and_answers_as_they_were(engine: AsyncEngine) -> None:
    def drawn(name: str) -> Request:
        return request(name, PROMPT, temperature=1.0, max_tokens=12, ignore_eos=True)

    plain = make_engine()
    want = [tokens(run(plain, [drawn(name)])[name]) for name in ("a", "b")]

    async def main() -> list[list[TokenEvent]]:
        found = []
        for name in ("a", "b"):
            quote = await engine.quote(drawn("q"))
            assert 0.0 < quote.first_token <= quote.first_token_most
            assert 0.0 < quote.inter_token <= quote.longest_step
            found.append(await collect(engine, drawn(name)))
        with pytest.raises(RequestRefusedError, match="token"):
            await engine.quote(request("q", [10**6]))
        assert (await engine.quote(request("q", PROMPT, max_tokens=0))).first_token == 0.0
        return found

    assert [tokens(events) for events in asyncio.run(main())] == want
    assert engine.stats().num_running == engine.stats().num_waiting == 0
    engine.stop()
    with pytest.raises(EngineDeadError):
        asyncio.run(engine.quote(drawn("late")))


def test_a_burst_is_taken_in_portions_between_steps(engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a stream goes on; what a request waits for its portion is of the time to its first token."""
    inner: Engine = engine.inner  # type: ignore[attr-defined]
    held, sent = threading.Event(), threading.Event()
    taken: list[int] = [0]
    stepped: list[float] = [0.0]
    waited: list[tuple[float, float]] = []
    add, step = inner.add, inner.step

    def counting_add(one: Request, constraint: Constraint | None = None) -> None:
        taken[-1] += 1
        waited.append((one.waited_seconds, stepped[-1]))
        add(one, constraint)

    def counting_step() -> list[TokenEvent]:
        if len(taken) == 3:
            held.set()
            sent.wait(60)
        events = step()
        taken.append(0)
        stepped.append(time.monotonic())
        return events

    monkeypatch.setattr(inner, "add", counting_add)
    monkeypatch.setattr(inner, "step", counting_step)

    async def main() -> float:
        stream = asyncio.create_task(collect(engine, greedy("stream", max_tokens=60)))
        await until(held.is_set)
        burst = [asyncio.create_task(collect(engine, greedy(f"b{i}", max_tokens=1))) for i in range(3 * MOST_MESSAGES)]
        await asyncio.sleep(0)  # each task runs until it waits for its events
        all_sent = time.monotonic()
        sent.set()
        await asyncio.gather(stream, *burst)
        return all_sent

    all_sent = asyncio.run(main())
    assert [number for number in taken if number] == [1, *[MOST_MESSAGES] * 3]
    for seconds, before in waited[1:]:
        assert seconds > before - all_sent > 0.0
