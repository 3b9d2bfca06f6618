"""Contexts that come back as layer inputs: the tokens of an undisturbed run, and how near K and V are to what was."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgen.core.config import CacheConfig, EngineConfig, OffloadConfig
from jaxgen.core.model_config import ModelConfig
from jaxgen.core.request import Request, TokenEvent
from jaxgen.core.stats import OffloadStats
from jaxgen.engine.engine import Engine
from jaxgen.kernels.choice import REFERENCE, REFERENCE_GPU
from jaxgen.kernels.choice import native as native_kernels
from jaxgen.kernels.kernels import Kernels
from jaxgen.models.kv_cache import KVCache, init_cache
from jaxgen.models.model import abstract_params
from jaxgen.offload.build import Offload, context_cost, make_planner
from jaxgen.offload.planning.rates import RateMeter
from jaxgen.offload.tiers.offload_tier import Split
from jaxgen.offload.transfer.projection import project_blocks
from jaxgen.runner.model_runner import ModelRunner
from jaxgen.runner.program import Program, int32
from jaxgen.scheduling.cost_model import StepSample
from jaxgen.scheduling.step_time import StepTimeEstimator
from tests.models.test_layers_apart import OPT
from tests.support.engines import (
    LLAMA,
    engine_config,
    full_blocks,
    make_engine,
    request,
    run,
    tokens,
)
from tests.support.failing_copies import fail_first_copy_back, slow_links
from tests.support.native import native
from tests.support.restore_cases import steps_of

BLOCK = 8
MHA = replace(LLAMA, num_kv_heads=LLAMA.num_heads)
MODELS = {
    "llama": MHA,
    "opt": OPT,
    "opt-350m": replace(OPT, placement="post_sum", final_norm=False, embed_size=16),
    "llama-bfloat16": replace(MHA, dtype="bfloat16"),
    "llama-int8": replace(MHA, dtype="bfloat16", kv_dtype="int8"),
}
KERNELS = {"scanned": REFERENCE, "apart": REFERENCE_GPU}
TOLERANCE = {"float32": 1e-5, "bfloat16": 2**-7}
"""Of the largest value: how far projected K and V may be from those a step wrote."""
RNG = np.random.default_rng(3)
PROMPTS = [RNG.integers(3, 300, size=n).tolist() for n in (97, 60, 41, 100, 75, 88)]

Ways = Callable[[int], tuple[int, int]]
WAYS: dict[str, Ways] = {
    "recomputed": lambda blocks: (blocks, 0),
    "projected": lambda blocks: (0, blocks),
    "copied": lambda blocks: (0, 0),
    "each": lambda blocks: (blocks // 3, blocks // 3),
    "projected and copied": lambda blocks: (0, blocks // 2),
}
"""Blocks -> how many are recomputed, and projected."""


def requests(names: str, **changes: Any) -> list[Request]:
    """Of each letter's prompt; logprobs show every bit."""
    params = {"max_tokens": 10, "temperature": 0.0, "ignore_eos": True, "logprobs": 5, **changes}
    return [request(f"{name}{i}", PROMPTS["abcdef".index(name)], **params) for i, name in enumerate(names)]


def small(host_blocks: int = 100) -> EngineConfig:
    """Two of the longer prompts fit into the cache."""
    config = engine_config(num_blocks=32, block_size=BLOCK)
    offload = OffloadConfig(host_blocks, "transfer")
    return replace(config, cache=replace(config.cache, keep_inputs=True), offload=offload)


def engine_with(
    way: str, model: ModelConfig = MHA, kernels: Kernels = REFERENCE, config: EngineConfig | None = None
) -> Engine:
    engine = make_engine(model, config or small(), kernels)
    restore_by(engine, way)
    return engine


def restore_by(engine: Engine, way: str) -> None:
    """Contexts come back in this way, where the host has all inputs; else what would be projected is copied."""
    assert isinstance(engine.offload, Offload)

    def planner(blocks: int, start: int, free_tokens: int, num_waiting: int, inputs_known: bool) -> Split:
        recomputed, projected = WAYS[way](blocks)
        return Split(recomputed, 0.0, projected if inputs_known else 0)

    engine.offload.tier.planner = planner


ALONE: dict[str, list[TokenEvent]] = {}


def alone(wanted: list[Request]) -> dict[str, list[TokenEvent]]:
    """Each request alone, without a host store."""
    for one in wanted:
        if repr(one) not in ALONE:
            ALONE[repr(one)] = plain(run(make_engine(MHA), [one])[one.request_id])
    return {one.request_id: ALONE[repr(one)] for one in wanted}


def plain(events: list[TokenEvent]) -> list[TokenEvent]:
    return [replace(event, cached_tokens=None) for event in events]


def counters(engine: Engine) -> OffloadStats:
    assert isinstance(engine.offload, Offload)
    return engine.offload.stats()


def drain(engine: Engine) -> None:
    while engine.has_work:
        assert engine.step() == []


def assert_near(found: list[TokenEvent], expected: list[TokenEvent], tolerance: float) -> None:
    assert tokens(found) == tokens(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.logprobs is not None
        assert other.logprobs is not None
        assert one.logprobs.logprob == pytest.approx(other.logprobs.logprob, abs=tolerance)


@pytest.fixture
def _few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five blocks are projected together, so that a context comes in several groups, of which the last is smaller."""
    monkeypatch.setattr("jaxgen.offload.planning.staging.PROJECTED_TOKENS", 5 * BLOCK)


@pytest.mark.usefixtures("_few_at_a_time")
@pytest.mark.parametrize(
    "way",
    [
        "each",
        # Parts of what comes in each way.
        *(
            pytest.param(way, marks=pytest.mark.full)
            for way in ("copied", "recomputed", "projected", "projected and copied")
        ),
    ],
)
def test_each_source_gives_the_tokens_of_an_undisturbed_run(way: str) -> None:
    turns = [requests(turn) for turn in ("abcdef", "abcdef", "fedcba")]  # each time the last ones push the first out
    expectations = [alone(wanted) for wanted in turns]
    engine = engine_with(way)
    for wanted, expected in zip(turns, expectations, strict=True):
        found = run(engine, wanted)
        for name, events in found.items():
            if "projected" in way or way == "each":
                assert_near(events, expected[name], 1e-4)
            else:
                assert plain(events) == expected[name]
    seen = counters(engine)
    assert (seen.projected_tokens > 0) is (way not in ("copied", "recomputed"))
    assert (seen.restored_tokens > 0) is (way not in ("projected", "recomputed"))
    assert (seen.planned_recompute_tokens > 0) is (way in ("recomputed", "each"))
    planned = seen.planned_recompute_tokens + seen.planned_project_tokens + seen.planned_restore_tokens
    assert planned == seen.host_hit_tokens > 0
    assert (seen.projected_tokens, seen.restored_tokens) == (seen.planned_project_tokens, seen.planned_restore_tokens)
    assert seen.restored_input_bytes == seen.projected_tokens * MHA.num_layers * MHA.hidden_size * 4
    assert engine.stats().compilations_after_ready == 0
    drain(engine)


def cache_of(engine: Engine) -> KVCache:
    assert isinstance(engine.runner, ModelRunner)
    return engine.runner.cache


def contents(engine: Engine) -> dict[bytes, tuple[np.ndarray, np.ndarray]]:
    """K and V, and inputs, of every block on the device that is known by a key."""
    cache = cache_of(engine)
    kv, inputs = np.asarray(cache.data, np.float32), np.asarray(cache.inputs, np.float32)
    return {key: (kv[block], inputs[block]) for key, block in full_blocks(engine).items()}


@pytest.mark.usefixtures("_few_at_a_time")
@pytest.mark.parametrize(
    ("model", "kernels"),
    [
        ("opt-350m", "scanned"),
        ("llama-int8", "native"),
        # Both families are above, and weights of layers apart in tests/models/test_layers_apart.py.
        pytest.param("opt", "apart", marks=pytest.mark.full),
        pytest.param("llama", "scanned", marks=pytest.mark.full),
        pytest.param("llama-bfloat16", "scanned", marks=pytest.mark.full),
        pytest.param("llama-bfloat16", "native", marks=pytest.mark.full),
        pytest.param("llama", "native", marks=pytest.mark.full),
        pytest.param("opt", "native", marks=pytest.mark.full),
    ],
)
def test_projected_blocks_are_what_was_computed_or_near(model: str, kernels: str) -> None:
    """To the bit with native kernels, whose sums do not depend on how many rows a product has. Inputs are copied."""
    config = MODELS[model]
    made = KERNELS[kernels] if kernels in KERNELS else native_kernels(native())
    engine = engine_with("projected", config, made)
    run(engine, requests("a", max_tokens=1))
    before = contents(engine)
    run(engine, requests("bcdef", max_tokens=1))
    run(engine, requests("a", max_tokens=1))
    after = contents(engine)
    assert counters(engine).projected_tokens == 96
    largest = max(np.abs(kv).max() for kv, _ in before.values())
    tolerance = 0.0 if kernels == "native" else TOLERANCE[config.dtype] * largest
    assert len(before) == 12
    for key, (kv, inputs) in before.items():
        assert np.abs(inputs).max(axis=2).all(), "of every token and layer"
        np.testing.assert_array_equal(after[key][1], inputs)
        np.testing.assert_allclose(after[key][0], kv, rtol=0, atol=tolerance)


def test_what_came_as_kv_alone_is_never_saved_with_inputs() -> None:
    engine = engine_with("copied")
    assert isinstance(engine.offload, Offload)
    store = engine.offload.tier.store

    def in_turn(way: str) -> dict[bytes, Any]:
        """What the host has of "a", which came back in this way, was forgotten by the host, and left again."""
        restore_by(engine, way)
        engine.add(requests("a", max_tokens=1)[0])
        engine.step()
        for key in original:
            del store._pieces[key]
        run(engine, requests("def", max_tokens=1))
        drain(engine)
        return {key: store[key].inputs for key in original}

    run(engine, requests("a", max_tokens=1))
    original = {key: inputs for key, (_, inputs) in contents(engine).items()}
    run(engine, requests("def", max_tokens=1))
    drain(engine)
    assert all(inputs is None for inputs in in_turn("copied").values())
    before = counters(engine).restored_tokens
    assert all(inputs is None for inputs in in_turn("projected").values()), "there was nothing to project"
    assert counters(engine).restored_tokens == before + 96
    for way in ("recomputed", "projected"):
        for key, inputs in in_turn(way).items():
            np.testing.assert_array_equal(inputs, original[key])


@pytest.mark.parametrize("way", [pytest.param("projected", marks=pytest.mark.full), "projected and copied"])
def test_an_abort_in_mid_transfer_leaves_nothing(way: str) -> None:
    """Its blocks are others' when the copy lands; these have a salt, so that they begin at once."""
    others = [replace(one, cache_salt="other") for one in requests("bd", max_tokens=40)]
    expected = alone(others)
    engine = engine_with(way)
    for name in "abcdef":  # the last push out what the first left on the device
        run(engine, requests(name))
    assert isinstance(engine.offload, Offload)
    slow_links(engine, 5e5)
    first = requests("a")[0]
    engine.add(first)
    engine.step()
    assert engine.offload.transfer.busy
    assert engine.abort(first.request_id)
    found = run(engine, others)
    assert {name: plain(events) for name, events in found.items()} == expected
    drain(engine)
    assert engine.offload.tier.store.num_reserved == 0
    assert counters(engine).projected_tokens == 0


def test_a_failing_copy_of_inputs_makes_that_request_compute_again(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = requests("abc")
    expected = alone(wanted)
    engine = engine_with("projected and copied")
    run(engine, requests("abcdef"))

    def inputs_come_first(pieces: Any) -> None:
        assert pieces[0].ndim == 3

    fail_first_copy_back(engine, monkeypatch, inputs_come_first)
    found = run(engine, wanted)
    for name, events in found.items():
        assert_near(events, expected[name], 1e-4)
    assert plain(found["a0"]) == expected["a0"], "to the bit: nothing of it was projected"
    assert counters(engine).failed_restores == 1
    assert counters(engine).projected_tokens > 0, "of the others"


def test_the_planner_projects_where_the_host_has_inputs_and_the_device_is_fast() -> None:
    config = small()
    assert config.offload is not None
    cost, meter = context_cost(MHA, config), RateMeter(steps_of(1e3))
    assert cost.x_bytes == cost.kv_bytes / 2 == MHA.num_layers * MHA.hidden_size * 4
    planner = make_planner(MHA, replace(config, offload=replace(config.offload, policy="plan")), meter)
    meter.restore.observe(1000, 1.0)
    assert planner(64, 0, 16, 0, True).project == 0, "how fast it projects is not known"
    meter.projection.observe(1e-12)
    split = planner(64, 0, 16, 0, True)
    assert (split.recompute, split.project) == (0, 64)
    assert split.seconds == pytest.approx(64 * BLOCK * cost.x_bytes / 1000, rel=1e-3)
    assert planner(64, 0, 16, 0, False).project == 0
    assert planner(70, 0, 16, 0, True).project == 64, "as many together as come together"
    meter.projection.value = 1e3
    assert planner(64, 0, 16, 0, True).project == 0


def test_the_projection_is_timed_at_start_where_inputs_are_kept() -> None:
    kept, not_kept = engine_with("copied").offload, make_engine(config=replace(small(), cache=CacheConfig(BLOCK, 32)))
    assert isinstance(kept, Offload)
    assert isinstance(not_kept.offload, Offload)
    assert kept.meter.projection.value
    assert not_kept.offload.meter.projection.value is None
    assert cache_of(not_kept).inputs is None
    assert cache_of(not_kept).inputs is None


def test_a_projection_writes_the_cache_in_place() -> None:
    """It takes no memory that grows with the cache."""
    model = replace(MHA, hidden_size=32, head_dim=8)

    def temporaries(num_blocks: int) -> int:
        cache = jax.eval_shape(lambda: init_cache(model, CacheConfig(BLOCK, num_blocks, keep_inputs=True)))
        piece = jax.ShapeDtypeStruct((model.num_layers, BLOCK, model.hidden_size), jnp.float32)
        shapes = abstract_params(model), cache, int32(2), int32(), int32(), piece, piece
        compiled = Program(partial(project_blocks, model), shapes, donated=(1,)).compile()
        analysis: Any = compiled.memory_analysis()
        return int(analysis.temp_size_in_bytes)

    assert temporaries(16) == temporaries(1024)


def test_the_projection_s_rate_is_learned_from_restores() -> None:
    engine = engine_with("projected")
    assert isinstance(engine.offload, Offload)
    meter = engine.offload.meter
    run(engine, requests("abcdef", max_tokens=1))
    meter.projection.value = before = 1e3
    run(engine, requests("abc", max_tokens=1))
    assert counters(engine).projected_tokens > 0
    assert 0 < meter.projection.value < before


def test_steps_behind_a_projection_do_not_teach_what_steps_take(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, behind, taught = engine_with("projected"), [], []
    learn, learn_rate = StepTimeEstimator.observe, RateMeter.observe_projection

    def observe(self: StepTimeEstimator, sample: StepSample, *, narrow: bool) -> None:
        taught.append(sample.seconds)
        learn(self, sample, narrow=narrow)

    def observe_projection(self: RateMeter, step: StepSample, projected: int) -> None:
        behind.append(step.seconds)
        learn_rate(self, step, projected)

    monkeypatch.setattr(StepTimeEstimator, "observe", observe)
    monkeypatch.setattr(RateMeter, "observe_projection", observe_projection)
    run(engine, requests("abcdef", max_tokens=4))
    run(engine, requests("abc", max_tokens=4))
    assert behind
    assert taught
    assert not set(behind) & set(taught)
