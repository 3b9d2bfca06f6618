"""Engines of a model of which layers have states: however a sequence is computed, its bits are the same."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from jaxgen.core.config import EngineConfig, OffloadConfig
from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.identity import Identity
from jaxgen.core.request import Request, TokenEvent
from jaxgen.core.tier_address import DirectoryAddress
from jaxgen.engine.engine import Engine
from jaxgen.offload.tiers.kv_tier import prefetcher
from jaxgen.weights.files.model_files import ModelFiles
from jaxgen.weights.huggingface.config import read_model_config
from tests.support.engines import engine_config, make_engine, request, run, tokens
from tests.support.goldens import GOLDENS


def read(name: str) -> DecoderConfig:
    model = read_model_config(ModelFiles(GOLDENS / name))
    assert isinstance(model, DecoderConfig)
    return model


QWEN = read("qwen3_5")
assert QWEN.delta is not None
MODELS = {
    "short convolutions": read("lfm2"),
    # spans that end within prompts
    "gated delta nets": replace(QWEN, delta=replace(QWEN.delta, span=16)),
}
MODEL = MODELS["short convolutions"]
EACH = ["short convolutions", pytest.param("gated delta nets", marks=pytest.mark.full)]
RNG = np.random.default_rng(0)
SHARED = RNG.integers(3, 128, size=20).tolist()
PROMPTS = [
    RNG.integers(3, 128, size=3).tolist(),
    [*SHARED, *RNG.integers(3, 128, size=11).tolist()],
    [*SHARED, *RNG.integers(3, 128, size=30).tolist()],
    [*SHARED, *RNG.integers(3, 128, size=4).tolist()],
    RNG.integers(3, 128, size=41).tolist(),
]
Answers = dict[str, list[tuple[TokenEvent, int | None]]]


def config(*, num_snapshots: int = 12, prefix_caching: bool = True) -> EngineConfig:
    plain = engine_config(max_model_len=128)
    return replace(
        plain,
        cache=replace(plain.cache, num_snapshots=num_snapshots),
        scheduler=replace(plain.scheduler, prefix_caching=prefix_caching),
    )


def engine(model: str = "short convolutions", *, prefix_caching: bool = True) -> Engine:
    return make_engine(MODELS[model], config(prefix_caching=prefix_caching))


def requests() -> list[Request]:
    return [
        request(f"r{number}", prompt, max_tokens=14, logprobs=3, ignore_eos=True, seed=number, temperature=number % 2)
        for number, prompt in enumerate(PROMPTS)
    ]


def bits(events: dict[str, list[TokenEvent]]) -> dict[str, list[TokenEvent]]:
    """The events without what the prefix cache had."""
    return {name: [replace(event, cached_tokens=None) for event in of_one] for name, of_one in events.items()}


@cache
def alone(model: str) -> dict[str, list[TokenEvent]]:
    """Each by itself, with nothing kept of the others."""
    engine_ = engine(model, prefix_caching=False)
    return bits({name: events for one in requests() for name, events in run(engine_, [one]).items()})


@pytest.mark.shipped
@pytest.mark.parametrize("model", EACH)
def test_a_repeated_request_begins_at_a_snapshot_with_the_same_bits(model: str) -> None:
    engine_, again = engine(model), dict[str, list[TokenEvent]]()
    for _ in range(2):
        for one in requests():
            again |= run(engine_, [one])
        assert bits(again) == alone(model)
    assert [again[f"r{number}"][0].cached_tokens for number in range(5)] == [0, 24, 48, 16, 40]


@pytest.mark.shipped
@pytest.mark.parametrize("model", EACH)
def test_bits_are_the_same_cut_at_random_in_company_preempted_and_after_evictions(model: str) -> None:
    engine_, rng = engine(model), np.random.default_rng(1)
    counters = engine_.scheduler.counters

    def disturb(step: int) -> None:
        engine_.scheduler.limit_prompts(int(rng.integers(1, 17)))
        running = engine_.scheduler.policy.queues.running
        if step % 9 == 8 and len(running) > 1:
            engine_.scheduler._planner._preempt(running[-1])

    for _ in range(3):
        assert bits(run(engine_, requests(), disturb)) == alone(model)
    assert counters.preemptions > 5
    assert counters.snapshots_evicted > 5
    snapshots = engine_.stats().snapshots
    assert snapshots is not None
    assert 0 < snapshots.held <= snapshots.total == 12
    assert snapshots.recomputed_tokens > 0
    assert engine_.stats().compilations_after_ready == 0


@pytest.mark.shipped
@pytest.mark.parametrize("model", EACH)
def test_states_come_back_from_host_memory_and_after_a_restart(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device has places for two, which is too few for anybody to find one twice."""
    monkeypatch.setattr(prefetcher, "MAX_WAIT", 600.0)  # the processor is shared with other work
    offload = OffloadConfig(128, "transfer", tier=DirectoryAddress(tmp_path), tier_bytes=10**9)
    limits, found = replace(config(num_snapshots=2), offload=offload), dict[str, list[TokenEvent]]()

    def started() -> Engine:
        return make_engine(MODELS[model], limits, identity=Identity({"weights": "some"}))

    first = started()
    for times in range(2):
        for one in requests():
            found |= run(first, [one])
        assert bits(found) == alone(model)
        assert not times or [found[f"r{number}"][0].cached_tokens for number in range(5)] == [0, 24, 48, 16, 40]
    chats, again = [tuple(SHARED), tuple(SHARED[::-1])], list[int]()
    for turn in range(5):
        for number, prompt in enumerate(chats):
            (events,) = run(
                first, [request(f"{number}", prompt, max_tokens=7, temperature=0.0, ignore_eos=True)]
            ).values()
            if turn and not number:
                again.append(len(prompt) - (events[0].cached_tokens or 0) - 4)
            chats[number] = (*prompt, *tokens(events), 5, 6, 7)
    assert again == [2, 4, 6, 0], "less than a block, as where the device has places for all"
    offloaded = first.stats().offload
    assert offloaded is not None
    assert offloaded.restored_snapshots > 10
    assert offloaded.failed_restores == offloaded.lost_snapshots == first.stats().compilations_after_ready == 0
    first.close()
    second = started()
    for one in requests():
        found |= run(second, [one])
    assert bits(found) == alone(model)
    assert [found[f"r{number}"][0].cached_tokens for number in range(5)] == [0, 24, 48, 16, 40]
    second.close()


def test_a_rehearsed_step_leaves_the_states() -> None:
    """Else the narrow program would be compared with the wide one from another state."""
    engine_ = make_engine(MODEL, replace(config(), run_ahead=False))
    engine_.add(request("a", PROMPTS[1], max_tokens=9, ignore_eos=True))
    for _ in range(4):
        engine_.step()
    plan, runner = engine_.scheduler.schedule(), engine_.runner
    assert plan.decodes_only
    with runner.rehearsal():
        rehearsed = runner.run(plan)
    np.testing.assert_array_equal(np.asarray(rehearsed.hidden)[0], np.asarray(runner.run(plan).hidden)[0])
