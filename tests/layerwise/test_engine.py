"""An engine whose cache is in host memory: the answers of one that has it on the device, to the bit."""

from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
import pytest

from jaxgen.core.config import OffloadPolicy
from jaxgen.core.model_config import ModelConfig
from jaxgen.core.request import FinishReason, Request, TokenEvent
from jaxgen.core.stats import OffloadStats
from jaxgen.engine.engine import Engine
from jaxgen.engine.start.build import build_engine
from jaxgen.engine.start.runners import compile_for
from jaxgen.kernels.choice import REFERENCE, REFERENCE_GPU, native
from jaxgen.kernels.kernels import Kernels
from jaxgen.layerwise.layer_pool import LayerPool
from jaxgen.layerwise.model_runner import CompiledLayers, LayerwiseRunner
from jaxgen.layerwise.start import start_streaming
from tests.models.test_layers_apart import OPT
from tests.support.engines import embed, embeddings, make_engine, params_of, request, run
from tests.support.native import native as library
from tests.support.streamed import CODES, CONFIG, OPT_350M, PROMPTS, SMALL, WINDOWED, compiled_layers, streamed


def requests(letters: str, **changes: Any) -> list[Request]:
    params: dict[str, Any] = {"max_tokens": 12, "ignore_eos": True, "logprobs": 3, "seed": 4, **changes}
    return [request(f"{n}{i}", PROMPTS["abcde".index(n)], **params) for i, n in enumerate(letters)]


def engine_of(
    policy: OffloadPolicy = "transfer",
    *,
    model: ModelConfig = SMALL,
    kernels: Kernels = REFERENCE,
    bandwidth: float | None = None,
    narrow_width: int | None = None,
    compiled: CompiledLayers | None = None,
) -> Engine:
    """Return an engine; ``bandwidth``: of its links, which it has measured."""
    config = streamed(policy, narrow_width)
    compiled = compiled or compiled_layers(model, policy, kernels, narrow_width)
    engine = build_engine(model, config, dict(params_of(model)), frozenset(), compiled=compiled)
    if bandwidth is not None:
        assert config.streaming is not None
        device = device_of(engine)
        device.stream.down.bytes_per_second = device.stream.up.bytes_per_second = bandwidth
        start_streaming(device, model, config, config.streaming)
    return engine


def device_of(engine: Engine) -> LayerwiseRunner:
    assert isinstance(engine.runner, LayerwiseRunner)
    return engine.runner


def stats(engine: Engine) -> OffloadStats:
    found = engine.stats().offload
    assert found is not None
    return found


def answers(events: dict[str, list[TokenEvent]]) -> dict[str, list[TokenEvent]]:
    return {name: [replace(event, cached_tokens=None) for event in of_one] for name, of_one in events.items()}


def expected(
    wanted: list[Request], model: ModelConfig = SMALL, kernels: Kernels = REFERENCE
) -> dict[str, list[TokenEvent]]:
    """With the cache on the device."""
    return answers(run(make_engine(model, CONFIG, kernels), wanted))


@pytest.mark.parametrize(
    ("model", "policy"),
    [
        pytest.param(SMALL, "transfer", id="llama-transfer", marks=pytest.mark.shipped),
        pytest.param(SMALL, "plan", id="llama-plan", marks=pytest.mark.shipped),
        pytest.param(SMALL, "recompute", id="llama-recompute"),  # by the programs of a plan
        # What they add are pairs of what the others have. A plan chooses between these two: both at once are
        # test_model_runner's, which has OPT-350m step by step.
        pytest.param(OPT_350M, "recompute", id="opt-350m-recompute", marks=pytest.mark.full),
        pytest.param(CODES, "recompute", id="int8-recompute", marks=pytest.mark.full),
        pytest.param(CODES, "transfer", id="int8-transfer", marks=pytest.mark.full),
        pytest.param(OPT, "transfer", id="opt-transfer", marks=pytest.mark.full),
    ],
)
def test_answers_have_the_same_bits(model: ModelConfig, policy: OffloadPolicy) -> None:
    """Some are preempted; the second turn finds prefixes that several share."""
    turns = [requests("abcde"), requests("ccdeab")]
    alone = [expected(wanted, model) for wanted in turns]
    engine = engine_of(policy, model=model)
    for wanted, answer in zip(turns, alone, strict=True):
        assert answers(run(engine, wanted)) == answer
    assert engine.stats().preemptions > 0
    assert engine.stats().prefix_hits > 0
    assert engine.stats().compilations_after_ready == 0
    device_of(engine).wait()
    found = stats(engine)
    assert found.host_hit_tokens == found.planned_restore_tokens + found.planned_project_tokens > 0
    assert (found.planned_project_tokens == 0) == (policy == "transfer") or policy == "plan"
    assert (found.planned_restore_tokens == 0) == (policy == "recompute") or policy == "plan"
    assert found.restored_bytes > 0
    assert found.host_blocks >= engine.stats().blocks_cached  # of two alike the cache finds one


# The reference has float32 without a window.
@pytest.mark.parametrize("model", [WINDOWED, pytest.param(SMALL, marks=pytest.mark.full)], ids=["bfloat16", "float32"])
def test_native_kernels_and_packed_weights(model: ModelConfig, caplog: pytest.LogCaptureFixture) -> None:
    kernels = native(library())
    wanted = requests("abcde")
    alone = expected(wanted, model, kernels)
    engine = engine_of("recompute", model=model, kernels=kernels)
    assert answers(run(engine, wanted)) == alone
    assert engine.stats().kernels == kernels.name
    assert not [record for record in caplog.records if "differ" in record.getMessage()], "proven at start"


def test_a_projection_of_other_bits_is_told(caplog: pytest.LogCaptureFixture) -> None:
    compiled = compiled_layers(SMALL)
    (honest,) = set(compiled.layers.project)

    def off(*args: Any) -> LayerPool:
        pool = honest(*args)
        return replace(pool, cache=pool.cache.with_array(pool.cache.data * (1 + 1e-6)))

    engine_of("plan", compiled=replace(compiled, layers=replace(compiled.layers, project=(off,) * SMALL.num_layers)))
    assert [record for record in caplog.records if "differ from those of a step by rounding" in record.getMessage()]


@pytest.mark.full  # a step of another width for each kind of layers; engine/start/test_narrow.py has it on the device
def test_the_narrow_program_runs_here_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is compared while blocks are filled, by steps that are run twice."""
    monkeypatch.setattr("jaxgen.engine.start.narrow.CLEARLY_FASTER", np.inf)
    wanted = requests("abcde")
    engine = engine_of("plan", narrow_width=8)
    assert answers(run(engine, wanted)) == expected(wanted)
    assert engine.stats().narrow_steps > 10


# The native kernels have a window above, too, but no policy that copies K and V.
@pytest.mark.parametrize(
    ("policy", "kernels"), [("recompute", "native"), pytest.param("transfer", "reference", marks=pytest.mark.full)]
)
def test_only_what_the_window_shows_is_streamed(policy: OffloadPolicy, kernels: str) -> None:
    wanted, chosen = requests("cde"), native(library()) if kernels == "native" else REFERENCE
    engine = engine_of(policy, model=WINDOWED, kernels=chosen)
    assert answers(run(engine, wanted)) == expected(wanted, WINDOWED, chosen)
    windowed = stats(engine).host_hit_tokens
    engine = engine_of(policy)
    run(engine, wanted)
    assert 0 < windowed < stats(engine).host_hit_tokens


def test_a_prompt_that_is_passed_over_goes_on_where_it_was() -> None:
    """In the middle of a block, which stays open while another's prompt takes the whole step."""
    (long, urgent), engine = requests("cd"), engine_of()
    expected = run(make_engine(SMALL, CONFIG), [long, urgent])
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
    device = make_engine(SMALL, CONFIG)
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
    for one in first:
        engine.add(one)
    while engine.stats().num_running < len(first):
        assert not [event for event in engine.step() if event.finish_reason]
    for one in waiting:
        engine.add(one)
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
    """Nobody tells it. A step takes 20 ms and more, nearly all of it on the link. A busy machine makes steps slower,
    never faster than the link, so only the least that is predicted can be checked."""
    engine = engine_of(bandwidth=1e6)
    engine.add(requests("c", max_tokens=38)[0])
    predicted: list[float] = []

    def step() -> None:
        before = stats(engine)
        engine.step()
        after = stats(engine)
        if copied := after.restored_bytes - before.restored_bytes:
            predicted.append((after.predicted_seconds - before.predicted_seconds) / copied)

    while engine.stats().generation_tokens < 10:
        step()
    before, predicted = median(predicted), []
    device_of(engine).stream.up.bytes_per_second = 1e6 / 3
    while engine.has_work:
        step()
    assert 0.9 / 1e6 < before < (last := median(predicted[-5:]))
    assert last > 2.7 / 1e6
    assert stats(engine).idle_seconds > 0, "on such a link the device waits"


def plan_one(*_: Any, window: int | None) -> Any:
    raise AssertionError(f"planned for window {window}")


PLANNED = replace(REFERENCE_GPU, name="planned", plan_attention=plan_one)
"""As those of GPUs: their attention is planned for a window."""
SEVERAL_WINDOWS = replace(SMALL, windows=(5, None))


def test_kernels_that_plan_for_a_window_are_replaced_where_layers_have_several(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class FoundError(Exception):
        pass

    def found(_model: Any, _config: Any, kernels: Kernels, *_: Any) -> Any:
        raise FoundError(kernels)

    monkeypatch.setattr("jaxgen.layerwise.programs.width_programs", found)
    for model, expected_kernels in ((WINDOWED, PLANNED), (SEVERAL_WINDOWS, REFERENCE_GPU)):
        with pytest.raises(FoundError) as raised:
            compile_for(model, streamed("transfer"), PLANNED)
        assert raised.value.args == (expected_kernels,)
    assert caplog.text.count("the attention of the planned kernels takes one window for all layers") == 1


@pytest.mark.full
def test_layers_of_several_windows_with_kernels_that_plan() -> None:
    """Full: it compiles two engines that no other test has."""
    engine, wanted = engine_of(model=SEVERAL_WINDOWS, kernels=PLANNED), requests("ce")
    assert engine.stats().kernels == "XLA"
    assert "planned kernels takes one window" in engine.stats().kernels_reason
    assert answers(run(engine, wanted)) == expected(wanted, SEVERAL_WINDOWS, REFERENCE_GPU)
