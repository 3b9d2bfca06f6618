"""An engine whose cache is in host memory: the answers of one that has it on the device, to the bit."""

from dataclasses import replace
from functools import cache
from statistics import median
from typing import Any

import numpy as np
import pytest

from jaxgen.core.config import DType, EngineConfig, ModelConfig, OffloadPolicy, StreamConfig
from jaxgen.core.request import FinishReason, Request, TokenEvent
from jaxgen.core.stats import OffloadStats
from jaxgen.engine.engine import Engine
from jaxgen.engine.runners import Compiled, compile_for
from jaxgen.kernels.choice import REFERENCE, Kernels, native
from jaxgen.layerwise.layer_store import LayerStore
from jaxgen.layerwise.model_runner import LayerwiseRunner
from tests.models.test_layers_apart import OPT
from tests.support.engines import LLAMA, embed, embeddings, engine_config, make_engine, params_of, request, run
from tests.support.native import native as library

BLOCK = 8
MHA = replace(LLAMA, num_kv_heads=4)
"""Its layer inputs are half the bytes of K and V."""
CONFIG = engine_config(token_budget=20, max_num_seqs=3, max_model_len=96, block_size=BLOCK, num_blocks=14)
RNG = np.random.default_rng(5)
PROMPTS = [RNG.integers(3, 300, size=n).tolist() for n in (1, 7, 40, 24, 33)]


def requests(letters: str, **changes: Any) -> list[Request]:
    params: dict[str, Any] = {"max_tokens": 12, "ignore_eos": True, "logprobs": 3, "seed": 4, **changes}
    return [request(f"{n}{i}", PROMPTS["abcde".index(n)], **params) for i, n in enumerate(letters)]


def streamed(policy: OffloadPolicy = "transfer", bandwidth: float | None = None) -> EngineConfig:
    num_open = LayerStore.most_open(20, 3, BLOCK) + 2
    return replace(CONFIG, streaming=StreamConfig(num_open, 3, policy != "transfer", policy, bandwidth))


@cache
def compiled_for(model: ModelConfig, config: EngineConfig, kernels: Kernels) -> Compiled:
    return compile_for(model, config, kernels)


def engine_of(
    policy: OffloadPolicy = "transfer",
    *,
    model: ModelConfig = MHA,
    kernels: Kernels = REFERENCE,
    bandwidth: float | None = None,
    narrow_width: int | None = None,
) -> Engine:
    config = replace(streamed(policy, bandwidth), narrow_width=narrow_width)
    same_programs = replace(streamed("transfer" if policy == "transfer" else "plan"), narrow_width=narrow_width)
    compiled = compiled_for(model, same_programs, kernels)
    return Engine(model, config, dict(params_of(model)), frozenset(), compiled=compiled)


def device_of(engine: Engine) -> LayerwiseRunner:
    assert isinstance(engine._device, LayerwiseRunner)
    return engine._device


def stats(engine: Engine) -> OffloadStats:
    found = engine.stats().offload
    assert found is not None
    return found


def answers(events: dict[str, list[TokenEvent]]) -> dict[str, list[TokenEvent]]:
    return {name: [replace(event, cached_tokens=None) for event in of_one] for name, of_one in events.items()}


def expected(
    wanted: list[Request], model: ModelConfig = MHA, kernels: Kernels = REFERENCE
) -> dict[str, list[TokenEvent]]:
    """With the cache on the device, and room for all."""
    return answers(
        run(make_engine(model, replace(CONFIG, cache=replace(CONFIG.cache, num_blocks=64)), kernels), wanted)
    )


@pytest.mark.parametrize("policy", ["transfer", "plan", "recompute"])
@pytest.mark.parametrize("model", [MHA, OPT], ids=["llama", "opt"])
def test_answers_have_the_same_bits(policy: OffloadPolicy, model: ModelConfig) -> None:
    """Some are preempted; the second turn finds prefixes that several share."""
    turns = [requests("abcde"), requests("ccdeab")]
    alone = [expected(wanted, model) for wanted in turns]
    engine = engine_of(policy, model=model)
    for wanted, answer in zip(turns, alone, strict=True):
        assert answers(run(engine, wanted)) == answer
    assert engine.stats().preemptions > 0
    assert engine.stats().prefix_hits > 0
    assert engine.stats().compilations_after_ready == 0
    found = stats(engine)
    assert found.host_hit_tokens == found.planned_restore_tokens + found.planned_project_tokens > 0
    assert (found.planned_project_tokens == 0) == (policy == "transfer") or policy == "plan"
    assert (found.planned_restore_tokens == 0) == (policy == "recompute") or policy == "plan"
    assert found.restored_bytes > 0
    assert found.host_blocks == engine.stats().blocks_cached


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_native_kernels_and_packed_weights(dtype: DType, caplog: pytest.LogCaptureFixture) -> None:
    model, kernels = replace(MHA, dtype=dtype), native(library())
    wanted = requests("abcde")
    alone = expected(wanted, model, kernels)
    engine = engine_of("recompute", model=model, kernels=kernels)
    assert answers(run(engine, wanted)) == alone
    assert engine.stats().kernels == kernels.name
    assert not [record for record in caplog.records if "differ" in record.getMessage()], "proven at start"


def test_a_projection_of_other_bits_is_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    from jaxgen.models.layers import Attention

    honest = Attention.projected

    def off(self: Any, x: Any, num_tokens: Any, angles: Any) -> Any:
        q, k, v = honest(self, x, num_tokens, angles)
        return q, k, v * (1 + 1e-6) if len(x) == 3 * BLOCK else v

    monkeypatch.setattr(Attention, "projected", off)
    compiled_for.cache_clear()
    engine_of("plan")
    compiled_for.cache_clear()
    assert [record for record in caplog.records if "differ from those of a step by rounding" in record.getMessage()]


def test_the_narrow_program_runs_here_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is compared while blocks are filled, by steps that are run twice."""
    monkeypatch.setattr("jaxgen.engine.narrow.CLEARLY_FASTER", np.inf)
    wanted = requests("abcde")
    engine = engine_of("plan", narrow_width=8)
    assert answers(run(engine, wanted)) == expected(wanted)
    assert engine.stats().narrow_steps > 10


def test_only_what_the_window_shows_is_streamed() -> None:
    model = replace(MHA, sliding_window=2 * BLOCK)
    wanted = requests("cde")
    engine = engine_of(model=model)
    assert answers(run(engine, wanted)) == expected(wanted, model)
    windowed = stats(engine).restored_tokens
    engine = engine_of()
    run(engine, wanted)
    assert 0 < windowed < stats(engine).restored_tokens


def test_a_prompt_that_is_passed_over_goes_on_where_it_was() -> None:
    """In the middle of a block, which stays open while another's prompt takes the whole step."""
    (long, urgent), engine = requests("cd"), engine_of()
    expected = run(make_engine(model=MHA, config=CONFIG), [long, urgent])
    engine.add(long)
    engine.step()
    engine.add(replace(urgent, priority=-1))
    events: dict[str, list[TokenEvent]] = {long.request_id: [], urgent.request_id: []}
    while engine.has_work:
        for event in engine.step():
            events[event.request_id].append(event)
    assert events == expected


def test_embeddings_have_the_same_bits() -> None:
    """Beside completions, whose contexts are streamed."""
    wanted = [embed(f"e{i}", prompt) for i, prompt in enumerate(PROMPTS)]
    device = make_engine(MHA, replace(CONFIG, cache=replace(CONFIG.cache, num_blocks=64)))
    alone = [embeddings(run(device, [one])) for one in wanted]
    found = embeddings(run(engine_of(), [*requests("abc"), *wanted]))
    assert [{name: vector} for name, vector in sorted(found.items())] == alone


def test_an_abort_leaves_nothing() -> None:
    engine = engine_of("plan", bandwidth=2e6)
    first, others = requests("e")[0], requests("bcd")
    engine.add(first)
    for _ in range(4):
        engine.step()
    assert engine.abort(first.request_id)
    assert answers(run(engine, others)) == expected(others)
    assert engine.stats().blocks_free == CONFIG.cache.num_blocks


@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_copy_that_fails_ends_those_that_run(monkeypatch: pytest.MonkeyPatch, direction: str) -> None:
    """Who waits for a row is answered, and so is who comes later."""
    engine = engine_of("plan")
    first, waiting = requests("ddb", max_tokens=14), requests("ac", max_tokens=5)
    alone = expected(waiting)
    for one in (*first, *waiting):
        engine.add(one)
    while engine.stats().num_running < len(first):
        assert not [event for event in engine.step() if event.finish_reason]
    link = getattr(device_of(engine).stream, direction)

    def refuse(_: Any) -> Any:
        raise MemoryError("no pinned memory")

    events: list[TokenEvent] = []
    with monkeypatch.context() as patch:
        patch.setattr(link._state, "copy", refuse)
        while not any(event.finish_reason for event in events):
            events += engine.step()
    failed = {event.request_id for event in events if event.finish_reason is FinishReason.ERROR}
    assert failed == {one.request_id for one in first}
    rest: dict[str, list[TokenEvent]] = {}
    while engine.has_work:
        for event in engine.step():
            rest.setdefault(event.request_id, []).append(event)
    assert answers(rest) == alone
    again = requests("cdeab")
    assert answers(run(engine, again)) == expected(again)


def test_the_planner_learns_that_the_link_is_slower() -> None:
    """Nobody tells it: it predicts what the link did before, and is wrong for a while. A step takes 40 ms and
    more, nearly all of it on the link."""
    engine = engine_of(bandwidth=1e6)
    engine.add(requests("c", max_tokens=38)[0])
    errors: list[float] = []

    def step() -> None:
        before = stats(engine)
        engine.step()
        after = stats(engine)
        actual = after.restore_seconds - before.restore_seconds
        if actual:
            errors.append(abs(after.predicted_seconds - before.predicted_seconds - actual) / actual)

    while engine.stats().generation_tokens < 10:
        step()
    before, errors = median(errors), []
    device_of(engine).stream.up.bytes_per_second = 1e6 / 3
    while engine.has_work:
        step()
    # A busy machine adds to single steps what no planner can know: hence the wide margins.
    late = median(errors[-5:])
    assert before < 0.5
    assert median(errors[:3]) > max(0.4, 2 * late), "at first a third of what it takes"
    assert late < 0.3
    assert stats(engine).idle_seconds > 0, "on such a link the device waits"
