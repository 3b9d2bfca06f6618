"""Priorities and the background on an engine: nothing of them shows in tokens, and who is held goes on by itself."""

import asyncio
from dataclasses import replace

import pytest

from jaxgen.core.config import EngineConfig
from jaxgen.core.model_info import ModelInfo
from jaxgen.core.request import Request, TokenEvent
from jaxgen.engine.async_engine import AsyncEngine
from jaxgen.engine.engine import Engine
from jaxgen.engine.start.build import build_engine
from jaxgen.text.tokenizer import Tokenizer
from tests.support.engines import EOS, LLAMA, compiled_step, engine_config, make_engine, params_of, request, run, tokens
from tests.support.tiny_tokenizers import byte_level


def engine_with(background_tokens: int | None) -> Engine:
    config = engine_config(num_blocks=32)
    scheduler = replace(config.scheduler, background_tokens=background_tokens)
    made: EngineConfig = replace(config, scheduler=scheduler)
    return build_engine(LLAMA, made, params_of(LLAMA), frozenset({EOS}), compiled=compiled_step(LLAMA, config))


def requests(**params: object) -> list[Request]:
    made = [request(f"r{i}", range(3, 20 + 9 * i), max_tokens=30, ignore_eos=True, seed=i, **params) for i in range(8)]
    return [replace(one, priority=-i, background=i % 3 == 0) for i, one in enumerate(made)]


def test_levels_do_not_show_in_tokens() -> None:
    plain = run(
        make_engine(config=engine_config(num_blocks=32)),
        [replace(one, priority=0, background=False) for one in requests()],
    )
    engine = engine_with(None)
    later = iter(requests()[4:])

    def arrive(step: int) -> None:
        if step % 7 == 6 and (one := next(later, None)) is not None:
            engine.add(one)

    events = run(engine, requests()[:4], arrive)
    assert engine.stats().preemptions > 0
    assert {name: tokens(found) for name, found in events.items()} == {
        name: tokens(found) for name, found in plain.items()
    }
    assert engine.stats().blocks_free == engine.stats().blocks_total


def test_the_background_is_held_beside_others_and_a_while_after(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    engine = engine_with(0)
    monkeypatch.setattr(engine, "clock", lambda: now)
    back, online = requests()[3], requests()[1]
    engine.add(back)
    assert engine.held_for == 0.0
    engine.add(online)
    seen = [event.request_id for _ in range(60) for event in engine.step()]
    assert set(seen) == {online.request_id}
    assert (engine.has_work, engine.held_for) == (True, 1.0)
    now += 0.75
    assert (engine.step(), engine.held_for) == ([], 0.25)
    now += 0.25
    assert engine.held_for == 0.0
    seen = [event.request_id for _ in range(60) for event in engine.step()]
    assert seen == [back.request_id] * 30
    assert not engine.has_work


def test_the_thread_goes_on_with_what_was_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxgen.scheduling.background_hold.HOLD_SECONDS", 0.05)
    engine = AsyncEngine(ModelInfo("tiny", 256, LLAMA.vocab_size), Tokenizer(byte_level()), lambda: engine_with(0))
    engine.start()
    engine.wait_ready()

    async def collect(one: Request) -> list[TokenEvent]:
        return [event async for event in engine.generate(one)]

    async def main() -> tuple[list[TokenEvent], list[TokenEvent]]:
        return await asyncio.gather(collect(requests()[3]), collect(requests()[1]))

    try:
        assert [len(events) for events in asyncio.run(main())] == [30, 30]
    finally:
        engine.stop()
