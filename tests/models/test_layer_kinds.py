"""Models whose layers are of several kinds: each has its own state of a sequence, and a stack of parameters."""

from dataclasses import dataclass
from itertools import combinations, product

import numpy as np
import pytest

from jaxgen.core.config import CacheConfig, EngineConfig, OffloadConfig, SchedulerConfig
from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.layer_kind import Stack, path_in_stack, path_without_stack
from jaxgen.core.model_config import DType, ModelConfig
from jaxgen.core.quantization import Quantization
from jaxgen.engine.start.build import build_engine
from jaxgen.engine.start.runners import compile_for
from jaxgen.kernels.choice import REFERENCE, native
from jaxgen.models.dummy import dummy_params
from jaxgen.models.model import Params, abstract_params
from jaxgen.tools.determinism import Scenario, Verifier
from jaxgen.weights.load import load_model_config, load_params
from tests.support.golden_runs import load_golden
from tests.support.goldens import GOLDENS
from tests.support.hub_configs import described
from tests.support.native import library_for


def test_layers_of_a_kind_are_a_stack_in_their_order() -> None:
    config, params = load_golden("lfm2")
    assert isinstance(config, DecoderConfig)
    assert config.layers_of_kind("conv") == (0, 2, 4)
    assert params["layers.conv.conv.filter.weight"].shape == (3, 3, 32)
    assert params["layers.attention.attn.qkv.weight"].shape == (2, 64, 32)
    assert not [path for path in params if path.startswith("layers.attn")]


def test_paths_name_the_stack_and_are_found_without_it() -> None:
    assert path_in_stack("layers.mlp.down.weight", Stack("conv")) == "layers.conv.mlp.down.weight"
    for name in ("lfm2", "lfm2_moe"):
        config = load_golden(name)[0]
        assert isinstance(config, DecoderConfig)
        for path in abstract_params(config):
            plain = path_without_stack(path)
            assert path in (plain, *(path_in_stack(plain, stack) for stack in config.stacks))
    for path in ("layers.attn.qkv.weight", "layers.conv.filter.weight", "embed.weight"):
        assert path_without_stack(path) == path


def test_layers_without_experts_are_a_stack_of_their_own() -> None:
    config, params = load_golden("lfm2_moe")
    assert isinstance(config, DecoderConfig)
    assert [config.layers_in(stack) for stack in config.stacks] == [(1,), (2,), (0,)]
    assert config.layers_of_kind("conv") == (0, 2)
    assert params["layers.conv_dense.mlp.gate_up.weight"].shape == (1, 96, 32)
    assert params["layers.conv.mlp.experts.gate_up.weight"].shape == (1, 5, 48, 32)
    assert params["layers.attention.mlp.correction"].dtype == np.float32
    assert config.of_layers(2).dense_layers == (0,)
    assert config.of_layers(2).layer_stacks == (1, 0)


def test_only_layers_with_attention_have_keys_and_values() -> None:
    model = described("LFM2-1.2B")
    assert CacheConfig(16, 4, num_snapshots=0).kinds(model)[0].layers == (2, 5, 8, 10, 12, 14)
    (state,) = model.states
    assert state.num_bytes == 10 * 2 * 2048 * 2


def test_dummy_weights_have_the_paths_of_a_checkpoint() -> None:
    config, params = load_golden("lfm2_bias")
    made = dummy_params(config, REFERENCE)
    assert {path: np.shape(value) for path, value in made.items()} == {path: x.shape for path, x in params.items()}


@dataclass(frozen=True)
class Options:
    """With which a model is served."""

    dtype: DType
    quantization: Quantization
    snapshots: int
    is_native: bool
    offloads: bool

    def __str__(self) -> str:
        words = "native" if self.is_native else "XLA", self.dtype, self.quantization, f"{self.snapshots} snapshots"
        return ", ".join([*words, "host memory" if self.offloads else "no host memory"])


ROWS = (
    Options("float32", "none", 0, is_native=True, offloads=False),
    Options("float32", "none", 3, is_native=False, offloads=True),
    Options("float32", "none", 64, is_native=True, offloads=True),
    Options("bfloat16", "int8", 0, is_native=False, offloads=True),
    Options("bfloat16", "int8", 3, is_native=True, offloads=False),
    Options("bfloat16", "int8", 64, is_native=False, offloads=False),
)
"""Each pair of values is in one of them."""


def test_each_pair_of_options_is_in_a_row() -> None:
    rows = [(row.quantization, row.snapshots, row.is_native, row.offloads) for row in ROWS]
    for one, other in combinations(range(4), 2):
        values = [{row[i] for row in rows} for i in (one, other)]
        assert {(row[one], row[other]) for row in rows} == set(product(*values))


def verified(
    config: ModelConfig, params: Params, *, is_native: bool, snapshots: int, offload: OffloadConfig | None = None
) -> list[Scenario]:
    kernels = native(library_for(config)) if is_native else REFERENCE
    cache = CacheConfig(8, 24, num_snapshots=snapshots)
    limits = EngineConfig(cache, SchedulerConfig(16, 8, 96), seed=0, max_logit_bias=4, offload=offload)
    engine = build_engine(config, limits, params, frozenset(), compiled=compile_for(config, limits, kernels))
    return Verifier(engine, requests=14, seed=1).verify()


@pytest.mark.full
@pytest.mark.parametrize(("name", "quantization"), [("qwen3_5_moe", "int8"), ("lfm2_moe", "int4")])
def test_an_answer_in_few_bits_has_its_bits_too(name: str, quantization: Quantization) -> None:
    """Of gated delta nets with experts, and with a first layer without."""
    config = load_model_config(GOLDENS / name, "bfloat16", quantization=quantization)
    scenarios = verified(config, load_params(GOLDENS / name, config, progress=False), is_native=True, snapshots=3)
    assert [one.name for one in scenarios if one.mismatches] == []


@pytest.mark.full
@pytest.mark.parametrize("options", ROWS, ids=str)
def test_an_answer_has_its_bits_in_any_company(options: Options) -> None:
    """Alone, cached, cut at random, preempted and, with host memory, restored."""
    name = "lfm2_bias" if options.offloads else "lfm2"
    config = load_model_config(GOLDENS / name, options.dtype, quantization=options.quantization)
    params = load_params(GOLDENS / name, config, progress=False)
    offload = OffloadConfig(64, "transfer") if options.offloads else None
    scenarios = verified(config, params, is_native=options.is_native, snapshots=options.snapshots, offload=offload)
    assert [one.name for one in scenarios if one.mismatches] == []
    assert any(one.happened.get("cached tokens") for one in scenarios) == (options.snapshots > 0)
