"""Steps whose context is in host memory, streamed layer by layer: the tokens of an engine that holds all of it."""

from collections.abc import Callable
from functools import cache
from itertools import count
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import jax
import numpy as np
import pytest

from jaxgen.core.model_config import ModelConfig
from jaxgen.core.request import Request, TokenEvent
from jaxgen.core.step_plan import StepPlan
from jaxgen.engine.engine import Engine
from jaxgen.layerwise.calibration import run_in_turn
from jaxgen.layerwise.layered_step import LayeredStep
from jaxgen.layerwise.model_runner import LayerwiseRunner, Streaming
from jaxgen.layerwise.planning.rates import StepSeconds, transfer_all
from jaxgen.runner.model_runner import ModelRunner
from jaxgen.runner.step import StepOutput
from tests.models.test_layers_apart import OPT
from tests.support.engines import make_engine, params_of, request, run
from tests.support.streamed import BLOCK, CONFIG, NUM_OPEN, OPT_350M, PROMPTS, SMALL, compiled_layers


def streamed_device(model: ModelConfig, streaming: Streaming) -> LayerwiseRunner:
    programs, params = compiled_layers(model), dict(params_of(model))
    device = LayerwiseRunner(
        model,
        CONFIG,
        params,
        programs.layers,
        programs.rows,
        num_open=NUM_OPEN,
    )
    device.streaming = streaming
    return device


def requests(letters: str) -> list[Request]:
    params: dict[str, Any] = {"max_tokens": 12, "ignore_eos": True, "logprobs": 3, "temperature": 0.0}
    return [request(f"{n}{i}", PROMPTS["abcde".index(n)], **params) for i, n in enumerate(letters)]


def engine_on(model: ModelConfig, device: LayerwiseRunner | None, *, overlap: bool = True) -> Engine:
    """Return an engine that copies no blocks, as with a streamed cache, and runs its plans by this device."""
    with patch.object(ModelRunner, "copies_blocks", LayerwiseRunner.copies_blocks):
        engine = make_engine(model, CONFIG)
    ticks = count()
    engine.clock = lambda: 1e-5 * next(ticks)  # a slow machine would let fewer prompts begin, and preempt none
    if device is not None:
        engine.runner.run = device.run if overlap else lambda plan, **_: run_in_turn(device, plan)[0]  # type: ignore[method-assign]
    return engine


def answers(
    model: ModelConfig, device: LayerwiseRunner | None, turns: tuple[str, ...], *, overlap: bool = True
) -> list[dict[str, list[TokenEvent]]]:
    """Of an engine that runs its plans by this device, or by its own. Blocks run out, so that some are preempted."""
    engine = engine_on(model, device, overlap=overlap)
    found = [run(engine, requests(letters)) for letters in turns]
    assert engine.stats().preemptions > 0 or turns != TURNS
    assert all(of_one[-1].error is None for events in found for of_one in events.values())
    return found


TURNS = ("abcde", "ccdeab")
"""The second finds prefixes in the cache, among them blocks that several sequences share at once."""


@cache
def expected(model: ModelConfig) -> list[dict[str, list[TokenEvent]]]:
    return answers(model, None, TURNS)


@pytest.mark.shipped
@pytest.mark.parametrize(
    ("model", "overlap"),
    [
        pytest.param(SMALL, True, id="llama-overlapped"),
        pytest.param(OPT_350M, False, id="opt-350m-in-turn"),
        # Its layers are between those of the others; whether steps overlap is no matter of a model's.
        pytest.param(OPT, True, id="opt-overlapped", marks=pytest.mark.full),
    ],
)
def test_transferred_contexts_give_the_same_bits(model: ModelConfig, overlap: bool) -> None:
    device = streamed_device(model, Streaming(transfer_all))
    assert answers(model, device, TURNS, overlap=overlap) == expected(model)
    assert device.stream.up.num_bytes > 0


def whole_groups(part: float) -> Callable[[int], int]:
    return lambda tokens: int(part * tokens / BLOCK) * BLOCK


@pytest.mark.shipped
@pytest.mark.parametrize(
    ("model", "part"),
    [
        pytest.param(SMALL, 0.5, id="llama-half"),
        pytest.param(OPT_350M, 1.0, id="opt-350m-all"),
        pytest.param(OPT, 0.5, id="opt-half", marks=pytest.mark.full),
    ],
)
def test_projected_contexts_give_the_same_bits(model: ModelConfig, part: float) -> None:
    """On a CPU."""
    device = streamed_device(model, Streaming(whole_groups(part)))
    assert answers(model, device, TURNS) == expected(model)


@pytest.mark.parametrize(
    ("with_context", "expected_order"),
    [
        ((0, 1, 2, 3), "ask 0, ask 1, run 0, released 0, ask 2, run 1, released 1, ask 3, run 2, run 3"),
        ((1, 3, 4), "ask 1, run 0, ask 3, run 1, run 2, released 1, ask 4, run 3, run 4"),
    ],
    ids=["all", "some have states"],
)
def test_a_context_is_asked_for_when_a_buffer_is_free(
    monkeypatch: pytest.MonkeyPatch, with_context: tuple[int, ...], expected_order: str
) -> None:
    """While layers compute, the next context comes, into what the last layer with one has released."""
    order: list[str] = []

    class Output:
        def __init__(self, layer: int) -> None:
            self.layer = layer

        def block_until_ready(self) -> None:
            order.append(f"released {self.layer}")

    def compute(step: Any, layer: int, incoming: Any) -> None:
        order.append(f"run {layer}")
        step.x = Output(layer)

    def end(step: Any) -> StepOutput:
        raise RuntimeError("no step is sampled here")

    device = object.__new__(LayerwiseRunner)
    device._layers = ({},) * (with_context[-1] + 1)
    device._places = {layer: place for place, layer in enumerate(with_context)}
    monkeypatch.setattr(device, "stream", SimpleNamespace(traffic=None), raising=False)
    monkeypatch.setattr(device, "begin", lambda plan, narrow: object.__new__(LayeredStep))
    monkeypatch.setattr(device, "ask", lambda step, layer: order.append(f"ask {layer}"))
    monkeypatch.setattr(device, "compute", compute)
    monkeypatch.setattr(device, "end", end)
    with pytest.raises(RuntimeError, match="no step"):
        device.run(StepPlan(()))
    assert ", ".join(order) == expected_order


def test_a_split_without_overlap_says_where_its_time_went() -> None:
    device = streamed_device(SMALL, Streaming(whole_groups(0.5)))
    engine, found = engine_on(SMALL, device), list[StepSeconds]()

    def noting(plan: StepPlan, **_: Any) -> StepOutput:
        output, seconds = run_in_turn(device, plan)
        found.append(seconds)
        return output

    engine.runner.run = noting  # type: ignore[method-assign]
    run(engine, requests("c"))
    seconds = found[-1]
    assert (seconds.tokens, seconds.projected) == (48, 24), "six full blocks before the last token, 51"
    kv, inputs = 2 * 2 * 16 * 4, 32 * 4
    assert seconds.link_bytes == SMALL.num_layers * (24 * inputs + 24 * kv)
    assert min(seconds.link, seconds.device, seconds.other) > 0


def test_the_device_holds_one_layer_and_the_open_blocks() -> None:
    pool = compiled_layers(SMALL).layers.make_pool()
    assert len(pool.cache.data) == CONFIG.cache.num_blocks + SMALL.num_layers * NUM_OPEN
    assert pool.cache.data.shape[1] == 1


def test_host_memory_is_the_runtimes() -> None:
    device = streamed_device(SMALL, Streaming(transfer_all))
    answers(SMALL, device, ("c",))
    device.wait()
    pieces = list(device._store._pieces.values())
    assert len(pieces) == 6
    assert {array.sharding.memory_kind for array in jax.tree.leaves([(p.kv, p.inputs) for p in pieces])} == {
        "pinned_host"
    }
    data = [np.asarray(piece.kv[1]) for piece in pieces]
    assert all(part.any() for part in data)


def test_a_copy_that_fails_fails_the_step() -> None:
    device = streamed_device(SMALL, Streaming(transfer_all))
    answers(SMALL, device, ("c",))

    def refuse(pieces: Any) -> Any:
        raise RuntimeError("no memory")

    device.stream.up._state.copy = refuse
    engine = engine_on(SMALL, device)
    assert run(engine, requests("c"))["c0"][-1].error is not None


def test_slow_links_change_nothing() -> None:
    """Saves that have not landed are waited for when there is no room for more open blocks."""
    device = streamed_device(SMALL, Streaming(transfer_all))
    device.stream.down.bytes_per_second = device.stream.up.bytes_per_second = 2e6
    assert answers(SMALL, device, ("abcde",)) == expected(SMALL)[:1]
