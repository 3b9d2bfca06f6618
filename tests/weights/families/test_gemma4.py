"""What files of Gemma 4 say of heads by layer, of layers that read others, and of what is not computed."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.errors import ConfigError
from jaxgen.core.layer_kind import HeadShape, LayerEmbedding
from jaxgen.core.mixed_weight import AnyWeight
from jaxgen.core.model_config import ModelConfig
from jaxgen.core.quantization import Quantization
from jaxgen.models.layer_pattern import layers_of
from jaxgen.weights.encodings.weight_formats import INT8, quantized_config
from jaxgen.weights.files.model_files import ModelFiles
from jaxgen.weights.huggingface.checkpoint import check_parameters
from jaxgen.weights.huggingface.config import read_model_config
from jaxgen.weights.load import load_model_config, load_params
from tests.support.format_cases import EVERY
from tests.support.goldens import GOLDENS, copy_golden
from tests.support.hub_configs import described
from tests.support.quantised_cases import Made
from tests.support.quantised_checkpoints import Tensors, quantised_pair


def config_of(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GOLDENS / name / "config.json").read_text())
    return found


def read(directory: Path, data: dict[str, Any]) -> ModelConfig:
    (directory / "config.json").write_text(json.dumps(data))
    return read_model_config(ModelFiles(directory))


@pytest.mark.parametrize(
    "older",
    [
        {"global_head_dim": 16, "num_global_key_value_heads": 1},
        {"per_layer_config": {"1": {"head_dim": 16, "num_key_value_heads": 1}, "0": {"head_dim": 8}}},
    ],
)
def test_each_spelling_means_the_same_heads(older: dict[str, Any], tmp_path: Path) -> None:
    data = config_of("gemma4_moe")
    wanted = load_model_config(GOLDENS / "gemma4_moe")
    assert isinstance(wanted, DecoderConfig)
    assert wanted.global_heads == HeadShape(kv_heads=1, head_dim=16, keys_are_values=True)
    del data["per_layer_config"]
    assert read(tmp_path, data | older) == wanted


def test_heads_of_layers_without_a_window_are_the_others_unless_keys_are_values(tmp_path: Path) -> None:
    data = config_of("gemma4_unified") | {"num_global_key_value_heads": 1}
    config = read(tmp_path, data)
    assert isinstance(config, DecoderConfig)
    assert config.global_heads == HeadShape(kv_heads=2, head_dim=16)


@pytest.mark.parametrize(
    ("name", "given", "reason"),
    [
        ("gemma4_moe", {"per_layer_config": [1]}, "per_layer_config must be an object with an object for each layer"),
        ("gemma4_moe", {"per_layer_config": {"0": {"skip": 1}}}, "per_layer_config has skip; supported: head_dim, num"),
        (
            "gemma4_unified",
            {"per_layer_config": {"1": {"head_dim": 4}}},
            "has layers of type sliding_attention with",
        ),
        ("gemma4_moe", {"sliding_window": None}, "sliding_window must be a positive integer, not None"),
        ("gemma4_moe", {"rope_parameters": {"full_attention": {}}}, "must have an object for 'sliding_attention'"),
        ("gemma4_moe", {"use_bidirectional_attention": "all"}, "attention in both directions is not computed"),
        ("gemma4_shared", {"num_kv_shared_layers": 4}, "is 4: the other 1 layers must have a layer of each type"),
        ("gemma4_shared", {"vocab_size_per_layer_input": 127}, r"\(127\) must be at least vocab_size \(128\)"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(name: str, given: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=reason):
        read(tmp_path, config_of(name) | given)


def test_readers_are_where_the_last_layer_of_their_type_is() -> None:
    config = described("gemma-4-E2B-it")
    full, window = config.cache_kinds
    assert (full.layers, window.layers) == ((4, 9, 14), (*range(4), *range(5, 9), *range(10, 14)))
    layers = layers_of(config, 2)
    assert {(at.kind, at.place) for at in layers[15:]} == {(0, 2), (1, 11)}
    assert [at.kind for at in layers[15:20]] == [1, 1, 1, 1, 0]
    assert len({(at.stack, at.index) for at in layers}) == config.num_layers


def test_tensors_of_keys_that_no_layer_makes_are_left_out(tmp_path: Path) -> None:
    """The hub's files have them in all layers."""
    directory = copy_golden("gemma4_shared", tmp_path / "model")
    tensors = load_file(directory / "model.safetensors")
    spare = {
        f"model.layers.4.self_attn.{name}.weight": np.ones(2, np.float32) for name in ("k_proj", "v_proj", "k_norm")
    }
    save_file(tensors | spare, directory / "model.safetensors")
    config = load_model_config(directory)
    check_parameters(ModelFiles(directory), config)
    save_file(
        tensors | {"model.layers.4.self_attn.o_norm.weight": np.ones(2, np.float32)}, directory / "model.safetensors"
    )
    with pytest.raises(ConfigError, match=r"a model without the tensors model\.layers\.4\.self_attn\.o_norm\.weight"):
        check_parameters(ModelFiles(directory), config)


def loaded(directory: Path, quantization: Quantization) -> tuple[ModelConfig, dict[str, Any]]:
    config = load_model_config(directory, quantization=quantization)
    return config, load_params(directory, config, place=lambda _, value: value, progress=False)


def as_published(tensors: Tensors, config: dict[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """As its makers' files are: inside a model of images and sounds, whose products have limits of their own.

    Layers that read the keys of others have their own too, with the codes and scales of another layer.
    """
    spare = {
        name.replace(".layers.0.", ".layers.3."): one
        for name, one in tensors.items()
        if ".layers.0.self_attn.k_" in name and config["num_kv_shared_layers"]
    }
    inner = {name.replace("model.", "model.language_model.", 1): one for name, one in (tensors | spare).items()}
    vision, audio = "model.vision_tower.encoder.layers.0.self_attn.q_proj", "model.audio_tower.layers.0.ffw_layer_1"
    one = np.ones((), np.float32)
    others = {f"{vision}.linear.weight": np.ones((2, 2), np.float32), f"{vision}.input_max": one}
    others |= {f"{audio}.input_max": one, "model.embed_vision.embedding_projection.weight": np.ones((2, 2), np.float32)}
    about = config.pop("quantization_config") | {"ignore": ["re:.*vision_tower.*", "re:.*audio_tower.*", "lm_head"]}
    outer = {"architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4", "vision_config": {}}
    return inner | others, outer | {"quantization_config": about, "text_config": config}


@pytest.mark.parametrize(
    ("golden", "case", "quantization", "codes"),
    [
        ("gemma4_shared", "packed", "none", ("layers.reader.attn.qkv", "layers.attention.embedding.gate")),
        ("gemma4_shared", "compressed fp8 channel", "fp8", ("layer_embedding.table", "layers.global.embedding.out")),
        ("gemma4_moe", "compressed fp8 block", "fp8", ("layers.global.attn.qkv", "layers.attention.mlp.shared.down")),
        ("gemma4_moe", "compressed nvfp4", "fp4", ("layers.global.attn.out", "layers.global.mlp.shared.gate_up")),
    ],
)
def test_published_formats_stay_codes(
    golden: str, case: str, quantization: Quantization, codes: tuple[str, ...], tmp_path: Path
) -> None:
    about, encode, form = EVERY[case]

    def where_it_divides(name: str, shape: tuple[int, int]) -> Made | None:
        return encode(name, shape) if form.group is None or shape[1] % 16 == 0 else None

    packed, plain = quantised_pair(tmp_path, golden, about, where_it_divides, as_published)
    (config, params), (_, numbers) = loaded(packed, quantization), loaded(plain, "none")
    assert params.keys() == numbers.keys()
    for path, value in params.items():
        same = value.dequantized() if isinstance(value, AnyWeight) else value
        np.testing.assert_array_equal(same, numbers[path], err_msg=path)
    assert all(config.weight_format(f"{path}.weight") is not None for path in codes)
    assert config.weight_format("embed.weight") is None


def test_the_table_of_layers_has_a_scale_for_each() -> None:
    """It is rounded where the embedding is, and as the embedding is."""
    config = load_model_config(GOLDENS / "gemma4_shared")
    assert isinstance(config, DecoderConfig)
    wide = replace(config, layer_embedding=LayerEmbedding(vocab_size=128, width=16))
    for model, form in ((config, INT8), (wide, replace(INT8, group=16))):
        for quantization in ("int8", "int4"):
            found = quantized_config(model, quantization)
            assert found.weight_format("embed.weight") == INT8
            assert found.weight_format("layer_embedding.table.weight") == form  # products take no groups of 12
        assert quantized_config(model, "fp8").weight_format("layer_embedding.table.weight") is None
