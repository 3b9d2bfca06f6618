"""Batches that pass through each layer in turn, with weights in host memory: the tokens of engines that hold it all."""

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import numpy as np
import pytest

from jaxgen.core.config import ModelConfig
from jaxgen.core.sequence import Sequence
from jaxgen.kernels.choice import REFERENCE
from jaxgen.layerwise.layer_store import LayerStore
from jaxgen.layerwise.layer_weights import LayerWeights, _part
from jaxgen.layerwise.links import Links
from jaxgen.layerwise.model_runner import Streaming
from jaxgen.layerwise.programs import LayerPrograms, compile_layers
from jaxgen.layerwise.rates import StreamRates, transfer_all
from jaxgen.offload.restore_plan import ContextCost
from jaxgen.runner.programs import RowPrograms, compile_rows
from jaxgen.scheduling.scheduler import Scheduler
from scripts.offload.columns import Columns, column_of, planned_split, step_seconds
from tests.models.test_layers_apart import OPT
from tests.support.engines import (
    LLAMA,
    engine_config,
    make_engine,
    params_of,
    request,
    run,
    tokens,
)

B = 8
# As in test_offload_streamed, so that the same programs are compiled once.
CONFIG = engine_config(token_budget=20, max_num_seqs=3, max_model_len=96, block_size=B, num_blocks=14)
OPEN = LayerStore.most_open(20, 3, B)
RNG = np.random.default_rng(7)
COLUMNS = [[RNG.integers(3, 300, size=n).tolist() for n in sizes] for sizes in ((40, 24), (9, 17), (33,))]
"""Prompts of three batches, whose sequences do not end together."""


@cache
def programs_of(model: ModelConfig) -> tuple[LayerPrograms, RowPrograms]:
    programs = compile_layers(model, CONFIG, REFERENCE, num_open=OPEN, group=3, keep_inputs=True)
    return programs, compile_rows(model, CONFIG)


def columns_of(model: ModelConfig, links: Links | None = None) -> Columns:
    params = dict(params_of(model))
    return Columns(model, CONFIG, params, *programs_of(model), batches=len(COLUMNS), num_open=OPEN, links=links)


def wanted(column: int, index: int, max_tokens: int) -> Any:
    prompt = COLUMNS[column][index]
    return request(f"{column}.{index}", prompt, max_tokens=max_tokens, ignore_eos=True, temperature=0.0)


@cache
def expected(model: ModelConfig) -> dict[str, list[int]]:
    """Of an engine that holds everything, one batch after another."""
    found: dict[str, list[int]] = {}
    for column, prompts in enumerate(COLUMNS):
        engine = make_engine(model, CONFIG)
        events = run(engine, [wanted(column, index, 10 + column) for index in range(len(prompts))])
        found |= {name: tokens(of_one) for name, of_one in events.items()}
    return found


def decoded(columns: Columns) -> dict[str, list[int]]:
    schedulers = [Scheduler(CONFIG.scheduler, CONFIG.cache) for _ in COLUMNS]
    sequences = []
    for column, (scheduler, prompts) in enumerate(zip(schedulers, COLUMNS, strict=True)):
        for index in range(len(prompts)):
            one = Sequence(wanted(column, index, 10 + column), eos_token_ids=frozenset(), arrival=index, seed=0)
            scheduler.add(one)
            sequences.append(one)
    while any(scheduler.has_work for scheduler in schedulers):
        plans = [scheduler.schedule() for scheduler in schedulers]
        for scheduler, plan, output in zip(schedulers, plans, columns.run(plans), strict=True):
            assert (output is None) == (not plan.chunks)
            if output is not None:
                found = np.asarray(output.tokens)
                scheduler.complete(plan, [int(found[i]) for i, chunk in enumerate(plan.chunks) if chunk.samples])
    return {one.request_id: one.tokens[one.num_prompt :] for one in sequences}


def part_of(part: float) -> Callable[[int], int]:
    return lambda num_tokens: int(part * num_tokens / B) * B


@pytest.mark.parametrize(
    ("model", "part", "buffers"),
    [
        pytest.param(LLAMA, 0.0, 2, id="llama-none-2"),
        pytest.param(LLAMA, 0.5, 1, id="llama-half-1"),
        # The columns are the same for every family, each of whose layers is compiled in five programs.
        pytest.param(OPT, 0.5, 2, marks=pytest.mark.full, id="opt-half-2"),
        pytest.param(OPT, 1.0, 1, marks=pytest.mark.full, id="opt-all-1"),
    ],
)
def test_columns_have_the_tokens_of_the_whole_step(model: ModelConfig, part: float, buffers: int) -> None:
    columns = columns_of(model)
    columns.use(Streaming(part_of(part), buffers=buffers))
    assert decoded(columns) == expected(model)
    assert decoded(columns) == expected(model), "a second time, in blocks that were used"


def test_pageable_memory_and_slow_links_change_nothing() -> None:
    columns = columns_of(LLAMA, Links(bytes_per_second=20e6, pinned=False))
    columns.use(Streaming(transfer_all))
    assert decoded(columns) == expected(LLAMA)
    columns.wait()
    pieces = columns._devices[0]._store._pieces.values()
    assert pieces
    assert {type(array) for piece in pieces for array in piece.kv} == {np.ndarray}
    assert columns.links.idle_seconds > 0


def test_weights_cross_the_link_once_a_step_for_all_batches() -> None:
    columns = columns_of(LLAMA)
    steps, run_plans = 0, columns.run

    def counted(plans: Any) -> Any:
        nonlocal steps
        steps += 1
        return run_plans(plans)

    columns.run = counted  # type: ignore[method-assign]
    columns.use(Streaming(lambda num_tokens: num_tokens))
    decoded(columns)
    contexts = sum(device.stream._copies for device in columns._devices)
    assert contexts > 0
    columns.wait()
    while any(not transfer.done for _, transfer in columns.weights._asked):
        columns.links.wait(columns.weights._asked[-1][1])
    of_inputs = columns.links.up.num_bytes - (steps * LLAMA.num_layers + 1) * columns.weights.num_bytes
    assert of_inputs > 0
    assert of_inputs % (B * LLAMA.hidden_size * 4) == 0, "all the rest are blocks of inputs"


def test_only_the_layer_that_was_taken_is_there() -> None:
    links = Links()
    layers = tuple({"a": np.full(4, i, np.float32), "b": np.zeros(12, np.float32)} for i in range(3))
    weights = LayerWeights(tuple({k: links.put_on_host(v) for k, v in layer.items()} for layer in layers), links)
    with pytest.raises(LookupError, match="layer 0"):
        weights[0]
    weights.take(0)
    for part in range(2):
        weights.ask(1, part, 2)
    weights.take(1)
    assert float(weights[1]["a"][0]) == 1.0
    with pytest.raises(LookupError, match="layer 0"):
        weights[0]


def test_parts_of_weights_hold_each_array_once_and_are_even() -> None:
    params: dict[str, Any] = {f"p{i}": np.zeros(size) for i, size in enumerate((30, 1, 10, 40, 1, 38))}
    for parts in (1, 2, 3, 8):
        found = [_part(params, part, parts) for part in range(parts)]
        assert [path for paths in found for path in paths] == list(params)
    assert _part(params, 0, 2) == ("p0", "p1", "p2")


def test_columns_must_overlap() -> None:
    with pytest.raises(ValueError, match="overlap"):
        columns_of(LLAMA).use(Streaming(transfer_all, overlap=False))


RATES = StreamRates(4, 100.0, 0.0, 1.0, 0.0, 0.05, 2.0)
COST = ContextCost(kv_bytes=8.0, x_bytes=4.0, projection_flops=0.0)


def test_the_plan_takes_measured_rates() -> None:
    """Of 100 tokens a layer: 8 s of KV or 4 s of inputs on the link, 5 s to project all, 1 s of other work."""
    column = column_of(RATES, 100, batches=2, weight_bytes=100)
    assert (column.weight_seconds, column.device_seconds) == (1.0, 1.0)
    split = planned_split(RATES, COST, 10, 2, 100)(100)
    assert split == 80, "0.5 s of weights and 4.8 of context, and 5.0 of work; 90: 4.4 and 5.5"
    assert step_seconds(RATES, column, RATES.unit(COST, 10), 80, 20, 10) == pytest.approx(2 * 2.0 + 4.8 + 4 * 2 * 5.3)


def test_heavier_weights_hide_more_projection() -> None:
    """Batches of 0 and of 1 s of weights: 80 tokens take max(4.8, 5.0) and max(5.8, 5.0), 90 max(., 5.5) of both."""
    assert [planned_split(RATES, COST, 10, 2, size)(100) for size in (0, 200)] == [80, 90]


def test_host_memory_is_the_runtimes() -> None:
    arrays = jax.tree.leaves(columns_of(LLAMA).weights._layers)
    assert {array.sharding.memory_kind for array in arrays} == {"pinned_host"}
