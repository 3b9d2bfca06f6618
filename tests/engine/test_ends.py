"""Every request ends in exactly one event, whatever raises where; then nothing is held, and the next one is served."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Several
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from jaxgen.cache.block_log import BlockEvent, BlockEventSink, Cleared, Removed
from jaxgen.core.config import EngineConfig, OffloadConfig
from jaxgen.core.errors import EngineDeadError
from jaxgen.core.model_info import ModelInfo
from jaxgen.core.request import FinishReason, Request, TokenEvent
from jaxgen.core.stats import KVEventStats
from jaxgen.core.step_plan import Outcome
from jaxgen.engine import async_engine
from jaxgen.engine.async_engine import AsyncEngine
from jaxgen.engine.engine import Engine
from jaxgen.text.constraint import Constraint
from jaxgen.text.tokenizer import Tokenizer
from tests.support.engines import EOS, LLAMA, embed, engine_config, make_engine, params_of, request, run, tokens
from tests.support.injected import InjectedError, Site, Watcher, watcher
from tests.support.streamed import SMALL, compiled_layers, streamed
from tests.support.tiny_tokenizers import byte_level

GREEDY = {"temperature": 0.0, "ignore_eos": True}
PROBE = request("probe", range(200, 220), max_tokens=4, **GREEDY)
CONFIG = engine_config(num_blocks=14, max_model_len=64)
"""So few blocks that sequences are preempted."""
MOST_STEPS = 400


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Each error is logged with its traceback."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def several() -> list[Request]:
    """One of each kind; "aborted" is aborted on the way."""
    return [
        request("long", range(3, 33), max_tokens=10, **GREEDY),
        request("shares", range(3, 25), max_tokens=6, logprobs=2, **GREEDY),
        replace(request("back", range(50, 66), max_tokens=8, **GREEDY), background=True),
        request("scored", range(3, 21), max_tokens=3, prompt_logprobs=1, **GREEDY),
        embed("pooled", range(7, 27)),
        request("nothing", [5], max_tokens=0),
        request("aborted", range(80, 100), max_tokens=12, **GREEDY),
        request("bound", range(90, 99), max_tokens=5, min_tokens=2, **GREEDY),
    ]


def constraint_of(one: Request) -> Constraint | None:
    """One that changes with each token, of the request that is bound."""
    if one.request_id != "bound":
        return None
    return Constraint(one.params, vocab_size=LLAMA.vocab_size, grammar=None, words=[(5, 6)], ending=[EOS])


@dataclass
class Caller:
    """Serves ``several`` with an engine, and notes what comes. An error of ``add`` is the request's answer."""

    engine: Engine
    watcher: Watcher = field(default_factory=Watcher)
    ends: Counter[str] = field(default_factory=Counter)
    closed: set[str] = field(default_factory=set)
    """Requests that were refused, aborted, or have ended."""

    def serve(self) -> None:
        accepted = [one.request_id for one in several() if self._add(one)]
        for step in range(MOST_STEPS):
            if step == 5:
                self._abort("aborted")
            if not self.engine.has_work:
                break
            for event in self._step():
                assert event.request_id not in self.closed, f"{event} comes too late"
                if event.finish_reason is not None:
                    self.ends[event.request_id] += 1
                    self.closed.add(event.request_id)
        assert not self.engine.has_work, f"the engine is at work after {MOST_STEPS} steps"
        assert self.closed == {one.request_id for one in several()}, "some have no end"
        assert all(self.ends[name] == 1 for name in accepted if name != "aborted")

    def _add(self, one: Request) -> bool:
        with self.watcher.watched():
            try:
                self.engine.add(one, constraint_of(one))
            except InjectedError:
                self.closed.add(one.request_id)
                return False
        return True

    def _abort(self, name: str) -> None:
        with self.watcher.watched():
            try:
                self.engine.abort(name)
            except InjectedError:  # before anything was done
                self.engine.abort(name)
        self.closed.add(name)

    def _step(self) -> list[TokenEvent]:
        with self.watcher.watched():
            try:
                return self.engine.step()
            except InjectedError:  # events wait for the next call
                return []


def check_idle(engine: Engine) -> None:
    """Nothing is held of any request."""
    scheduler, stats = engine._scheduler, engine.stats()
    assert stats.blocks_free == stats.blocks_total
    assert len(scheduler._kv_cache._free_rows) == engine.config.scheduler.max_num_seqs
    assert (scheduler.num_running, scheduler.num_waiting, scheduler.num_online, scheduler.has_work) == (0, 0, 0, False)
    events = engine._events
    of_requests = (engine._outbox._accepted, engine.journal.live, engine._latencies._records)
    assert not any((*of_requests, events._told, events._prompt, events._pools))
    if engine._block_events is not None:
        index: Any = engine._block_events._sink
        assert index.keys == set(scheduler.pool._by_key)
    if engine.offload is not None:
        store = engine.offload.tier.store
        assert (store.num_reserved, +store._pins, engine.offload.busy) == (0, Counter(), False)


@dataclass
class Index(BlockEventSink):
    """Which blocks the cache holds, by what it publishes."""

    keys: set[bytes] = field(default_factory=set)

    def publish(self, events: Several[BlockEvent]) -> None:
        for event in events:
            if isinstance(event, Cleared):
                self.keys.clear()
            elif isinstance(event, Removed):
                self.keys.remove(event.key)
            else:
                self.keys.add(event.key)

    def stats(self) -> KVEventStats:
        return KVEventStats()

    def close(self, seconds: float) -> None:
        del seconds


def plain_engine() -> Engine:
    return make_engine(config=CONFIG, events=Index())


def offloading_engine() -> Engine:
    return make_engine(config=replace(CONFIG, offload=OffloadConfig(40, "transfer")))


def streaming_engine() -> Engine:
    config: EngineConfig = streamed("plan")
    return Engine(SMALL, config, dict(params_of(SMALL)), frozenset({EOS}), compiled=compiled_layers(SMALL))


def sites_of(engine: Engine, watching: Watcher, *files: str) -> dict[Site, int]:
    """How often a run passes each place in these files, or in all; a run before it has what happens once only."""
    for _ in range(2):
        watching.begin()
        Caller(engine, watching).serve()
    return {site: count for site, count in watching.counts.items() if not files or site.file.startswith(files)}


def inject(make: Callable[[], Engine], *files: str, every: int, first: int = 0) -> None:
    """Raise at each ``every``-th place from ``first`` on, at about half of the times that it is passed."""
    engine = make()
    answer = tokens(run(engine, [PROBE])["probe"])
    with watcher() as watching:
        sites = sorted(sites_of(engine, watching, *files).items(), key=lambda one: str(one[0]))
        assert len(sites) > 30
        chosen, missed = sites[first::every], 0
        for site, count in chosen:
            watching.begin(site, (count + 1) // 2)
            try:
                Caller(engine, watching).serve()
                check_idle(engine)
                missed += not watching.raised
                assert tokens(run(engine, [PROBE])["probe"]) == answer
                check_idle(engine)
            except Exception as error:
                raise AssertionError(f"after an error at {site}: {error}") from error
    assert missed <= len(chosen) // 3, "which copies come back, and when, depends on times; most does not"


def test_an_error_anywhere_in_the_loop_leaves_each_request_its_end() -> None:
    inject(plain_engine, every=25)


@pytest.mark.full  # the whole of it: a run for each place
@pytest.mark.parametrize("first", range(6))
def test_an_error_at_each_place_of_the_loop(first: int) -> None:
    inject(plain_engine, every=6, first=first)


@pytest.mark.full
@pytest.mark.parametrize("first", range(3))
def test_an_error_at_each_place_of_offloading(first: int) -> None:
    inject(offloading_engine, "offload/", "cache/restorer.py", every=3, first=first)


@pytest.mark.full
@pytest.mark.parametrize("first", range(3))
def test_an_error_at_each_place_of_streaming(first: int) -> None:
    inject(streaming_engine, "layerwise/", every=3, first=first)


def test_an_error_between_the_events_of_a_step_ends_all_its_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """All three end in the step, and are no longer live when the second event cannot be made."""
    engine = make_engine()
    for name in ("a", "b", "c"):
        engine.add(request(name, range(3, 9), max_tokens=1, **GREEDY))
    real = engine._events.make

    def make(outcome: Outcome, now: float) -> TokenEvent:
        if outcome.sequence.request_id == "b":
            raise MemoryError("injected")
        return real(outcome, now)

    monkeypatch.setattr(engine._events, "make", make)
    events = run(engine, [])
    assert {name: [event.finish_reason for event in of_one] for name, of_one in events.items()} == {
        name: [FinishReason.ERROR] for name in "abc"
    }
    check_idle(engine)


def test_a_token_that_was_not_told_ends_its_request_also_if_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was preempted with a token on the way: to go on would leave a gap in its answer."""
    engine = make_engine(config=CONFIG)
    real, failed = engine._recorder.read, list[str]()

    def read(plan: Any, step: Any, outcomes: list[Outcome], events: Any) -> None:
        waiting = [one.sequence.request_id for one in outcomes if one.sequence.status == "waiting"]
        if waiting and not failed:
            failed.extend(waiting)
            raise MemoryError("injected")
        real(plan, step, outcomes, events)

    monkeypatch.setattr(engine._recorder, "read", read)
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


@pytest.mark.parametrize("taken", [False, True])
def test_an_error_in_add_leaves_nothing_of_the_request(monkeypatch: pytest.MonkeyPatch, taken: bool) -> None:
    """Before the scheduler has taken it nobody else notices. Later all that run end too, and those that wait go on."""
    engine = offloading_engine()
    scheduler = engine._scheduler
    runs = [request(f"runs {i}", range(10 * i, 10 * i + 5), max_tokens=9, **GREEDY) for i in range(1, 5)]
    for one in (*runs, request("waits", range(3, 9), max_tokens=9, **GREEDY)):
        engine.add(one)
    engine.step()

    def raising(*_: object) -> None:
        raise OSError("injected")

    with monkeypatch.context() as patch:
        if taken:
            patch.setattr(scheduler.policy, "join", raising)
        else:
            patch.setattr(scheduler._restorer, "expect", raising)
        with pytest.raises(OSError, match="injected"):
            engine.add(request("refused", range(3, 9), max_tokens=5, **GREEDY))
    assert scheduler.living("refused") is None
    events = run(engine, [])
    ends = {name: of_one[-1].finish_reason for name, of_one in events.items()}
    assert ends == {one.request_id: FinishReason.ERROR if taken else FinishReason.LENGTH for one in runs} | {
        "waits": FinishReason.LENGTH
    }
    check_idle(engine)


@dataclass
class Client:
    """Follows requests in an event loop, and notes every item that comes, also after the end."""

    engine: AsyncEngine
    items: dict[str, list[TokenEvent | Exception]] = field(default_factory=dict)

    async def serve(self, todo: list[Request]) -> None:
        """Until each has its end; raises TimeoutError where one has none."""
        await asyncio.wait_for(asyncio.gather(*map(self._follow, todo)), 20)
        await asyncio.sleep(0.01)  # for what comes too late
        for name, items in self.items.items():
            ends = [isinstance(item, Exception) or item.finish_reason is not None for item in items]
            assert ends == [False] * (len(items) - 1) + [True], f"{name} got {items}"

    async def _follow(self, one: Request) -> None:
        items = self.items[one.request_id] = []
        ended = asyncio.Event()

        def put(item: TokenEvent | Exception) -> None:
            items.append(item)
            if isinstance(item, Exception) or item.finish_reason is not None:
                ended.set()

        try:
            async with self.engine._under_way(one, put):
                await ended.wait()
        except EngineDeadError as error:  # the engine was dead before
            put(error)


def threaded() -> AsyncEngine:
    engine = AsyncEngine(ModelInfo("tiny", 64, LLAMA.vocab_size), Tokenizer(byte_level()), plain_engine)
    engine.start()
    engine.wait_ready()
    return engine


def test_an_end_that_cannot_be_passed_on_is_told_by_the_end_of_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = threaded()
    real = async_engine._deliver

    def deliver(loop: Any, items: list[Any]) -> bool:
        if any(isinstance(item, TokenEvent) and item.finish_reason is not None for _, item in items):
            raise MemoryError("injected")
        return real(loop, items)

    monkeypatch.setattr(async_engine, "_deliver", deliver)
    client = Client(engine)
    asyncio.run(client.serve([PROBE, request("other", range(9), max_tokens=30, **GREEDY)]))
    assert all(isinstance(items[-1], EngineDeadError) for items in client.items.values())


def inject_into_thread(*, every: int) -> None:
    """At places of the engine's thread outside the engine. An error there ends the thread, or one request."""
    todo = [one for one in several() if one.request_id != "bound"]
    engine = threaded()
    with watcher() as watching:
        watching.begin()
        with watching.watched(engine._thread.ident):
            asyncio.run(Client(engine).serve(todo))
        sites = [(site, count) for site, count in watching.counts.items() if site.file == "engine/async_engine.py"]
        assert len(sites) > 15
        died = 0
        for site, count in sorted(sites, key=lambda one: str(one[0]))[::every]:
            watching.begin(site, (count + 1) // 2)
            client = Client(engine)
            with watching.watched(engine._thread.ident):
                asyncio.run(client.serve(todo))
            try:
                asyncio.run(Client(engine).serve([PROBE]))
            except TimeoutError as error:
                raise AssertionError(f"after an error at {site} nobody is served") from error
            if engine.status().state == "dead":
                died += 1
                engine = threaded()
        assert died > 0
    engine.stop()


def test_an_error_in_the_engines_thread_leaves_each_request_its_end() -> None:
    inject_into_thread(every=5)


@pytest.mark.full  # an engine is made for each place
def test_an_error_at_each_place_of_the_engines_thread() -> None:
    inject_into_thread(every=1)
