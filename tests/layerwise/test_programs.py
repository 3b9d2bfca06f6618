"""The step in programs by layer beside the whole step, plan by plan: the same bits in outputs and cache."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgen.core.model_config import ModelConfig
from jaxgen.core.moe_config import MoEConfig
from jaxgen.core.step_plan import StepPlan
from jaxgen.kernels.choice import REFERENCE, REFERENCE_GPU, native
from jaxgen.kernels.kernels import Kernels
from jaxgen.layerwise.programs import take_apart
from jaxgen.models.packed_weight import PackedWeight
from jaxgen.models.placement import pack_params
from jaxgen.models.quantized_weight import QuantizedWeight
from jaxgen.models.stacked_weight import StackedWeight
from jaxgen.runner.interface import StepArrays
from jaxgen.runner.model_runner import ModelRunner
from jaxgen.runner.packer import Packer
from jaxgen.runner.row_state import RowLoader, init_rows, load_row
from jaxgen.runner.step import StepOutput
from tests.models.test_layers_apart import OPT
from tests.support.engines import make_engine, params_of, request, run
from tests.support.native import native as library
from tests.support.quantized import mixed
from tests.support.streamed import BLOCK, CONFIG, NUM_OPEN, OPT_350M, SMALL, WINDOWED, compiled_layers

MODELS = {"llama": SMALL, "opt-350m": OPT_350M, "opt": OPT, "llama-bfloat16": replace(SMALL, dtype="bfloat16")}
N = CONFIG.cache.num_blocks
PROMPTS = [np.random.default_rng(1).integers(3, 300, size=n).tolist() for n in (1, 7, 24, 12)]
"""Their blocks, with what follows them, are as many as can be open."""


class ByLayer:
    """Runs plans by layers, with every block that is used open: its place is the same for all layers."""

    def __init__(self, model: ModelConfig, kernels: Kernels) -> None:
        self.programs = compiled_layers(model, kernels=kernels).layers
        self.ends, self.layers = take_apart(pack_params(model, dict(params_of(model)), kernels), model)
        self.pool, self.rows = self.programs.make_pool(), init_rows(CONFIG, model.vocab_size)
        self.loader, self.packer = RowLoader(CONFIG, model.vocab_size), Packer(CONFIG)
        self.opened: list[int] = []
        """Blocks that are used."""
        self.starts: dict[int, int] = {}
        """Of the full blocks, the position of the first token."""

    def run(self, plan: StepPlan) -> StepOutput:
        for sequence in plan.admitted:
            self.rows = load_row(self.rows, jnp.asarray(self.loader.words(sequence)))
        for chunk in plan.chunks:
            for position in range(chunk.start, chunk.end):
                index, offset = divmod(position, BLOCK)
                block = chunk.sequence.blocks.table[index]
                if block not in self.opened:
                    self.opened.append(block)
                self.starts.pop(block, None)
                if offset == BLOCK - 1:
                    self.starts[block] = position - offset
        assert len(self.opened) <= NUM_OPEN
        places = np.arange(N, dtype=np.int32)
        places[self.opened] = N + np.arange(len(self.opened))
        programs = self.programs.widths[CONFIG.scheduler.token_budget]
        self.rows, batch, x = programs.begin(self.ends, self.pool, self.rows, self.packer.pack(plan), places)
        for index, layer in enumerate(self.layers):
            self.pool, x = programs.layers[index](layer, self.pool, x, batch, np.int32(index))
        self.rows, output = programs.end(self.ends, self.rows, x, batch)
        return output

    def cache(self) -> np.ndarray:
        """As the whole step has it: [N, L, 2, K, B, D]."""
        data = np.asarray(self.pool.cache.data[N:, 0]).astype(np.float32)
        data = data.reshape(len(self.layers), NUM_OPEN, *data.shape[1:]).swapaxes(0, 1)
        found = np.zeros((N, *data.shape[1:]), np.float32)
        found[self.opened] = data[: len(self.opened)]
        return found

    def place(self, block: int) -> np.int32:
        return np.int32(N + self.opened.index(block))


# OPT's layers are between those of the two others; of bfloat16 only the native kernels are compared each time, with
# the packed weights below.
EACH_TIME = [
    pytest.param(model, id=name, marks=pytest.mark.full if name in {"opt", "llama-bfloat16"} else ())
    for name, model in MODELS.items()
]


@pytest.fixture(scope="module", params=EACH_TIME)
def compared(request: Any) -> tuple[ByLayer, ModelRunner]:
    """Both after the same plans, whose outputs were equal."""
    return compare(request.param)


def compare(model: ModelConfig, kernels: Kernels = REFERENCE) -> tuple[ByLayer, ModelRunner]:
    engine = make_engine(model, CONFIG, kernels)
    device, by_layer = engine.runner, ByLayer(model, kernels)
    whole = device.run
    mixed, outputs = [], []

    def both(plan: StepPlan) -> StepArrays:
        mixed.append({chunk.length == 1 for chunk in plan.chunks})
        outputs.append((plan, by_layer.run(plan), whole(plan)))
        return outputs[-1][2]

    device.run = both  # type: ignore[method-assign, assignment]
    events = run(engine, [wanted(i) for i in range(len(PROMPTS))])
    assert all(of_one[-1].error is None for of_one in events.values())
    assert {True, False} in mixed
    limits = CONFIG.scheduler
    for plan, got, want in outputs:
        real = {limits.max_num_seqs: len(plan.chunks), limits.token_budget: plan.num_tokens}
        for ours, whole_step in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            rows = real[len(whole_step)]
            np.testing.assert_array_equal(ours[:rows], whole_step[:rows])
    assert isinstance(device, ModelRunner)
    return by_layer, device


def wanted(index: int) -> Any:
    prompt_logprobs = 2 if index == 2 else None
    return request(
        f"r{index}", PROMPTS[index], max_tokens=6, ignore_eos=True, logprobs=5, seed=3, prompt_logprobs=prompt_logprobs
    )


@pytest.mark.shipped
def test_outputs_and_cache_have_the_same_bits(compared: tuple[ByLayer, ModelRunner]) -> None:
    by_layer, device = compared
    data = np.asarray(device.cache.data).astype(np.float32)
    assert np.count_nonzero(data) > 0.1 * data.size
    np.testing.assert_array_equal(by_layer.cache(), data)


def test_inputs_that_were_kept_become_what_the_layers_wrote(compared: tuple[ByLayer, ModelRunner]) -> None:
    """To the bit, on a CPU, where a product's rows do not depend on their number."""
    check_projection(compared[0])


def check_projection(by_layer: ByLayer) -> None:
    programs = by_layer.programs
    assert programs.project is not None
    written = by_layer.cache()
    blocks = [block for block, start in by_layer.starts.items() if start > 0][: programs.group - 1]
    ids = np.array([*blocks, 0], np.int32)
    starts = np.array([*(by_layer.starts[block] for block in blocks), 0], np.int32)
    inputs = [programs.gather(by_layer.pool, by_layer.place(block))[1] for block in ids]
    untouched = np.delete(np.arange(N), blocks)
    for index, layer in enumerate(by_layer.layers):
        pieces = [of_block[index] for of_block in inputs]
        about = ids, starts, np.int32(len(blocks)), np.int32(index)
        pool = programs.project[index](layer, programs.make_pool(), *about, *pieces)
        got = np.asarray(pool.cache.data[:N, 0]).astype(np.float32)
        np.testing.assert_array_equal(got[blocks], written[blocks, index])
        assert not got[untouched].any(), "what is past the count writes nothing"


def test_what_is_gathered_goes_where_it_is_scattered(compared: tuple[ByLayer, ModelRunner]) -> None:
    by_layer, _ = compared
    programs, block = by_layer.programs, by_layer.opened[-1]
    kv, _ = programs.gather(by_layer.pool, by_layer.place(block))
    pool = programs.scatter(programs.make_pool(), np.array([3, 9, 1], np.int32), np.int32(1), *[kv[1]] * 3)
    got = np.asarray(pool.cache.data[:, 0])
    assert got[3].any()
    np.testing.assert_array_equal(got[3], by_layer.cache()[block, 1])
    assert not np.delete(got, 3, axis=0).any()


# The reference has float32 without a window.
@pytest.mark.parametrize("model", [WINDOWED, pytest.param(SMALL, marks=pytest.mark.full)], ids=["bfloat16", "float32"])
def test_packed_weights_are_taken_apart(model: ModelConfig) -> None:
    """The native kernels' outputs and cache, and K and V from inputs, to the bit."""
    by_layer, device = compare(model, native(library()))
    np.testing.assert_array_equal(by_layer.cache(), np.asarray(device.cache.data).astype(np.float32))
    assert any(isinstance(value, PackedWeight) for value in by_layer.layers[0].values())
    check_projection(by_layer)


@pytest.mark.full  # as the packed weights above, in other layouts
def test_weights_of_few_bits_are_taken_apart() -> None:
    """Of layers in different formats, each of which has a program."""
    model = mixed(replace(SMALL, num_layers=4))
    by_layer, _ = compare(model, native(library()))
    first, second, *others = by_layer.programs.widths[CONFIG.scheduler.token_budget].layers
    assert first is not second
    assert others == [first, second]
    assert any(isinstance(value, QuantizedWeight) for value in by_layer.layers[0].values())
    check_projection(by_layer)


@pytest.mark.parametrize("kernels", [REFERENCE, REFERENCE_GPU], ids=["stacked", "apart"])
def test_weights_of_experts_are_taken_apart(kernels: Kernels) -> None:
    """Native kernels have them packed, as all others."""
    model, path = replace(SMALL, moe=MoEConfig(experts=4, per_token=2, inner=24)), "mlp.experts.down.weight"
    _, layers = take_apart(pack_params(model, dict(params_of(model)), kernels), model)
    for index, layer in enumerate(layers):
        found: Any = layer[path]
        if isinstance(found, StackedWeight):
            assert int(found.layer) == 0
            found = found.data[0]
        np.testing.assert_array_equal(found, params_of(model)[f"layers.{path}"][index])
