"""Waits for the next request of a caller whose answer has just ended: when, for how long, and what the engine does."""

import asyncio
import contextlib
import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxgen.core.errors import EngineDeadError
from jaxgen.core.model_info import ModelInfo
from jaxgen.core.request import Request, TokenEvent
from jaxgen.engine.anticipation import MOST_SAVED, MOST_SECONDS, MOST_TENANTS, SHARE, Anticipation
from jaxgen.engine.async_engine import AsyncEngine
from jaxgen.engine.inbox import Inbox
from jaxgen.engine.messages import Stream, Submit
from jaxgen.text.tokenizer import Tokenizer
from tests.support.engines import LLAMA, engine_config, make_engine, request
from tests.support.tiny_tokenizers import byte_level

STEP = 0.02


def after(answers: int, gap: float, *, step: float = STEP, tenant: str = "a") -> tuple[Anticipation, float]:
    """Return what has seen this number of answers, each of which a request followed after ``gap``; and the time."""
    anticipation, now = Anticipation(), 0.0
    for _ in range(answers):
        for _ in range(50):
            anticipation.stepped(step)
        now += 50 * step
        anticipation.ended(tenant, now)
        now += gap
        anticipation.came(tenant, now)
    return anticipation, now


def test_waits_twice_as_long_as_requests_need() -> None:
    anticipation, now = after(16, 0.004)
    assert anticipation.seconds(now) == 0.0
    anticipation.ended("a", now)
    assert anticipation.seconds(now) == pytest.approx(0.008, rel=0.01)
    assert anticipation.seconds(now + 0.006) == pytest.approx(0.002, rel=0.05)
    assert anticipation.seconds(now + 0.009) == 0.0


def test_a_request_ends_the_wait_and_one_of_another_tenant_does_not() -> None:
    anticipation, now = after(8, 0.003)
    anticipation.ended("a", now)
    anticipation.came("b", now + 0.001)
    assert anticipation.seconds(now + 0.001) > 0.0
    anticipation.came("a", now + 0.001)
    assert anticipation.seconds(now + 0.001) == 0.0


def test_all_of_several_answers_are_waited_for() -> None:
    anticipation, now = after(8, 0.003)
    anticipation.ended("a", now)
    anticipation.ended("a", now + 0.001)
    anticipation.came("a", now + 0.002)
    assert anticipation.seconds(now + 0.002) > 0.0


@pytest.mark.parametrize(
    ("answers", "gap", "step"),
    [
        pytest.param(8, 2 * MOST_SECONDS, STEP, id="requests come late"),
        pytest.param(8, 0.003, 0.005, id="the step takes little longer"),
    ],
)
def test_does_not_wait(answers: int, gap: float, step: float) -> None:
    anticipation, now = after(answers, gap, step=step)
    now += 1.0
    anticipation.ended("a", now)
    assert anticipation.seconds(now) == 0.0


def test_a_tenant_that_is_not_known_is_awaited_until_no_request_follows() -> None:
    anticipation, now = after(8, 0.003)
    anticipation.ended("b", now)
    assert anticipation.seconds(now) == pytest.approx(0.006)
    now += 1.0
    anticipation.ended("b", now)
    assert anticipation.seconds(now) == 0.0


def test_a_tenant_that_stops_is_not_waited_for_long() -> None:
    anticipation, now = after(8, 0.003)
    waits = []
    for _ in range(8):
        now += 1.0
        anticipation.ended("a", now)
        waits.append(anticipation.seconds(now) > 0.0)
    assert waits[0]
    assert not any(waits[2:])


@given(
    gaps=st.lists(st.tuples(st.floats(0.0, 0.02), st.floats(0.0, 0.05), st.booleans()), max_size=60),
    overshoot=st.floats(0.0, 0.001),
)
def test_all_waits_together_are_a_small_share(gaps: list[tuple[float, float, bool]], overshoot: float) -> None:
    """The engine asks again after each wait. ``overshoot``: seconds that a wait takes longer than it should, for which
    later waits pay."""
    anticipation, now, steps, waits = Anticipation(), 0.0, 0.0, 0.0
    for gap, step, follows in gaps:
        anticipation.stepped(step)
        steps, now = steps + step, now + step
        anticipation.ended("a", now)
        began = now
        while wait := anticipation.seconds(now):
            assert now - began + wait <= min(MOST_SECONDS, MOST_SAVED) + overshoot
            now += min(wait, 0.003) + overshoot  # another message ends a wait early
        anticipation.waited(now - began)
        waits += now - began
        if follows:
            now += gap
            anticipation.came("a", now)
    most = -(-MOST_SECONDS // 0.003) * overshoot  # of one wait
    assert waits <= SHARE * steps + most + 1e-9


def test_a_wait_that_would_be_cut_short_is_not_begun() -> None:
    """It would end before the request comes, and leave as little for the next."""
    anticipation, now = Anticipation(), 0.0
    waits = []
    for _ in range(20):
        anticipation.stepped(0.1)
        now += 0.1
        anticipation.ended("a", now)
        if wait := anticipation.seconds(now):
            anticipation.waited(0.004)
            waits.append(wait)
        now += 0.004
        anticipation.came("a", now)
    assert 4 <= len(waits) <= 5
    assert min(waits) >= 0.006


def test_few_tenants_are_remembered() -> None:
    anticipation, now = after(8, 0.003)
    for number in range(MOST_TENANTS):
        anticipation.ended(f"t{number}", now)
        anticipation.came(f"t{number}", now)
    assert len(anticipation._habits) == MOST_TENANTS


class Always:
    """Waits after each answer until a request comes."""

    def __init__(self) -> None:
        self.awaits = False
        self.waits = threading.Event()

    def stepped(self, seconds: float) -> None: ...

    def waited(self, seconds: float) -> None: ...

    def ended(self, tenant: str, now: float) -> None:
        self.awaits = True

    def came(self, tenant: str, now: float) -> None:
        self.awaits = False

    def seconds(self, now: float) -> float:
        if self.awaits:
            self.waits.set()
        return 600.0 if self.awaits else 0.0


@pytest.mark.parametrize("background", [False, True])
def test_only_an_online_request_is_the_one_that_was_awaited(background: bool) -> None:
    """A batch's next line says nothing of the caller whose answer has just ended."""
    inbox, anticipation = Inbox(), Always()
    inbox._anticipation = anticipation  # type: ignore[assignment]
    inbox.ended(greedy("first", 1))
    inbox.ended(replace(greedy("line", 1), background=True))
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        following = replace(greedy("second", 1), background=background)
        inbox.put(Submit(Stream(loop, print, following), None))
    assert anticipation.awaits == background


def started(*, run_ahead: bool) -> tuple[AsyncEngine, Always]:
    config = replace(engine_config(), run_ahead=run_ahead)
    engine = AsyncEngine(
        ModelInfo("tiny", 256, LLAMA.vocab_size), Tokenizer(byte_level()), lambda: make_engine(config=config)
    )
    anticipation = Always()
    engine._inbox._anticipation = anticipation  # type: ignore[assignment]
    engine.start()
    engine.wait_ready()
    return engine, anticipation


def greedy(name: str, max_tokens: int) -> Request:
    return request(name, [5, 9, 30, 7], temperature=0.0, max_tokens=max_tokens, ignore_eos=True)


async def collect(engine: AsyncEngine, one: Request) -> list[TokenEvent]:
    return [event async for event in engine.generate(one)]


def test_the_next_step_waits_for_the_next_request() -> None:
    engine, anticipation = started(run_ahead=False)

    async def main() -> None:
        long = asyncio.create_task(collect(engine, greedy("long", 100)))
        await collect(engine, greedy("first", 3))
        assert await asyncio.to_thread(anticipation.waits.wait, 120)
        steps = engine.stats().steps
        await asyncio.sleep(0.05)
        assert engine.stats().steps == steps
        assert engine.stats().num_running == 1
        anticipation.waits.clear()
        assert len(await collect(engine, greedy("second", 1))) == 1
        assert await asyncio.to_thread(anticipation.waits.wait, 120)
        assert engine.stats().steps == steps + 1  # one step had all of it
        assert engine.stop(timeout=120)  # though it would wait for 600 s
        with pytest.raises(EngineDeadError):
            await long

    asyncio.run(main())


@pytest.mark.parametrize("leaves", [False, True])
def test_an_answer_that_its_reader_ends_is_one_and_a_caller_that_leaves_sends_no_other(leaves: bool) -> None:
    """As where a stop string comes; the engine learns of both by an abort."""
    engine, anticipation = started(run_ahead=True)

    async def main() -> None:
        def take(event: TokenEvent) -> bool:
            if leaves:
                task.cancel()
            return leaves

        task = asyncio.create_task(engine.follow(greedy("first", 200), take))
        await asyncio.gather(task, return_exceptions=True)
        await collect(engine, replace(greedy("next", 1), tenant="other", background=True))
        assert anticipation.awaits is not leaves
        assert engine.stop(timeout=120)

    asyncio.run(main())


def test_an_engine_that_runs_ahead_never_waits() -> None:
    engine, anticipation = started(run_ahead=True)

    async def main() -> None:
        await asyncio.gather(*[collect(engine, greedy(f"{length}", length)) for length in (3, 30)])

    asyncio.run(main())
    assert not anticipation.waits.is_set()
    engine.stop()
