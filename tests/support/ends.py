"""Callers of an engine that note what comes of each request, also too late, and what must be left of none."""

import asyncio
import time
from collections import Counter, abc
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from jaxgen.cache.block_log import AllBlocksCleared, BlockEvent, BlockEventSink, BlockRemoved
from jaxgen.core.config import EngineConfig, OffloadConfig
from jaxgen.core.errors import EngineDeadError
from jaxgen.core.model_info import ModelInfo
from jaxgen.core.request import Request, TokenEvent
from jaxgen.core.stats import KVEventStats
from jaxgen.core.tier_address import DirectoryAddress
from jaxgen.engine.async_engine import AsyncEngine
from jaxgen.engine.block_events import BlockEvents
from jaxgen.engine.engine import Engine
from jaxgen.engine.start.build import build_engine
from jaxgen.offload.build import Offload
from jaxgen.offload.tiers.offload_tier import OffloadTier
from jaxgen.text.constraint import Constraint
from jaxgen.text.tokenizer import Tokenizer
from tests.support.engines import EOS, LLAMA, embed, engine_config, full_blocks, make_engine, params_of, request
from tests.support.injected import InjectedError, Watcher
from tests.support.streamed import SMALL, compiled_layers, streamed
from tests.support.tiny_tokenizers import byte_level

GREEDY = {"temperature": 0.0, "ignore_eos": True}
PROBE = request("probe", range(200, 220), max_tokens=4, **GREEDY)
CONFIG = engine_config(num_blocks=14, max_model_len=64)
"""So few blocks that sequences are preempted."""
MOST_STEPS = 400
MOST_SECONDS = 60.0
"""For steps that compute nothing, since blocks are on their way; a busy machine may take long."""


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
        tier = self.engine.offload.tier
        if isinstance(tier, OffloadTier) and tier.fetcher is not None:  # all blocks come from the KV tier
            self.engine.scheduler.pool.forget()
            while tier.store._evict():
                pass
        accepted = [one.request_id for one in several() if self._add(one)]
        until = time.monotonic() + MOST_SECONDS
        for step in count():
            if step == 5:
                self._abort("aborted")
            if not self.engine.has_work or (step >= MOST_STEPS and time.monotonic() > until):
                break
            for event in self._step():
                assert event.request_id not in self.closed, f"{event} comes too late"
                if event.finish_reason is not None:
                    self.ends[event.request_id] += 1
                    self.closed.add(event.request_id)
        assert not self.engine.has_work, f"the engine is at work after {MOST_SECONDS} s"
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
    scheduler, stats = engine.scheduler, engine.stats()
    assert stats.blocks_free == stats.blocks_total
    assert len(scheduler._kv_cache._free_rows) == engine.config.scheduler.max_num_seqs
    assert (scheduler.num_running, scheduler.num_waiting, scheduler.num_online, scheduler.has_work) == (0, 0, 0, False)
    output = engine.output
    of_requests = (engine._outbox._accepted, engine.journal.live, output.latencies._records)
    assert not any((*of_requests, output._told, output._prompt, output._pools))
    if isinstance(engine.block_events, BlockEvents):
        index: Any = engine.block_events._sink
        assert index.keys == set(full_blocks(engine))
    if isinstance(engine.offload, Offload):
        for _ in range(100):  # a fetch of one that has ended may be under way, and ends with the next answer
            if engine.offload.busy:
                engine.offload.wait(0.1)
                engine.offload.poll()
        store = engine.offload.tier.store
        assert (store.num_reserved, +store._pins, engine.offload.busy) == (0, Counter(), False)


@dataclass
class Index(BlockEventSink):
    """Which blocks the cache holds, by what it publishes."""

    keys: set[bytes] = field(default_factory=set)

    def publish(self, events: abc.Sequence[BlockEvent]) -> None:
        for event in events:
            if isinstance(event, AllBlocksCleared):
                self.keys.clear()
            elif isinstance(event, BlockRemoved):
                self.keys.remove(event.key)
            else:
                self.keys.add(event.key)

    def stats(self) -> KVEventStats:
        return KVEventStats()

    def close(self, seconds: float) -> None:
        del seconds


def plain_engine() -> Engine:
    return make_engine(config=CONFIG, events=Index())


def offloading_engine(directory: Path | None = None) -> Engine:
    """``directory``: of a KV tier behind host memory."""
    tier = None if directory is None else DirectoryAddress(directory)
    offload = OffloadConfig(40, "transfer", tier=tier, tier_bytes=10**8)
    return make_engine(config=replace(CONFIG, offload=offload))


def streaming_engine() -> Engine:
    config: EngineConfig = streamed("plan")
    return build_engine(SMALL, config, dict(params_of(SMALL)), frozenset({EOS}), compiled=compiled_layers(SMALL))


@dataclass
class Client:
    """Follows requests in an event loop, and notes every item that comes, also after the end."""

    engine: AsyncEngine
    items: dict[str, list[TokenEvent | Exception]] = field(default_factory=dict)

    async def serve(self, todo: list[Request]) -> None:
        """Until each has its end; raises TimeoutError where one has none."""
        await asyncio.wait_for(asyncio.gather(*map(self._follow, todo)), 120)
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
