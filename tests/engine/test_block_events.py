"""What an engine tells of its cache's blocks: an index kept from it is the cache, whatever ran."""

import random
from collections import abc
from dataclasses import dataclass, field, replace

import pytest

from jaxgen.cache.block_log import BlockEvent, BlockStored
from jaxgen.core.request import Request
from jaxgen.core.stats import KVEventStats
from jaxgen.engine.block_events import NO_EVENTS
from jaxgen.engine.engine import Engine
from jaxgen.kv_events.wire import block_hash, encode
from tests.support.block_index import BlockIndex
from tests.support.engines import engine_config, full_blocks, make_engine, request, run


@dataclass
class Sink:
    """Keeps an index as a subscriber does."""

    index: BlockIndex = field(default_factory=BlockIndex)
    batches: int = 0
    closed: bool = False

    def publish(self, events: abc.Sequence[BlockEvent]) -> None:
        assert events, "no empty batch is sent"
        self.index.apply(encode(events, 1.8e9))
        self.batches += 1

    def stats(self) -> KVEventStats:
        return KVEventStats(batches=self.batches)

    def close(self, seconds: float) -> None:
        self.closed = True


def told(**fields: int) -> tuple[Engine, Sink]:
    sink = Sink()
    return make_engine(config=engine_config(**fields), events=sink), sink


def held(engine: Engine) -> set[int]:
    """What the cache can find."""
    return {block_hash(key) for key in full_blocks(engine)}


def workload(rng: random.Random, count: int) -> list[Request]:
    """Prompts that begin alike in several ways, some with a salt, so many that blocks are evicted and preempted."""
    stems = [[rng.randrange(3, 300) for _ in range(rng.randrange(8, 60))] for _ in range(4)]
    return [
        replace(
            request(
                f"r{i}",
                [*rng.choice(stems), *(rng.randrange(3, 300) for _ in range(rng.randrange(1, 30)))],
                max_tokens=rng.randrange(1, 40),
                temperature=1.0,
            ),
            cache_salt=rng.choice([None, None, "tenant"]),
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("seed", range(3))
def test_an_index_of_events_is_the_cache(seed: int) -> None:
    rng = random.Random(seed)
    engine, sink = told(max_model_len=128, num_blocks=24)
    requests = workload(rng, 40)

    def each_step(step: int) -> None:
        assert sink.index.paths.keys() <= sink.index.known.keys()
        if step % 7 == 3:
            engine.abort(f"r{rng.randrange(40)}")

    run(engine, requests, each_step)
    assert engine.stats().preemptions + engine.stats().blocks_cached > 0
    assert set(sink.index.paths) == held(engine)
    assert len(sink.index.known) > len(sink.index.paths), "some were evicted"
    assert engine.stats().kv_events == KVEventStats(batches=sink.batches)


def test_a_router_that_hashes_tokens_itself_knows_what_a_prompt_will_find() -> None:
    engine, sink = told()
    first, salted = request("a", range(3, 40), max_tokens=1), request("b", range(3, 40), max_tokens=1)
    run(engine, [first, replace(salted, cache_salt="s")])
    for salt in (None, "s", "other"):
        again = replace(request(f"again-{salt}", [*range(3, 30), *range(200, 220)], max_tokens=1), cache_salt=salt)
        found = sink.index.matched(again.prompt, salt)
        assert found == (0 if salt == "other" else 24)
        beginning = 3 if found else 0  # of the next block, which no event tells
        assert run(engine, [again])[again.request_id][0].cached_tokens == found + beginning


def test_a_block_is_told_of_only_when_its_step_has_ended() -> None:
    engine, sink = told()
    engine.add(request("a", range(3, 19), max_tokens=1))
    engine.step()
    assert held(engine)
    assert sink.batches == 0
    engine.step()
    assert set(sink.index.paths) == held(engine)


def test_equal_blocks_of_two_answers_are_told_of_once() -> None:
    """Both sequences sample the same tokens at the same time, so each fills blocks of its own with the same content."""
    stored: list[bytes] = []

    class Counting(Sink):
        def publish(self, events: abc.Sequence[BlockEvent]) -> None:
            stored.extend(event.key for event in events if isinstance(event, BlockStored))
            super().publish(events)

    engine = make_engine(config=engine_config(), events=Counting())
    run(engine, [request(name, range(3, 12), max_tokens=30, temperature=0.0, ignore_eos=True) for name in "ab"])
    assert len(stored) > 9 // engine.config.cache.block_size, "blocks of answers are among them"
    assert len(set(stored)) == len(stored)


def test_a_failed_step_clears_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, sink = told()
    run(engine, [request("a", range(3, 40), max_tokens=1)])
    assert sink.index.paths
    with monkeypatch.context() as patch:
        patch.setattr(engine.scheduler, "complete", lambda *_: 1 / 0)
        run(engine, [request("b", range(100, 140), max_tokens=1)])
    assert sink.index.paths == {}
    run(engine, [request("c", range(3, 40), max_tokens=1)])
    assert set(sink.index.paths) == held(engine) != set()


def test_the_sink_is_closed_with_the_engine() -> None:
    engine, sink = told()
    engine.close()
    assert sink.closed


def test_nothing_is_noted_without_a_sink() -> None:
    engine = make_engine()
    run(engine, [request("a", range(3, 40), max_tokens=1)])
    assert engine.block_events is NO_EVENTS
    assert engine.scheduler.pool._watchers == ()
    assert engine.stats().kv_events is None
