"""Every request ends in exactly one event; after an error nothing is held, and the next one is served."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from jaxgen.core.errors import DeviceLostError, EngineDeadError
from jaxgen.core.request import FinishReason, TokenEvent
from jaxgen.core.step_plan import Outcome
from jaxgen.engine import messages
from jaxgen.engine.engine import Engine
from jaxgen.engine.recorder import Recorder
from jaxgen.offload.build import Offload
from jaxgen.offload.tiers.kv_tier.prefetcher import FetchPlan
from tests.support.ends import CONFIG, GREEDY, PROBE, Client, check_idle, offloading_engine, threaded
from tests.support.engines import make_engine, request, run, tokens


def test_an_error_between_the_events_of_a_step_ends_all_its_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """All three end in the step, and are no longer live when the second event cannot be made."""
    engine = make_engine()
    for name in ("a", "b", "c"):
        engine.add(request(name, range(3, 9), max_tokens=1, **GREEDY))
    real = engine.output.make

    def make(outcome: Outcome, now: float) -> TokenEvent:
        if outcome.sequence.request_id == "b":
            raise MemoryError("injected")
        return real(outcome, now)

    monkeypatch.setattr(engine.output, "make", make)
    events = run(engine, [])
    assert {name: [event.finish_reason for event in of_one] for name, of_one in events.items()} == {
        name: [FinishReason.ERROR] for name in "abc"
    }
    check_idle(engine)


def test_a_token_that_was_not_told_ends_its_request_also_if_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was preempted with a token on the way: to go on would leave a gap in its answer."""
    engine = make_engine(config=CONFIG)
    (recorder,) = [observer for observer in engine.observers.each if isinstance(observer, Recorder)]
    real, failed = recorder.completed, list[str]()

    def completed(step: Any, outcomes: list[Outcome], events: Any) -> None:
        waiting = [one.sequence.request_id for one in outcomes if one.sequence.status == "waiting"]
        if waiting and not failed:
            failed.extend(waiting)
            raise MemoryError("injected")
        real(step, outcomes, events)

    monkeypatch.setattr(recorder, "completed", completed)
    todo = [request(f"r{i}", range(10 * i, 10 * i + 20), max_tokens=40, **GREEDY) for i in range(1, 5)]
    events = run(engine, todo)
    assert failed
    assert all(events[name][-1].finish_reason is FinishReason.ERROR for name in failed)
    for of_one in events.values():
        assert of_one[-1].finish_reason is FinishReason.ERROR or len(tokens(of_one)) == 40
    check_idle(engine)


def test_a_request_that_wants_nothing_can_be_aborted_before_it_is_answered() -> None:
    engine = make_engine()
    engine.add(request("a", range(3, 9), max_tokens=0))
    assert engine.abort("a")
    assert not engine.abort("a")
    assert not engine.has_work
    again = request("a", range(3, 9), max_tokens=4, **GREEDY)  # the id is free again
    assert len(run(engine, [again])["a"]) == 4


def test_an_id_is_in_use_until_its_end_is_handed_out() -> None:
    engine = make_engine()
    nothing = request("a", range(3, 9), max_tokens=0)
    engine.add(nothing)
    for one in (nothing, request("a", range(3, 9))):
        with pytest.raises(ValueError, match=r"^request_id 'a' is in use$"):
            engine.add(one)
    assert [event.finish_reason for event in run(engine, [])["a"]] == [FinishReason.LENGTH]
    assert len(run(engine, [request("a", range(3, 9), max_tokens=2, **GREEDY)])["a"]) == 2


@pytest.mark.parametrize(
    ("place", "taken"), [("policy.place", False), ("policy.join", True), ("_restorer.expect", True)]
)
def test_an_error_in_add_leaves_nothing_of_the_request(
    monkeypatch: pytest.MonkeyPatch, place: str, taken: bool
) -> None:
    """Before the scheduler has taken it nobody else notices. Later all that run end too, and those that wait go on."""
    engine = offloading_engine()
    scheduler = engine.scheduler
    runs = [request(f"runs {i}", range(10 * i, 10 * i + 5), max_tokens=9, **GREEDY) for i in range(1, 5)]
    for one in (*runs, request("waits", range(3, 9), max_tokens=9, **GREEDY)):
        engine.add(one)
    engine.step()

    def raising(*_: object) -> None:
        raise OSError("injected")

    with monkeypatch.context() as patch:
        owner, name = place.split(".")
        patch.setattr(getattr(scheduler, owner), name, raising)
        with pytest.raises(OSError, match="injected"):
            engine.add(request("refused", range(3, 9), max_tokens=5, **GREEDY))
    assert scheduler.living("refused") is None
    events = run(engine, [])
    ends = {name: of_one[-1].finish_reason for name, of_one in events.items()}
    assert ends == {one.request_id: FinishReason.ERROR if taken else FinishReason.LENGTH for one in runs} | {
        "waits": FinishReason.LENGTH
    }
    check_idle(engine)


def test_an_error_in_add_leaves_nothing_of_what_another_request_fetches(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The last request finds blocks that were read for the first, and has them put into host memory."""
    engine = offloading_engine(tmp_path)
    assert isinstance(engine.offload, Offload)
    tier, fetcher = engine.offload.tier, engine.offload.tier.fetcher
    assert fetcher is not None
    monkeypatch.setattr(fetcher, "_planner", lambda *_: FetchPlan(pays=True))  # whatever the times measured
    first, *others = [request(f"r{i}", range(3, 33), max_tokens=4, **GREEDY) for i in range(3)]
    answer = tokens(run(engine, [first])["r0"])
    written = threading.Event()
    assert fetcher.tier._writer.submit(written.set)
    assert written.wait(60)
    engine.scheduler.pool.forget()
    while tier.store._evict():
        pass

    def raising(*_: object) -> None:
        raise OSError("injected")

    engine.add(first)
    fetcher.tier.wait(60)  # for which blocks there are
    engine.add(others[0])
    fetcher.tier.wait(60)  # for the blocks
    with monkeypatch.context() as patch:
        patch.setattr(tier.store, "put", raising)
        with pytest.raises(OSError, match="injected"):
            engine.add(others[1])
    assert tier.store.num_reserved == 0, "the engine would be at work for ever"
    assert all(len(tokens(of_one)) == 4 for of_one in run(engine, []).values())
    check_idle(engine)
    assert not engine.has_work
    assert tokens(run(engine, [others[1]])["r2"]) == answer


def test_an_end_that_cannot_be_passed_on_is_told_by_the_end_of_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = threaded()

    def deliver(loop: Any, items: list[Any]) -> bool:
        if any(isinstance(item, TokenEvent) and item.finish_reason is not None for _, item in items):
            raise MemoryError("injected")
        return messages.deliver(loop, items)

    monkeypatch.setattr("jaxgen.engine.async_engine.deliver", deliver)
    client = Client(engine)
    asyncio.run(client.serve([PROBE, request("other", range(9), max_tokens=30, **GREEDY)]))
    assert all(isinstance(items[-1], EngineDeadError) for items in client.items.values())


def test_a_device_that_is_lost_while_a_request_is_accepted_ends_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request gets its end with all others, and is not told that it alone failed."""
    engine = threaded()

    def add(*_: object) -> None:
        raise DeviceLostError("injected")

    monkeypatch.setattr(Engine, "add", add)
    client = Client(engine)
    asyncio.run(client.serve([PROBE]))
    (end,) = client.items["probe"]
    assert isinstance(end, EngineDeadError)
    assert engine.status().state == "dead"


def test_an_idle_engine_that_holds_blocks_counts_it_and_begins_with_an_empty_cache(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = make_engine()
    engine.scheduler.pool.allocate(2)
    for leaks in (1, 1):
        events = run(engine, [request("a", range(3, 9), max_tokens=2, **GREEDY)])
        assert len(tokens(events["a"])) == 2
        assert engine.stats().leaks == leaks
        check_idle(engine)
    assert caplog.text.count("RuntimeError: an idle scheduler holds rows, blocks or places in queues") == 1
