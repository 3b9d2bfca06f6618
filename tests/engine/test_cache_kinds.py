"""Engines whose layers with a window have blocks of their own answer with the bits of one kind of cache."""

from dataclasses import replace
from pathlib import Path

import pytest

from jaxgen.cache.cache_format import kind_formats
from jaxgen.cache.window_manager import blocks_for
from jaxgen.core.config import CacheConfig, EngineConfig, OffloadConfig
from jaxgen.core.request import Request, TokenEvent
from jaxgen.core.tier_address import DirectoryAddress
from jaxgen.engine.engine import Engine
from jaxgen.engine.start.build import build_engine
from jaxgen.kernels.choice import REFERENCE, native
from jaxgen.kernels.kernels import Kernels
from jaxgen.offload.build import Offload
from jaxgen.offload.tiers.kv_tier import prefetcher
from tests.support.engines import compiled_step, request, run
from tests.support.golden_runs import SMALL, load_golden
from tests.support.goldens import golden_answers
from tests.support.native import native as library

ONE = replace(SMALL, cache=CacheConfig(8, 24))
"""Blocks for a sequence and a half of the longest."""


def apart(name: str) -> EngineConfig:
    """With the fewest blocks for layers with a window with which all rows run."""
    _, kind = load_golden(name)[0].cache_kinds
    assert kind.window is not None
    least = blocks_for(ONE.scheduler.max_num_seqs, kind.window, ONE.cache.block_size, ONE.scheduler)
    return replace(ONE, cache=replace(ONE.cache, windows=(kind.window,), window_blocks=(least,)))


def asked(name: str, turn: int) -> list[Request]:
    """Prompts of up to six windows, two of which begin alike; in a second turn they are longer by a few tokens."""
    prompts = [tuple(answer.prompt) for answer in golden_answers(name)]
    prompts[-1] = prompts[-1][:80]
    prompts.append((*prompts[-1][:64], *prompts[0][:9]))
    sampling = {"max_tokens": 40, "temperature": 0.0, "ignore_eos": True, "logprobs": 2}
    return [request(f"{turn}.{i}", (*one, *range(4 * turn)), **sampling) for i, one in enumerate(prompts)]


def built(name: str, limits: EngineConfig, kernels: Kernels) -> Engine:
    model, params = load_golden(name)
    compiled = compiled_step(model, limits, kernels)
    return build_engine(model, limits, params, frozenset(), compiled=compiled)


def answered(name: str, limits: EngineConfig, kernels: Kernels) -> tuple[Engine, dict[str, list[TokenEvent]]]:
    """Answers in two turns, and the engine, which is idle then."""
    engine = built(name, limits, kernels)
    events = run(engine, asked(name, 0)) | run(engine, asked(name, 1))
    assert all(pool.num_free == pool.num_blocks for pool in engine.scheduler.pools)
    return engine, events


def told(events: dict[str, list[TokenEvent]]) -> dict[str, list[object]]:
    """Tokens and their log-probabilities; how much of a prompt was cached may differ."""
    return {
        name: [(event.token, event.logprobs, event.finish_reason) for event in of_one]
        for name, of_one in events.items()
    }


@pytest.mark.full
@pytest.mark.parametrize(("name", "kernels"), [("gemma4_moe", "native"), ("gemma4_shared", "XLA")])
def test_layers_of_several_shapes_keep_their_bits(name: str, kernels: str) -> None:
    """Against an engine with room for all, where blocks of windows are found and used again at other times."""
    chosen = native(library()) if kernels == "native" else REFERENCE
    tight = apart(name)
    most = ONE.scheduler.max_num_seqs * -(-ONE.scheduler.max_model_len // ONE.cache.block_size)
    roomy = replace(tight, cache=replace(tight.cache, num_blocks=most, window_blocks=(most + 8,)))
    _, want = answered(name, roomy, chosen)
    engine, found = answered(name, tight, chosen)
    assert told(found) == told(want)
    stats = engine.stats()
    assert stats.preemptions > 0
    assert stats.prefix_hits > 0


@pytest.mark.full
@pytest.mark.parametrize("name", ["gpt_oss", "gemma4_shared"])
def test_blocks_of_all_kinds_come_back_from_host_memory_and_a_tier(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request after another, twice: the others have pushed out what each needs; then together, with preemptions;
    and once more after a restart."""
    monkeypatch.setattr(prefetcher, "MAX_WAIT", 600.0)
    chosen, tight, todo = REFERENCE, apart(name), asked(name, 0)
    want = told(run(built(name, tight, chosen), todo))
    offload = OffloadConfig(10_000, "transfer", tier=DirectoryAddress(tmp_path), tier_bytes=10**9)
    engine = built(name, replace(tight, offload=offload), chosen)
    assert isinstance(engine.offload, Offload)
    for turn in range(2):
        for one in todo:
            assert told(run(engine, [one])) == {one.request_id: want[one.request_id]}, turn
    assert told(run(engine, todo)) == want
    found, (full, _) = engine.offload.stats(), kind_formats(load_golden(name)[0], tight.cache)
    assert found.restored_tokens > 100
    assert found.restored_bytes > found.restored_tokens * full.kv_bytes, "blocks of windows come too"
    assert (found.failed_restores, engine.stats().compilations_after_ready) == (0, 0)
    assert engine.stats().preemptions > 0
    engine.close()
    again = built(name, replace(tight, offload=offload), chosen)
    for one in todo:
        assert told(run(again, [one])) == {one.request_id: want[one.request_id]}
    stats = again.stats()
    assert stats.kv_tier is not None
    assert stats.kv_tier.hit_blocks > 10
    assert stats.kv_tier.read_blocks > stats.kv_tier.hit_blocks, "blocks of windows too"
    assert stats.prompt_tokens < sum(len(one.prompt) for one in todo) // 2
    again.close()


@pytest.mark.parametrize(
    ("name", "kernels"),
    [
        pytest.param("gemma3", "native", marks=pytest.mark.shipped),
        pytest.param("gpt_oss", "XLA", marks=pytest.mark.full),
    ],
)
def test_answers_have_the_bits_of_one_kind(name: str, kernels: str) -> None:
    """Prompts cut in chunks, found prefixes, preemptions, and answers of several windows' length."""
    chosen = native(library()) if kernels == "native" else REFERENCE
    _, want = answered(name, ONE, chosen)
    engine, found = answered(name, apart(name), chosen)
    assert told(found) == told(want)
    stats = engine.stats()
    assert stats.preemptions > 0
    assert stats.prefix_hits > 0
