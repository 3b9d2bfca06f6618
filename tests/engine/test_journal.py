"""The journal of an engine, against an account of the plans that it ran and of the events that came out."""

import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from jaxgen.core.config import OffloadConfig
from jaxgen.core.request import FinishReason, Request, TokenEvent
from jaxgen.core.sequence import Chunk
from jaxgen.core.service_class import ServiceClass
from jaxgen.core.step_plan import StepPlan
from jaxgen.engine.engine import Engine
from jaxgen.engine.observer import MeasuredStep
from jaxgen.engine.recorder import Recorder
from jaxgen.journal import Journal, RingBuffer, StepRecord
from jaxgen.offload.build import Offload
from tests.support.engines import engine_config, make_engine, request, run
from tests.support.small_scheduler import new_scheduler, sequence_of

Account = dict[int, list[tuple[Any, ...]]]
"""By request: kind and values of each of its events."""


def events_of(journal: Journal) -> Account:
    found: Account = defaultdict(list)
    for _, number, *what in journal.events.between(0, journal.events.count):
        found[number].append(tuple(what))
    return found


def steps_of(journal: Journal) -> list[StepRecord]:
    return journal.steps.between(0, journal.steps.count)


def spied(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[StepPlan]:
    """The plans that the engine makes from now on, except empty ones."""
    plans: list[StepPlan] = []
    schedule = engine.scheduler.schedule

    def spy(now: float) -> StepPlan:
        plan = schedule(now)
        if plan.chunks:
            plans.append(plan)
        return plan

    monkeypatch.setattr(engine.scheduler, "schedule", spy)
    return plans


def drawn(count: int, seed: int, *, most_tokens: int) -> list[Request]:
    """Some prompts begin alike."""
    rng = np.random.default_rng(seed)
    shared = rng.integers(3, 300, size=40).tolist()
    prompts = [
        shared[: rng.integers(0, 40)] + rng.integers(3, 300, size=rng.integers(1, 50)).tolist() for _ in range(count)
    ]
    return [
        request(f"r{i}", prompt, max_tokens=int(rng.integers(1, most_tokens)), ignore_eos=True)
        for i, prompt in enumerate(prompts)
    ]


def check_steps(engine: Engine, plans: list[StepPlan]) -> None:
    """One record of each step, of its plan's tokens; their sums are the engine's counters."""
    steps, stats = steps_of(engine.journal), engine.stats()
    assert [step.number for step in steps] == list(range(1, stats.steps + 1))
    assert sum(step.width for step in steps) == stats.step_tokens
    assert sum(step.width - step.decodes - step.prompt for step in steps) == stats.padded_tokens
    assert sum(step.seconds for step in steps) == pytest.approx(stats.step_seconds)
    assert all(step.predicted > 0 for step in steps)
    assert all(earlier.time <= later.time for earlier, later in pairwise(steps))
    for step, plan in zip(steps, plans, strict=True):
        pieces = [chunk.length for chunk in plan.chunks if chunk.length > 1 or chunk.start < chunk.sequence.num_prompt]
        assert step.prompt == sum(pieces)
        assert step.decodes == len(plan.chunks) - len(pieces)
        assert step.free + step.cached <= engine.config.cache.num_blocks
    last = steps[-1]
    assert (last.running, last.waiting) == (0, 0)


def check_request(sent: Request, account: list[tuple[Any, ...]], came: list[TokenEvent], plans: list[StepPlan]) -> None:
    """Its pieces are those of the plans, one after the other from what was found each time that it began; with the
    decodes, each token is computed once, unless it was preempted."""
    chunks = [chunk for plan in plans for chunk in plan.chunks if chunk.sequence.request is sent]
    decodes = [chunk.start for chunk in chunks if chunk.length == 1 and chunk.start >= len(sent.prompt)]
    pieces = [(chunk.start, chunk.length) for chunk in chunks if chunk.length > 1 or chunk.start < len(sent.prompt)]
    assert [tuple(values) for kind, *values in account if kind == "chunk"] == pieces
    generated = sum(event.token is not None for event in came)
    kinds = [kind for kind, *_ in account]
    assert account[0] == ("queued", "default", len(sent.prompt))
    assert account[-1] == ("ended", "length", generated)
    assert kinds.count("first") == 1
    found = [values[0] for kind, *values in account if kind == "begun"]
    assert len(found) == kinds.count("preempted") + 1
    assert came[0].cached_tokens == found[0]
    position = 0
    for kind, *values in account:
        if kind == "begun":
            position = values[0]
        elif kind == "chunk":
            assert values[0] == position
            position += values[1]
    if len(found) == 1:
        assert position == len(sent.prompt)
        assert decodes == list(range(len(sent.prompt), len(sent.prompt) + generated - 1))


@pytest.mark.parametrize(("num_blocks", "preempted"), [(64, False), (32, True)])
def test_every_token_of_every_request_once(num_blocks: int, preempted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(config=engine_config(num_blocks=num_blocks))
    plans = spied(engine, monkeypatch)
    requests = drawn(12, seed=num_blocks, most_tokens=100 if preempted else 60)
    came = run(engine, requests)
    check_steps(engine, plans)
    found = events_of(engine.journal)
    assert len(found) == len(requests)
    for number, sent in enumerate(requests):
        check_request(sent, found[number], came[sent.request_id], plans)
    told = sum(kind == "preempted" for account in found.values() for kind, *_ in account)
    assert told == engine.stats().preemptions
    assert (told > 0) is preempted
    assert engine.journal.live == {}


def test_what_comes_from_host_memory() -> None:
    config = replace(engine_config(num_blocks=32), offload=OffloadConfig(100, "transfer"))
    engine = make_engine(config=config)
    rng = np.random.default_rng(1)
    prompts = [rng.integers(3, 300, size=n).tolist() for n in (90, 80, 100, 70)]
    requests = [request(f"r{i}", prompt, max_tokens=1) for i, prompt in enumerate(prompts)]
    run(engine, requests)
    assert steps_of(engine.journal)[-1].host > 0
    before = engine.journal.events.count
    run(engine, requests)
    restored = 0
    accounts: Account = defaultdict(list)
    for _, number, *what in engine.journal.events.between(before, engine.journal.events.count):
        accounts[number].append(tuple(what))
    for account, sent in zip(accounts.values(), requests, strict=True):
        by_kind = {kind: values for kind, *values in account}
        found, awaited = by_kind["begun"]
        (arrived,) = by_kind.get("restored", (0,))
        assert arrived == awaited
        pieces = sum(values[1] for kind, *values in account if kind == "chunk")
        assert found + arrived + pieces == len(sent.prompt)
        restored += arrived
    assert isinstance(engine.offload, Offload)
    assert restored == engine.offload.tier.counters.restored_tokens > 0


def test_ends() -> None:
    """By a caller, while it waits and while it runs, with nothing to do, and by a step that fails."""
    engine = make_engine()
    engine.add(request("runs", range(3, 20), max_tokens=50, ignore_eos=True))
    engine.add(request("nothing", [5], max_tokens=0))
    for _ in range(5):
        engine.step()
    engine.add(request("waits", range(3, 20), max_tokens=50))
    assert [live.request_id for live in engine.journal.live_requests()] == ["runs", "waits"]
    assert [live.running for live in engine.journal.live_requests()] == [True, False]
    engine.abort("waits")
    engine.abort("runs")
    engine.abort("runs")
    found = events_of(engine.journal)
    assert found[1] == [("queued", "default", 1), ("ended", "length", 0)]
    assert found[2] == [("queued", "default", 17), ("ended", "abort", 0)]
    generated = found[0][-1][2]
    assert generated > 0
    assert found[0][-1] == ("ended", "abort", generated)
    before = engine.journal.events.count
    while engine.has_work:
        engine.step()
    assert engine.journal.events.count == before, "nothing of a request after its end"


def test_a_piece_that_was_on_its_way_at_the_end_is_not_told() -> None:
    engine = make_engine()
    engine.add(request("long", range(3, 60), max_tokens=5))
    engine.step()
    engine.abort("long")
    while engine.stats().steps == 0:
        engine.step()
    assert [what[0] for what in events_of(engine.journal)[0]] == ["queued", "begun", "ended"]


def test_a_step_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine()
    engine.add(request("one", range(3, 20), max_tokens=50, ignore_eos=True))
    engine.step()
    monkeypatch.setattr(engine.runner, "run", failing_once(engine.runner.run))
    (event,) = engine.step()
    assert event.finish_reason is FinishReason.ERROR
    assert events_of(engine.journal)[0][-1] == ("ended", "error", 0)
    assert engine.journal.live == {}


def failing_once(run: Callable[..., Any]) -> Callable[..., Any]:
    calls: list[None] = []

    def fails(*arguments: Any, **options: Any) -> Any:
        calls.append(None)
        if len(calls) == 1:
            raise RuntimeError("no device")
        return run(*arguments, **options)

    return fails


def test_drafts_behind_the_last_token_of_a_prompt_are_no_part_of_it() -> None:
    recorder = Recorder(engine_config(), new_scheduler(), lambda: 0, skips_padding=False)
    sequence = sequence_of("a", prompt=4)
    recorder.queued(sequence, 0.0)
    chunk = Chunk(sequence, 3, 3, drafts=(7, 7))
    recorder.completed(
        MeasuredStep(1, StepPlan((chunk,)), (chunk,), 0.0, 1.0, 1.0, 8, narrow=False, projected=0), [], []
    )
    (step,) = steps_of(recorder.journal)
    assert (step.decodes, step.prompt) == (2, 1)
    assert events_of(recorder.journal)[sequence.arrival][-1] == ("chunk", 3, 1)


def test_who_asks_and_their_class() -> None:
    engine = make_engine()
    batch = replace(ServiceClass(name="batch"), first_token_seconds=60.0)
    engine.add(replace(request("a", [5], max_tokens=1), tenant="someone", service=batch))
    engine.add(replace(request("b", [5], max_tokens=1), background=True))
    with pytest.raises(ValueError, match="max-model-len"):
        engine.add(request("c", [5] * 300, max_tokens=1))
    arrivals = engine.journal.arrivals.between(0, engine.journal.arrivals.count)
    told = [(one.number, one.request_id, one.caller, one.service) for one in arrivals]
    assert told == [(0, "a", "someone", "batch"), (1, "b", "", "background")]
    assert [account[0][1] for account in events_of(engine.journal).values()] == ["batch", "background"]


def test_a_ring_keeps_the_last_records() -> None:
    ring: RingBuffer[int] = RingBuffer(4)
    assert ring.between(0, 0) == []
    for number in range(11):
        ring.append(number)
    assert ring.count == 11
    assert ring.between(0, 11) == [7, 8, 9, 10]
    assert ring.between(9, 11) == [9, 10]
    assert ring.between(0, 9) == [7, 8], "those before have been written over"


def test_a_ring_is_read_while_it_is_written() -> None:
    """What is read is in order and was there; a record written meanwhile is never taken for an older one."""
    ring: RingBuffer[int] = RingBuffer(16)
    over = threading.Event()

    def write() -> None:
        for number in range(50_000):
            ring.append(number)
        over.set()

    writer = threading.Thread(target=write)
    writer.start()
    first = 0
    while not over.is_set():
        end = ring.count
        found = ring.between(first, end)
        assert all(first <= number < end for number in found)
        assert found == sorted(found)
        first = end
    writer.join()
    assert ring.between(first, ring.count)[-1:] in ([49_999], [])
