"""Models of more than text: their text is the model that it would be alone, to the bit."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxgen.core.errors import ConfigError
from jaxgen.weights.files.model_files import ModelFiles
from jaxgen.weights.huggingface.config import read_eos_token_ids, read_model_config
from jaxgen.weights.huggingface.wrappers import WRAPPERS
from jaxgen.weights.load import load_model_config
from tests.support.conversions import bits_of
from tests.support.goldens import GOLDENS

Config = dict[str, Any]
Tensors = dict[str, Any]
Rename = Callable[[str], str]

_MROPE = {"type": "mrope", "mrope_section": [4, 4, 4]}
_INTERLEAVED = {"mrope_section": [4, 4, 4], "mrope_interleaved": True}
_IMAGE_TOKENS = {"image_token_id": 151_655, "video_token_id": 151_656, "vision_start_token_id": 151_652}


def inner(name: str) -> str:
    """Names of Qwen3-VL's files."""
    return name if name.startswith("lm_head") else f"model.language_model.{name.removeprefix('model.')}"


def text_model(name: str) -> str:
    """Names of SmolVLM's files."""
    return name if name.startswith("lm_head") else f"model.text_model.{name.removeprefix('model.')}"


def language_model(name: str) -> str:
    """Names of LLaVA's and InternVL's files."""
    return f"language_model.{name}"


def golden(name: str) -> tuple[Config, Tensors]:
    config = json.loads((GOLDENS / name / "config.json").read_text())
    files = sorted((GOLDENS / name).glob("*.safetensors"))
    return config, {key: value for file in files for key, value in load_file(file).items()}


def write(directory: Path, config: Config, tensors: Tensors) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    save_file(tensors, directory / "model.safetensors")
    return directory


def wrapped(directory: Path, name: str, architecture: str, rename: Rename, *others: str, **text: Any) -> Path:
    """A golden as the text of a model of images. ``others``: tensors of its other parts; ``text``: more of its text."""
    config, tensors = golden(name)
    field = WRAPPERS[architecture].field
    whole = {"architectures": [architecture], "vision_config": {"depth": 2}, **_IMAGE_TOKENS, field: config | text}
    images = {other: np.ones((2, 2), np.float32) for other in others}
    return write(directory, whole, {rename(key): value for key, value in tensors.items()} | images)


CASES: dict[str, tuple[Any, ...]] = {
    "Qwen3-VL": (
        *("qwen3_bias", "Qwen3VLForConditionalGeneration", inner, "model.visual.blocks.0.attn.qkv.weight"),
        {"model_type": "qwen3_vl_text"},
    ),
    "Qwen2.5-VL": (
        *("qwen2", "Qwen2_5_VLForConditionalGeneration", inner, "visual.merger.mlp.0.weight"),
        {"model_type": "qwen2_5_vl_text", **_IMAGE_TOKENS},
    ),
    "Qwen2-VL": ("qwen2", "Qwen2VLForConditionalGeneration", str, "visual.patch_embed.proj.weight", {}),
    "Qwen3-VL-MoE": (
        *("qwen3_moe", "Qwen3VLMoeForConditionalGeneration", inner, "model.visual.pos_embed.weight"),
        {"model_type": "qwen3_vl_moe_text"},
    ),
    "Qwen3.5": (
        *("qwen3_5", "Qwen3_5ForConditionalGeneration", inner, "model.visual.blocks.0.attn.qkv.weight"),
        {"model_type": "qwen3_5_text", "mtp_num_hidden_layers": 1},
    ),
    "Qwen3.5 with experts": (
        *("qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration", inner, "mtp.layers.0.input_layernorm.weight"),
        {"model_type": "qwen3_5_moe_text"},
    ),
    "Gemma 4": ("gemma4_shared", "Gemma4ForConditionalGeneration", inner, "model.embed_audio.x.weight", {}),
    "Gemma 4 without towers": (
        *("gemma4_unified", "Gemma4UnifiedForConditionalGeneration", inner, "model.embed_vision.x.weight"),
        {"model_type": "gemma4_unified_text"},
    ),
    "LFM2-VL": ("lfm2", "Lfm2VlForConditionalGeneration", inner, "model.multi_modal_projector.linear_1.weight", {}),
    "LLaVA": ("llama", "LlavaForConditionalGeneration", language_model, "multi_modal_projector.linear_1.weight", {}),
    "LLaVA-NeXT": ("mistral_window", "LlavaNextForConditionalGeneration", language_model, "image_newline", {}),
    "LLaVA-OneVision": ("qwen2", "LlavaOnevisionForConditionalGeneration", inner, "model.image_newline", {}),
    "InternVL": ("qwen3_bias", "InternVLForConditionalGeneration", language_model, "vision_tower.x.weight", {}),
    "InternVL's own": ("qwen2", "InternVLChatModel", language_model, "mlp1.0.weight", {}),
    "InternVL with experts": ("gpt_oss", "InternVLForConditionalGeneration", inner, "vision_tower.x.weight", {}),
    "SmolVLM": (
        *("llama", "SmolVLMForConditionalGeneration", text_model, "model.connector.proj.weight"),
        {"perceiver_config": {"resampler_depth": 6}, "pixel_shuffle_factor": 4},
    ),
    "Idefics3": ("llama", "Idefics3ForConditionalGeneration", text_model, "model.vision_model.x.weight", {}),
    "Mistral3": ("ministral3", "Mistral3ForConditionalGeneration", inner, "model.vision_tower.x.weight", {}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_text_is_the_model_that_it_would_be_alone(
    case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name, architecture, rename, other, text = CASES[case]
    directory = wrapped(tmp_path / "model", name, architecture, rename, other, **text)
    assert load_model_config(directory) == load_model_config(GOLDENS / name)
    with caplog.at_level(logging.INFO):
        assert bits_of(directory) == bits_of(GOLDENS / name)
    left = other.removeprefix("model.").partition(".")[0]
    said = f"{directory}: not loaded, because text does not need it: {left}"
    assert (said in caplog.messages) == (left != "image_newline")


def test_every_wrapper_has_a_case() -> None:
    tested = {architecture for _, architecture, *_ in CASES.values()}
    assert tested | {"Gemma3ForConditionalGeneration"} == set(WRAPPERS), "there are goldens of the latter"


@pytest.mark.parametrize("sections", [_MROPE, _INTERLEAVED | {"rope_type": "default"}, _INTERLEAVED])
@pytest.mark.parametrize("field", ["rope_scaling", "rope_parameters"])
def test_three_equal_positions_rotate_as_one(sections: Config, field: str, tmp_path: Path) -> None:
    config, tensors = golden("qwen2")
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    directory = write(tmp_path / "model", config | {field: sections}, tensors)
    assert load_model_config(directory) == load_model_config(GOLDENS / "qwen2")


def test_sections_beside_yarn_leave_it_as_it_is(tmp_path: Path) -> None:
    config, tensors = golden("qwen2_yarn")
    field = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    directory = write(tmp_path / "model", config | {field: config[field] | {"mrope_section": [2, 2, 2]}}, tensors)
    assert load_model_config(directory) == load_model_config(GOLDENS / "qwen2_yarn")


@pytest.mark.parametrize("architecture", [name for name, wrapper in WRAPPERS.items() if wrapper.flat])
def test_the_hubs_flat_files_are_read(architecture: str, tmp_path: Path) -> None:
    config, tensors = golden("qwen2")
    whole = config | {"architectures": [architecture], "vision_config": {"depth": 2}, "model_type": "qwen2_vl"}
    directory = write(tmp_path / "model", whole | _IMAGE_TOKENS, tensors)
    assert load_model_config(directory) == load_model_config(GOLDENS / "qwen2")
    write(directory, whole | {"use_something_new": 3}, tensors)
    with pytest.raises(ConfigError, match="use_something_new is 3, which qwen2 does not know"):
        read_model_config(ModelFiles(directory))


@pytest.mark.parametrize("transposed", [False, True])
def test_experts_in_one_tensor_are_those_that_they_would_be_apart(transposed: bool, tmp_path: Path) -> None:
    """Qwen3-VL-MoE's files have [experts, in, out], which transformers saves again as [experts, out, in]."""
    config, tensors = golden("qwen3_moe")
    count = config["num_experts"]
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}.mlp.experts"
        for name, parts in {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}.items():
            each = [[tensors.pop(f"{prefix}.{i}.{part}.weight") for part in parts] for i in range(count)]
            stacked = np.stack([np.concatenate(of_expert) for of_expert in each])
            tensors[f"{prefix}.{name}"] = np.ascontiguousarray(stacked.swapaxes(1, 2)) if transposed else stacked
    directory = write(tmp_path / "model", config, tensors)
    assert bits_of(directory) == bits_of(GOLDENS / "qwen3_moe")
    cut = "model.layers.1.mlp.experts.down_proj"
    write(directory, config, tensors | {cut: np.ascontiguousarray(tensors[cut][1:])})
    with pytest.raises(ConfigError, match=rf"{cut} has shape \[5, .*, but config.json means \[6, 32, 24\] or \[6, 24"):
        bits_of(directory)


def test_experts_of_qwen3_vl_are_always_renormalised(tmp_path: Path) -> None:
    config, tensors = golden("qwen3_moe")
    del config["norm_topk_prob"]  # as in files that transformers 5 writes
    whole = {"architectures": ["Qwen3VLMoeForConditionalGeneration"], "text_config": config}
    assert load_model_config(write(tmp_path / "model", whole, tensors)) == load_model_config(GOLDENS / "qwen3_moe")


def test_sizes_that_files_of_llava_leave_out_are_those_of_its_class(tmp_path: Path) -> None:
    text = {"model_type": "llama", "max_position_embeddings": 4096, "rms_norm_eps": 1e-05, "vocab_size": 32_064}
    whole = {"architectures": ["LlavaForConditionalGeneration"], "text_config": text}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    found = read_model_config(ModelFiles(tmp_path))
    sizes = found.hidden_size, found.intermediate_size, found.num_layers, found.num_heads, found.vocab_size
    assert sizes == (4096, 11_008, 32, 32, 32_064)


@pytest.mark.parametrize(
    ("architecture", "kind"),
    [("InternVLForConditionalGeneration", "internlm2"), ("Qwen3VLForConditionalGeneration", "gemma3n_text")],
)
def test_a_text_model_that_is_not_served_is_refused_by_its_type(architecture: str, kind: str, tmp_path: Path) -> None:
    directory = wrapped(tmp_path / "model", "qwen3_bias", architecture, inner, model_type=kind)
    says = f"text_config: model_type is '{kind}', which is not supported as the text model of {architecture}"
    with pytest.raises(ConfigError, match=says):
        read_model_config(ModelFiles(directory))


@pytest.mark.parametrize(("outer", "of_text"), [(True, False), (False, True)])
@pytest.mark.parametrize("name", ["qwen2", "qwen3_moe"])
def test_a_head_settles_whether_embeddings_are_tied(outer: bool, of_text: bool, name: str, tmp_path: Path) -> None:
    """transformers 4 asks the text's part of the file, transformers 5 the whole."""
    config, tensors = golden(name)
    text = config | {"tie_word_embeddings": of_text}
    whole = {"architectures": ["InternVLForConditionalGeneration"], "text_config": text, "tie_word_embeddings": outer}
    directory = write(tmp_path / "model", whole, {inner(key): value for key, value in tensors.items()})
    assert bits_of(directory) == bits_of(GOLDENS / name)


def test_ends_of_texts_are_those_of_the_texts_part(tmp_path: Path) -> None:
    directory = wrapped(tmp_path / "model", "qwen2", "InternVLChatModel", language_model, eos_token_id=7)
    assert read_eos_token_ids(directory) == {7}


def test_the_log_says_that_only_text_is_served(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = wrapped(tmp_path / "model", "qwen2", "LlavaForConditionalGeneration", language_model)
    with caplog.at_level(logging.INFO):
        load_model_config(directory)
    assert [record.message for record in caplog.records] == [
        f"{directory}: LlavaForConditionalGeneration is served as text only: nothing else is loaded"
    ]
