"""Figures between two readings of the counters, by hand."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from jaxgen.client import EngineStatus
from jaxgen.core.stats import EngineStats, KindStats, OffloadStats, SnapshotStats
from jaxgen.server.app import create_app
from jaxgen.server.metrics.histogram import quantile
from jaxgen.server.metrics.metrics import Metrics
from jaxgen.server.step_feed import history as history_module
from jaxgen.server.step_feed.history import FIELDS, NUM_SAMPLES, History
from jaxgen.server.step_feed.readings import CounterSnapshot, Meter, kinds, links, per_second, snapshots
from tests.support.journals import BLOCKS, JournalingEngine, journaling_engine
from tests.support.server_app import body, call, client_of

BEFORE = replace(
    BLOCKS,
    steps=10,
    prompt_tokens=100,
    generation_tokens=40,
    step_tokens=200,
    padded_tokens=60,
    step_seconds=1.0,
    preemptions=2,
    compilations_after_ready=1,
    offload=OffloadStats(saved_bytes=1000, restored_bytes=500, save_link_seconds=0.5, restore_link_seconds=1.0),
)
AFTER = replace(
    BEFORE,
    steps=15,
    prompt_tokens=130,
    generation_tokens=60,
    step_tokens=300,
    padded_tokens=110,
    step_seconds=1.5,
    preemptions=3,
    num_running=4,
    num_waiting=1,
    offload=OffloadStats(
        saved_bytes=3000,
        restored_bytes=500,
        save_link_seconds=1.5,
        restore_link_seconds=1.0,
        host_blocks=7,
        host_blocks_total=9,
    ),
)


def metered() -> tuple[JournalingEngine, Metrics, History]:
    engine = journaling_engine()
    engine.numbers = BEFORE
    metrics = Metrics(engine)
    return engine, metrics, History(engine, Meter(engine, metrics))


def newest(history: History) -> dict[str, Any]:
    return dict(zip(FIELDS, history.as_json()["samples"][-1], strict=True))


def test_kinds_of_cache_are_told_where_there_are_several() -> None:
    assert kinds(AFTER) is None
    full = KindStats(name="full", blocks_total=9, blocks_free=6, blocks_cached=2)
    window = KindStats(name="window 16", blocks_total=4, blocks_free=1, blocks_cached=1)
    assert kinds(replace(AFTER, kinds=(full, window))) == [
        {"name": "full", "total": 9, "free": 4, "cached": 2, "used": 3},
        {"name": "window 16", "total": 4, "free": 0, "cached": 1, "used": 3},
    ]


def test_snapshots_are_told_where_there_are_states() -> None:
    assert snapshots(AFTER) is None
    assert snapshots(replace(AFTER, snapshots=SnapshotStats(total=9, held=4))) == {"total": 9, "held": 4}


def test_a_sample_has_what_the_interval_brought() -> None:
    engine, metrics, history = metered()
    engine.numbers = AFTER
    for _ in range(4):
        metrics.first_token.observe(0.2)
    history.sample()
    found = newest(history)
    assert found.pop("time") == pytest.approx(history.last.time, abs=0.001)
    assert found == {
        "steps": 5,
        "prompt_tokens": 30,
        "generated_tokens": 20,
        "padded_tokens": 50,
        "step_tokens": 100,
        "step_seconds": 0.5,
        "running": 4,
        "waiting": 1,
        "free": 40,
        "cached": 20,
        "used": 40,
        "host": 7,
        "ttft_p50": pytest.approx(0.175),
        "ttft_p95": pytest.approx(0.2425),
        "gap_p50": None,
        "gap_p95": None,
        "compilations": 0,
        "preemptions": 1,
        "to_device_bytes": 0,
        "to_host_bytes": 2000,
    }
    history.sample()
    assert newest(history)["steps"] == 0
    assert newest(history)["ttft_p50"] is None


def test_counters_that_begin_again_have_grown_from_nothing() -> None:
    engine, _, history = metered()
    engine.numbers = EngineStats(steps=3, generation_tokens=41)
    history.sample()
    assert newest(history)["steps"] == 3
    assert newest(history)["generated_tokens"] == 1
    assert newest(history)["to_host_bytes"] == 0


def test_an_hour_is_kept_and_none_of_the_start() -> None:
    engine, _, history = metered()
    engine.state = EngineStatus("starting")
    history.sample()
    assert history.as_json()["samples"] == []
    engine.state = EngineStatus("ready")
    for steps in range(NUM_SAMPLES + 5):
        engine.numbers = replace(BEFORE, steps=10 + steps * 2)
        history.sample()
    samples = history.as_json()["samples"]
    assert len(samples) == NUM_SAMPLES
    assert {sample[1] for sample in samples} == {2}


def test_rates_and_links() -> None:
    before, after = CounterSnapshot(100.0, BEFORE, (), ()), CounterSnapshot(102.0, AFTER, (), ())
    assert per_second(before, after) == {"prompt": 15.0, "generated": 10.0}
    assert links(before, after) == {
        "to_device_bytes_per_second": 0,
        "to_host_bytes_per_second": 1000,
        "to_device_busy": 0.0,
        "to_host_busy": 0.5,
    }
    assert links(before, replace(after, stats=replace(AFTER, offload=None))) is None


def test_quantiles_are_those_of_prometheus() -> None:
    """Spread evenly over a bucket; what is above all bounds counts as the last."""
    assert quantile((1.0, 2.0, 4.0), (0, 4, 0, 0), 0.5) == 1.5
    assert quantile((1.0, 2.0, 4.0), (2, 0, 2, 0), 0.5) == 1.0
    assert quantile((1.0, 2.0, 4.0), (2, 0, 2, 0), 0.75) == 3.0
    assert quantile((1.0, 2.0, 4.0), (0, 0, 0, 3), 0.5) == 4.0


@pytest.mark.parametrize("lifespan", [True, False])
def test_samples_come_by_themselves(lifespan: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the lifespan, or, where an outer app sends no events of it, from the first request on."""
    monkeypatch.setattr(history_module, "INTERVAL", 0.01)
    app = create_app(journaling_engine())

    async def samples() -> int:
        told: list[bytes] = []

        async def send(message: Any) -> None:
            told.append(message.get("body", b""))

        if not lifespan:
            await call(app, body(max_tokens=1), send)
        while True:
            told.clear()
            await call(app, {}, send, path="/steps/history", method="GET")
            if b"[[" in b"".join(told):
                return len(told)
            await asyncio.sleep(0.01)

    async def within() -> int:
        async with app.router.lifespan_context(app):
            return await samples()

    assert asyncio.run(asyncio.wait_for(within() if lifespan else samples(), 30))


def test_the_timer_goes_on_in_the_next_event_loop_and_ends_with_the_lifespan() -> None:
    _, _, history = metered()

    async def start() -> asyncio.TimerHandle:
        history.start()
        timer = history._timer
        history.start()
        assert history._timer is timer is not None, "it runs once"
        return timer

    first, second = asyncio.run(start()), asyncio.run(start())
    assert first is not second
    history.stop()
    assert second.cancelled()


def test_the_answer_is_described() -> None:
    with client_of(journaling_engine()) as client:
        schema = client.get("/openapi.json").json()["components"]["schemas"]["StepHistory"]
        assert set(client.get("/steps/history").json()) == set(schema["properties"])
