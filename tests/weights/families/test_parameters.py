"""The name tables against the engine's own tree, and both directions against each other."""

import itertools
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxgen.core.decoder_config import DecoderConfig, llama_config, opt_config
from jaxgen.core.decoder_parts import RopeConfig
from jaxgen.core.model_config import ModelConfig
from jaxgen.models.model import abstract_params
from jaxgen.weights.encodings.weight_formats import NUMPY_DTYPES
from jaxgen.weights.families.decoder_names import DecoderNames
from jaxgen.weights.families.parameters import Array, parameters, to_checkpoint
from jaxgen.weights.families.registry import FAMILIES
from jaxgen.weights.families.row_orders import INTERLEAVED, interleaved_queries
from jaxgen.weights.load import load_model_config
from tests.support.conversions import host_arrays
from tests.support.goldens import GOLDENS, NAMES, bits


def llama(tied: bool, attention_bias: bool, mlp_bias: bool) -> DecoderConfig:
    return llama_config(
        vocab_size=11,
        hidden_size=8,
        intermediate_size=12,
        num_layers=3,
        num_heads=4,
        num_kv_heads=2,
        head_dim=4,
        max_position=9,
        dtype="bfloat16",
        norm_eps=1e-6,
        rope=RopeConfig(),
        tie_embeddings=tied,
        attention_bias=attention_bias,
        mlp_bias=mlp_bias,
    )


def opt(narrow: bool, pre_norm: bool, final_norm: bool, norm_affine: bool, bias: bool, tied: bool) -> DecoderConfig:
    return opt_config(
        vocab_size=11,
        hidden_size=8,
        intermediate_size=12,
        num_layers=3,
        num_heads=4,
        num_kv_heads=4,
        head_dim=2,
        max_position=9,
        dtype="float16",
        embed_size=6 if narrow else 8,
        pre_norm=pre_norm,
        final_norm=final_norm,
        norm_affine=norm_affine,
        bias=bias,
        tie_embeddings=tied,
    )


CONFIGS: list[ModelConfig] = [
    *(llama(*options) for options in itertools.product([False, True], repeat=3)),
    # Each pair of values of any two is in one of these.
    *(opt(*options) for options in itertools.product([False, True], repeat=6) if sum(options) in {0, 1, 5, 6}),
]


def test_tables_are_the_engines_trees() -> None:
    for config in CONFIGS:
        tree = {path: (leaf.shape, str(leaf.dtype)) for path, leaf in abstract_params(config).items()}
        table = {parameter.path: (parameter.shape, parameter.dtype or config.dtype) for parameter in parameters(config)}
        assert table == tree, config


def test_tree_to_checkpoint_to_tree_keeps_every_bit(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / "config.json").write_text("{}")
    for config in CONFIGS:
        tree = {
            parameter.path: rng.standard_normal(parameter.shape).astype(NUMPY_DTYPES[config.dtype])
            for parameter in parameters(config)
        }
        tensors = {name: np.ascontiguousarray(tensor) for name, tensor in to_checkpoint(tree, config).items()}
        save_file(tensors, tmp_path / "model.safetensors")
        again = host_arrays(tmp_path, config)
        assert {path: bits(array) for path, array in again.items()} == {path: bits(tree[path]) for path in tree}


@pytest.mark.parametrize("name", NAMES)
def test_checkpoint_to_tree_to_checkpoint_keeps_every_bit(name: str) -> None:
    """But for prefixes, for norms in float32, and for what is stored in another form."""
    files = sorted((GOLDENS / name).glob("*.safetensors"))
    tensors = {key: tensor for file in files for key, tensor in load_file(file).items()}
    config = load_model_config(GOLDENS / name)
    again = to_checkpoint(host_arrays(GOLDENS / name, config), config)
    pieces = [source for parameter in parameters(config) for source, _ in parameter.pieces()]
    stacked = {one.name: one for one in pieces if one.stacked is not None and one.stacked.name in tensors}
    for key, one in stacked.items():
        assert one.stacked is not None
        part = one.stacked.part(tensors[one.stacked.name], one.expert, one.shape[0], turned=False)
        assert bits(again.pop(key).astype(part.dtype)) == bits(part), key
    packed = {key.removesuffix("_blocks") for key in tensors if key.endswith("_blocks")}
    assert again.keys() > packed or not packed
    for key in again.keys() - packed:
        spellings = key, key.partition(".")[2], f"language_model.{key}", f"model.language_model.{key[6:]}"
        (stored,) = (tensors[spelling] for spelling in spellings if spelling in tensors)
        assert bits(again[key].astype(stored.dtype)) == bits(stored), key


def described(golden: str) -> DecoderConfig:
    config = load_model_config(GOLDENS / golden)
    assert isinstance(config, DecoderConfig)
    return config


TABLES = {name: one.parameters.__self__ for name, one in FAMILIES.items() if hasattr(one.parameters, "__self__")}
"""The names of each family that has one set of them."""


@pytest.mark.parametrize("family", TABLES)
def test_each_name_of_a_family_is_that_of_a_module_in_one_of_its_goldens(family: str) -> None:
    """What is misspelt, or names a part that the family has not, would be the default's in silence."""
    names, usual = TABLES[family], DecoderNames()
    configs = [config for golden in NAMES if (config := described(golden)).family == family]
    sources = [source for one in configs for parameter in parameters(one) for source in parameter.sources]
    tensors = {s.name for s in sources} | {s.stacked.name for s in sources if s.stacked is not None}
    named = tensors | {name.rpartition(".")[0] for name in tensors}
    for about in fields(DecoderNames):
        value = getattr(names, about.name)
        if about.name == "layer" or value == getattr(usual, about.name) or not isinstance(value, str | tuple):
            continue
        for name in (value,) if isinstance(value, str) else value:
            name = name.replace("{head}", "{expert}")
            assert {name, f"{names.layer}.{name}"} & named, (about.name, name)


def test_an_order_of_rows_that_fits_no_module_is_refused() -> None:
    config = described("llama")
    with pytest.raises(ValueError, match=r"rows names self_attn\.query, which is not a module of a layer of llama"):
        DecoderNames(rows={"self_attn.query": interleaved_queries}).table(config)


def test_norms_of_queries_and_keys_have_the_order_of_their_rows() -> None:
    config = described("qwen3")
    table = {one.path: one.sources for one in DecoderNames(rows=INTERLEAVED).table(config)}
    within = (0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15)
    assert [table[f"layers.attn.{part}_norm.weight"][0].rows for part in "qk"] == [within, within]


def test_rows_are_in_the_documented_order() -> None:
    config = load_model_config(GOLDENS / "llama")
    tree = host_arrays(GOLDENS / "llama", config)
    tensors: dict[str, Array] = {}
    for file in (GOLDENS / "llama").glob("*.safetensors"):
        tensors |= load_file(file)
    layer = "model.layers.1"
    qkv = [tensors[f"{layer}.self_attn.{part}_proj.weight"] for part in "qkv"]
    gate_up = [tensors[f"{layer}.mlp.{part}_proj.weight"] for part in ("gate", "up")]
    np.testing.assert_array_equal(tree["layers.attn.qkv.weight"][1], np.concatenate(qkv))
    np.testing.assert_array_equal(tree["layers.mlp.gate_up.weight"][1], np.concatenate(gate_up))
