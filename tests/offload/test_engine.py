"""An engine whose cache is too small for what comes back, with host memory behind it: the same bits, however."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jaxgen.core.config import EngineConfig, OffloadConfig, OffloadPolicy
from jaxgen.core.model_config import ModelConfig
from jaxgen.core.request import FinishReason, Request, TokenEvent
from jaxgen.core.stats import OffloadStats
from jaxgen.engine.engine import Engine
from jaxgen.engine.offloading import NO_OFFLOAD
from jaxgen.offload.build import Offload
from jaxgen.offload.tiers.offload_tier import OffloadTier, Split
from tests.support.engines import LLAMA, engine_config, make_engine, request, run
from tests.support.failing_copies import fail_first_copy_back, slow_links
from tests.support.golden_runs import longer

BLOCK = 8
RNG = np.random.default_rng(3)
PROMPTS = [RNG.integers(3, LLAMA.vocab_size, size=n).tolist() for n in (97, 60, 41, 100, 75, 88)]


def requests(names: str, **changes: Any) -> list[Request]:
    """Of each letter's prompt; logprobs show every bit."""
    params = {"max_tokens": 10, "seed": 7, "ignore_eos": True, "logprobs": 5, **changes}
    return [request(f"{name}{i}", PROMPTS["abcdef".index(name)], **params) for i, name in enumerate(names)]


def run_each(engine: Engine, names: str, **changes: Any) -> None:
    """One after another, so that the last of them push out what the first left on the device."""
    for name in names:
        run(engine, requests(name, **changes))


def small(policy: OffloadPolicy = "transfer", host_blocks: int = 100) -> EngineConfig:
    """Two of the longer prompts fit into the cache."""
    config = engine_config(num_blocks=32, block_size=BLOCK)
    return replace(config, offload=OffloadConfig(host_blocks, policy))


def answers(events: dict[str, list[TokenEvent]]) -> dict[str, list[TokenEvent]]:
    return {name: [replace(event, cached_tokens=None) for event in of_one] for name, of_one in events.items()}


def counters(engine: Engine) -> OffloadStats:
    assert isinstance(engine.offload, Offload)
    return engine.offload.tier.counters


@pytest.fixture(scope="module")
def expected() -> Callable[..., dict[str, list[TokenEvent]]]:
    """Each request alone, without a host store."""
    known: dict[tuple[ModelConfig, str], list[TokenEvent]] = {}

    def alone(wanted: list[Request], model: ModelConfig = LLAMA) -> dict[str, list[TokenEvent]]:
        for one in wanted:
            if (model, repr(one)) not in known:
                (known[model, repr(one)],) = answers(run(make_engine(model), [one])).values()
        return {one.request_id: known[model, repr(one)] for one in wanted}

    return alone


def drain(engine: Engine) -> None:
    while engine.has_work:
        assert engine.step() == []


@pytest.mark.shipped
@pytest.mark.parametrize(
    ("policy", "latents"),
    [
        *(("plan", ""), ("transfer", ""), ("recompute", "")),
        pytest.param("plan", "deepseek_v2", marks=pytest.mark.full),
        pytest.param("transfer", "glm4_moe_lite", marks=pytest.mark.full),
    ],
)
def test_contexts_come_back_with_the_same_bits(policy: OffloadPolicy, latents: str, expected: Any) -> None:
    """``latents``: a golden whose cache has latents."""
    model = longer(latents) if latents else LLAMA
    turns = [requests(turn) for turn in ("abcdef", "abcdef", "fedcba")]  # each time the last ones push the first out
    alone = [expected(wanted, model) for wanted in turns]
    engine = make_engine(model, small(policy))
    for wanted, answer in zip(turns, alone, strict=True):
        assert answers(run(engine, wanted)) == answer
    found = counters(engine)
    assert found.saved_blocks > 30
    assert found.host_hit_tokens > 0
    assert found.lost_blocks == found.failed_restores == 0
    if policy == "transfer":
        assert found.restored_tokens == found.planned_restore_tokens == found.host_hit_tokens
    if policy == "recompute":
        assert found.restored_tokens == found.restores == 0
    assert engine.stats().compilations_after_ready == 0
    drain(engine)


def test_a_part_is_computed_while_the_rest_comes(monkeypatch: pytest.MonkeyPatch, expected: Any) -> None:
    engine = make_engine(config=small())
    assert isinstance(engine.offload, Offload)
    monkeypatch.setattr(engine.offload.tier, "planner", lambda blocks, *_: Split(blocks // 2, 0.0))
    run(engine, requests("abcdef"))
    wanted = requests("abcd")
    assert answers(run(engine, wanted)) == expected(wanted)
    found = counters(engine)
    assert found.restored_tokens > 0
    assert found.planned_recompute_tokens > 0


def test_others_go_on_while_one_waits_for_a_slow_link(expected: Any) -> None:
    """At 2 MB/s a prompt takes tens of milliseconds; meanwhile the other answer is written."""
    engine = slow_links(make_engine(config=small()), 2e6)
    run(engine, requests("abcdef"))
    wanted = [*requests("a"), *requests("f", max_tokens=60, seed=8)]
    order: list[str] = []
    for one in wanted:
        engine.add(one)
    events: dict[str, list[TokenEvent]] = {one.request_id: [] for one in wanted}
    while engine.has_work:
        for event in engine.step():
            order.append(event.request_id)
            events[event.request_id].append(event)
    assert answers(events) == expected(wanted)
    assert counters(engine).restores > 0


def test_what_comes_for_one_is_copied_once(expected: Any) -> None:
    engine = slow_links(make_engine(config=small()), 2e6)
    run_each(engine, "abcdef")
    wanted = requests("aaa")
    assert answers(run(engine, wanted)) == expected(wanted)
    assert counters(engine).restored_tokens == len(PROMPTS[0]) // BLOCK * BLOCK


def test_one_that_waits_for_another_s_blocks_outlives_it(expected: Any) -> None:
    engine = slow_links(make_engine(config=small()), 2e6)
    run_each(engine, "abcdef")
    first, second = requests("aa")
    engine.add(first)
    engine.add(second)
    engine.step()
    assert (engine.stats().num_running, engine.stats().num_waiting) == (1, 1)
    engine.abort(first.request_id)
    events: list[TokenEvent] = []
    while engine.has_work:
        events += engine.step()
    assert answers({second.request_id: events}) == expected([second])


def test_what_came_back_counts_as_cached() -> None:
    engine = make_engine(config=small())
    run(engine, requests("abcdef"))
    (events,) = run(engine, requests("a")).values()
    assert events[0].cached_tokens == (len(PROMPTS[0]) - 1) // BLOCK * BLOCK


def test_an_abort_in_mid_transfer_leaves_nothing(expected: Any) -> None:
    """Its blocks are others' when the copy lands; these have a salt, so that they begin at once."""
    engine = slow_links(make_engine(config=small()), 1e6)
    run_each(engine, "abcdef")
    first = requests("a")[0]
    others = [replace(one, cache_salt="other") for one in requests("bd", max_tokens=40)]
    engine.add(first)
    engine.step()
    assert isinstance(engine.offload, Offload)
    assert engine.offload.transfer.busy
    assert engine.abort(first.request_id)
    assert answers(run(engine, others)) == expected(others)
    drain(engine)
    assert engine.offload.tier.store.num_reserved == 0


def test_a_failing_copy_makes_that_request_compute_again(monkeypatch: pytest.MonkeyPatch, expected: Any) -> None:
    engine = make_engine(config=small())
    run(engine, requests("abcdef"))
    fail_first_copy_back(engine, monkeypatch)
    wanted = requests("abc")
    assert answers(run(engine, wanted)) == expected(wanted)
    assert counters(engine).failed_restores == 1
    assert counters(engine).restored_tokens > 0, "of the others"


def test_refused_host_memory_is_warned_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, expected: Any
) -> None:
    engine = make_engine(config=small())
    assert isinstance(engine.offload, Offload)

    several = threading.Event()

    def refuse(_: Any) -> Any:
        several.wait()
        raise MemoryError("no pinned memory")

    transfer = engine.offload.transfer
    monkeypatch.setattr(transfer.down._state, "copy", refuse)
    for turn in ("abcdef", "abcdef"):
        wanted = requests(turn)
        events = run(engine, wanted, lambda _: several.set() if len(transfer._saving) > 1 else None)
        assert answers(events) == expected(wanted)
    drain(engine)
    assert counters(engine).saved_blocks == 0
    assert len([record for record in caplog.records if "no pinned memory" in record.getMessage()]) == 1


def test_the_host_store_never_grows(expected: Any) -> None:
    engine = make_engine(config=small(host_blocks=12))
    for turn in ("abcdef", "fbcdea"):
        wanted = requests(turn)
        assert answers(run(engine, wanted)) == expected(wanted)
    drain(engine)
    assert isinstance(engine.offload, Offload)
    assert len(engine.offload.tier.store) <= 12
    assert engine.offload.tier.store.evictions > 0


def test_a_failed_step_keeps_what_was_saved_before(monkeypatch: pytest.MonkeyPatch, expected: Any) -> None:
    engine = make_engine(config=small())
    run(engine, requests("abcdef"))
    drain(engine)
    with monkeypatch.context() as patch:
        patch.setattr(engine.runner, "run", lambda plan: 1 / 0 if plan.chunks else None)
        engine.add(requests("c")[0])
        events = engine.step()
        while engine.scheduler.has_work:
            events += engine.step()
    assert [event.finish_reason for event in events] == [FinishReason.ERROR]
    wanted = requests("ab")
    assert answers(run(engine, wanted)) == expected(wanted)
    assert counters(engine).restored_tokens > 0


def test_the_planner_learns_that_the_link_is_slower() -> None:
    """Nobody tells it. A busy machine makes copies slower, never faster than the link, so only the least that is
    promised can be checked."""
    engine = slow_links(make_engine(config=small()), 8e6)
    assert isinstance(engine.offload, Offload)
    transfer = engine.offload.transfer

    def promised() -> float:
        """Seconds per byte for the context of one prompt, which another request has pushed out."""
        seconds, copied = counters(engine).predicted_seconds, transfer.link_stats()["restored_bytes"]
        run(engine, requests("a", max_tokens=1))
        drain(engine)
        seconds, copied = counters(engine).predicted_seconds - seconds, transfer.link_stats()["restored_bytes"] - copied
        run_each(engine, "def", max_tokens=1)
        drain(engine)
        return seconds / copied

    run_each(engine, "adef", max_tokens=1)
    drain(engine)
    before = promised()
    transfer.down.bytes_per_second = transfer.up.bytes_per_second = 1e6
    *_, last = [promised() for _ in range(6)]
    assert 0.9 / 8e6 < before < last
    assert last > 0.8 / 1e6


def test_a_device_that_fails_while_blocks_are_gathered_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, expected: Any
) -> None:
    engine = make_engine(config=small())
    assert isinstance(engine.offload, Offload)
    transfer, store = engine.offload.transfer, engine.offload.tier.store
    calls: list[int] = []

    def failing(*_: Any) -> Any:
        calls.append(1)
        raise RuntimeError("the device is out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(transfer, "_copies", [replace(copies, gather=failing) for copies in transfer._copies])
        run(engine, requests("abc"))
        drain(engine)
    assert calls
    assert (store.num_reserved, len(store)) == (0, 0)
    assert counters(engine).failed_saves >= len(calls)
    wanted = requests("abcdef")
    assert answers(run(engine, wanted)) == expected(wanted)


def test_a_block_is_found_again_by_its_key_alone() -> None:
    """Another salt finds nothing."""
    engine = make_engine(config=small())
    run(engine, requests("abcdef"))
    salted = [replace(one, cache_salt="other") for one in requests("a")]
    run(engine, salted)
    assert counters(engine).host_hit_tokens == 0


def test_the_tier_is_there_only_when_asked_for() -> None:
    assert make_engine().offload is NO_OFFLOAD
    assert isinstance(make_engine(config=small()).offload.tier, OffloadTier)
