"""Every architecture against the checkpoint it came from: files that llama.cpp's own converter wrote of the goldens."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from gguf import MODEL_ARCH_NAMES, GGUFReader, GGUFWriter
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quantize

from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.errors import ConfigError
from jaxgen.core.mixed_weight import AnyWeight
from jaxgen.core.quantization import GroupedWeight, Quantization, WeightFormat
from jaxgen.weights.encodings.mxfp4 import FORMAT
from jaxgen.weights.families.not_served import what_is_near
from jaxgen.weights.families.parameters import Array
from jaxgen.weights.files.model_files import ModelFiles
from jaxgen.weights.gguf import model as gguf
from jaxgen.weights.gguf.architectures import ARCHITECTURES, NOT_CONVERTED, architecture_of
from jaxgen.weights.gguf.file import GgufFile
from jaxgen.weights.gguf.tensors import GgufTensors
from jaxgen.weights.huggingface.checkpoint import read_parameters
from jaxgen.weights.load import load_model_config, load_params
from tests.support.conversions import run
from tests.support.gguf_files import add, finish
from tests.support.golden_runs import SMALL, greedy_tokens
from tests.support.goldens import copy_golden, golden_answers
from tests.support.paths import ROOT

FILES = ROOT / "tests" / "data" / "gguf"
_GEMMA = {"query_pre_attn_scalar": 12}
_PLAIN_ROPE = {"rope_parameters": None, "rope_theta": 1000.0}
CASES: dict[str, dict[str, Any]] = {
    "cohere": {},
    "cohere_heads": {},
    "exaone4": {},
    "exaone4_full": {},
    "falcon_40b": {"max_position_embeddings": 2048},
    "falcon_7b": {"ffn_hidden_size": 128, "tie_word_embeddings": False},
    "gemma2": _GEMMA,
    "gemma3_wrapped": {"text_config": _GEMMA | {"layer_types": ["sliding_attention"] * 2}},
    "glm4_bias": {},
    "gpt2": {},
    "gpt_neox": {},
    "gpt_oss_mxfp4": {},
    "granite_bias": {},
    "granite_hybrid": {},
    "lfm2": {},
    "lfm2_moe": {"routed_scaling_factor": 1.0},
    "ministral3": {},
    "mistral_nemo": {},
    "mixtral": {},
    "nemotron": {},
    "olmo2": {},
    "olmo3": {},
    "phi": {},
    "phi3_window": {},
    "qwen2_moe": {},
    "qwen2_yarn": {},
    "qwen2vl": _PLAIN_ROPE | {"use_sliding_window": False, "layer_types": None},
    "qwen3": {},
    "qwen3_5": {},
    "qwen3_5_moe": {},
    "qwen3_moe": {},
    "qwen3_next": {"norm_topk_prob": True},
    "qwen3vl": _PLAIN_ROPE,
    "qwen3vlmoe": {},
    "smollm3": {"no_rope_layers": None, "no_rope_layer_interval": 4},
    "stablelm": {},
    "stablelm_heads": {"rope_parameters": {"rope_theta": 10_000.0}},
    "starcoder2": {"sliding_window": None},
}
"""Goldens, with the changes to their configurations that files of GGUF cannot say."""


def of(directory: Path, tensors: GgufTensors | None = None) -> tuple[DecoderConfig, dict[str, Array]]:
    """The configuration and all parameters of a directory in float32, those of few bits dequantised."""
    config = load_model_config(directory, "float32", tensors=tensors)
    assert isinstance(config, DecoderConfig)
    found = read_parameters(ModelFiles(directory), config, tensors=tensors, progress=False)
    numbers = {path: one.dequantized() if isinstance(one, AnyWeight) else one for path, one in found}
    return replace(config, weight_formats=()), numbers


TEXTS = {"qwen2vl": "qwen2", "qwen3vl": "qwen3", "qwen3vlmoe": "qwen3_moe"}
"""Goldens that are the texts of models of images."""


def source_of(name: str, folder: Path) -> Path:
    directory = copy_golden(TEXTS.get(name, name), folder / name)
    config = json.loads((directory / "config.json").read_text())
    for key, value in CASES[name].items():
        config[key] = config[key] | value if isinstance(value, dict) else value
    (directory / "config.json").write_text(json.dumps(config))
    return directory


@pytest.mark.parametrize("name", CASES)
def test_weights_and_configuration_are_the_source_s(name: str, tmp_path: Path) -> None:
    with gguf.opened(FILES / f"{name}.gguf") as (directory, tensors):
        config, numbers = of(directory, tensors)
    wanted_config, wanted = of(source_of(name, tmp_path))
    assert config == wanted_config
    assert numbers.keys() == wanted.keys()
    for path, values in wanted.items():
        if path.endswith("a_log"):  # of which files have the exponential
            np.testing.assert_allclose(numbers[path].astype(float), values.astype(float), rtol=1e-6)
        else:
            np.testing.assert_array_equal(numbers[path], values, err_msg=path)


@pytest.mark.parametrize("quantization", ["none", "fp4"])
def test_experts_of_gpt_oss_stay_codes(quantization: Quantization) -> None:
    """Their numbers are compared above."""
    with gguf.opened(FILES / "gpt_oss_mxfp4.gguf") as (directory, tensors):
        config = load_model_config(directory, quantization=quantization, tensors=tensors)
    experts = ("layers.mlp.experts.down.weight", "layers.mlp.experts.gate_up.weight")
    assert dict(config.weight_formats) == dict.fromkeys(experts, FORMAT)


def test_every_architecture_has_a_file() -> None:
    found = {GgufFile(file).fields.data["general.architecture"] for file in FILES.glob("*.gguf")}
    assert found == set(ARCHITECTURES)


def test_every_other_architecture_of_llama_cpp_has_a_reason() -> None:
    others = set(MODEL_ARCH_NAMES.values()) - {*ARCHITECTURES, *NOT_CONVERTED}
    assert sorted(name for name in others if not what_is_near(name)) == []
    assert not [name for name in (*ARCHITECTURES, *NOT_CONVERTED) if what_is_near(name)]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("gemma4", "is served from Hugging Face's files alone"),
        ("deepseek2", "is served from Hugging Face's files alone"),
        ("minimax-m2", "corrected sigmoids"),
        ("gemma", "is an earlier model with other parts"),
    ],
)
def test_a_refused_file_says_why(name: str, why: str, tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "m.gguf", name)
    writer.add_tensor("token_embd.weight", np.zeros((2, 32), np.float32))
    finish(writer)
    with pytest.raises(ConfigError, match=rf"general.architecture is '{name}', which .*{re.escape(why)}"):
        architecture_of(GgufFile(tmp_path / "m.gguf"))


def rewritten(
    source: Path,
    destination: Path,
    change: Callable[[dict[str, Array]], dict[str, Array]],
    *,
    more: dict[str, Any] | None = None,
    coded: str = "nothing",
) -> Path:
    """A file with other tensors, in float32, and the same metadata, and ``more`` of them. Tensors with ``coded`` in
    their names are in Q8_0."""
    reader = GGUFReader(source)
    writer = GGUFWriter(destination, reader.fields["general.architecture"].contents())
    for name, value in (more or {}).items():
        add(writer, name, value)
    for name, one in reader.fields.items():
        if not name.startswith("GGUF.") and name not in {"general.architecture", *(more or {})}:
            sub_type = one.types[-1] if len(one.types) > 1 else None
            writer.add_key_value(name, one.contents(), one.types[0], sub_type=sub_type)
    tensors = {name: one.dequantised(np.float32) for name, one in GgufFile(source).tensors.items()}
    for name, values in change(tensors).items():
        kind = Kind.Q8_0 if coded in name else Kind.F32
        writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)
    finish(writer)
    return destination


def merge(tensors: dict[str, Array], names: tuple[str, ...], into: str, axis: int) -> dict[str, Array]:
    """The tensors with modules of a layer merged into one."""
    for layer in range(2):
        for kind in ("weight", "bias"):
            parts = [tensors.pop(f"blk.{layer}.{name}.{kind}", None) for name in names]
            if all(one is not None for one in parts):
                tensors[f"blk.{layer}.{into}.{kind}"] = np.concatenate(cast(list[Array], parts), axis=axis)
    return tensors


def in_one(tensors: dict[str, Array]) -> dict[str, Array]:
    """The projections of gated delta nets as one, by key head, as in files of 2025."""
    for layer in (0, 2):
        projected, gate = (tensors.pop(f"blk.{layer}.attn_{name}.weight") for name in ("qkv", "gate"))
        parts = (one.reshape(2, -1, one.shape[1]) for one in (*np.split(projected, (16, 32)), gate))
        tensors[f"blk.{layer}.ssm_in.weight"] = np.concatenate(list(parts), axis=1).reshape(-1, gate.shape[1])
    return tensors


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("phi", lambda tensors: merge(tensors, ("attn_q", "attn_k", "attn_v"), "attn_qkv", 0)),
        ("ministral3", lambda tensors: merge(tensors, ("attn_q", "attn_k", "attn_v"), "attn_qkv", 0)),
        ("qwen3_moe", lambda tensors: merge(tensors, ("ffn_gate_exps", "ffn_up_exps"), "ffn_gate_up_exps", 1)),
        ("gpt_oss_mxfp4", lambda tensors: merge(tensors, ("ffn_gate_exps", "ffn_up_exps"), "ffn_gate_up_exps", 1)),
        ("qwen3_next", in_one),
        ("qwen2_moe", lambda tensors: {name: one[0] if len(one) == 1 else one for name, one in tensors.items()}),
    ],
)
def test_other_layouts_of_the_same_tensors(
    name: str, change: Callable[[dict[str, Array]], dict[str, Array]], tmp_path: Path
) -> None:
    """Merged projections and experts, and a gate of one row as a vector, as older files and an option have them."""
    file = rewritten(FILES / f"{name}.gguf", tmp_path / "m.gguf", change)
    with gguf.opened(FILES / f"{name}.gguf") as (directory, tensors):
        wanted = of(directory, tensors)
    with gguf.opened(file) as (directory, tensors):
        config, numbers = of(directory, tensors)
    assert config == wanted[0]
    for path, values in wanted[1].items():
        np.testing.assert_array_equal(numbers[path], values, err_msg=path)


def test_layers_that_draft_are_left_out_and_a_list_says_which_have_attention(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def drafting(tensors: dict[str, Array]) -> dict[str, Array]:
        drafts = {name.replace("blk.1.", "blk.3."): one for name, one in tensors.items() if name.startswith("blk.1.")}
        return tensors | drafts | {"blk.3.nextn.eh_proj.weight": np.zeros((32, 64), np.float32)}

    counts = {"block_count": 4, "nextn_predict_layers": 1, "full_attention_interval": 3}
    more = counts | {"attention.recurrent_layers": [True, False, True, False]}
    more = {f"qwen35.{name}": value for name, value in more.items()}
    file = rewritten(FILES / "qwen3_5.gguf", tmp_path / "m.gguf", drafting, more=more)
    with caplog.at_level("INFO"), gguf.opened(file) as (directory, tensors):
        config, numbers = of(directory, tensors)
    with gguf.opened(FILES / "qwen3_5.gguf") as (directory, tensors):
        wanted = of(directory, tensors)
    assert config == wanted[0]
    assert numbers.keys() == wanted[1].keys()
    assert "its last 1 layers draft tokens, and are left out" in caplog.text


def test_codes_stay_codes_where_a_file_has_inputs_in_another_order(tmp_path: Path) -> None:
    """Blocks of 32 inputs have two heads of 16, which are not neighbours in the model."""
    file = rewritten(FILES / "qwen3_5.gguf", tmp_path / "m.gguf", lambda tensors: tensors, coded="ssm_out")
    with gguf.opened(file) as (directory, tensors):
        config = load_model_config(directory, "float32", tensors=tensors)
        found = dict(read_parameters(ModelFiles(directory), config, tensors=tensors, progress=False))
    path = "layers.delta.delta.out.weight"
    form = config.weight_format(path)
    assert isinstance(form, WeightFormat)
    assert (form.bits, form.ordered) == (8, True)
    stored = GgufFile(file).tensors["blk.2.ssm_out.weight"]
    tiled = dequantize(stored.data, Kind.Q8_0).reshape(32, 3, 2, 16)
    weight = found[path]
    assert isinstance(weight, GroupedWeight)
    np.testing.assert_array_equal(weight.dequantized((1,)), tiled.swapaxes(1, 2).reshape(32, 96))


SOME = [name for name, changes in CASES.items() if not changes][::3]


@pytest.mark.full  # a program for each; that weights and configuration are the source's is quick to see, above
@pytest.mark.parametrize("name", sorted({*SOME, "gpt_oss_mxfp4", "qwen3_5"}))
def test_greedy_answers_are_the_recorded_ones(name: str, tmp_path: Path) -> None:
    converted = run(FILES / f"{name}.gguf", tmp_path / "converted")
    answers = golden_answers(TEXTS.get(name, name))
    config = load_model_config(converted, "float32")
    assert isinstance(config, DecoderConfig)
    config = config.within(max(len(one.prompt) + len(one.greedy) for one in answers))
    got, _ = greedy_tokens(config, load_params(converted, config, progress=False), answers, SMALL)
    assert got == [one.greedy for one in answers]


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("granite_bias", {"blk.1.ffn_up.bias": None}, "the tensor blk.1.ffn_up.bias is missing"),
        ("qwen3_moe", {"blk.0.ffn_up_exps.weight": (6, 23, 32)}, r"has shape \[6, 23, 32\], but .* \[6, 24, 32\]"),
        ("gpt_oss_mxfp4", {"blk.0.attn_sinks.weight": (3,)}, r"attn_sinks.weight has shape \[3\], but"),
        ("falcon_40b", {"blk.0.extra.weight": (3,)}, "without the tensors blk.0.extra.weight"),
        ("qwen3_5", {"blk.0.ssm_a": (6,)}, "ssm_a has numbers of which no parameter is made, such as 0.0"),
    ],
)
def test_tensors_that_do_not_fit(name: str, change: dict[str, Any], message: str, tmp_path: Path) -> None:
    def changed(tensors: dict[str, Array]) -> dict[str, Array]:
        made = {one: None if shape is None else np.zeros(shape, np.float32) for one, shape in change.items()}
        return {one: values for one, values in (tensors | made).items() if values is not None}

    file = rewritten(FILES / f"{name}.gguf", tmp_path / "m.gguf", changed)
    with pytest.raises(ConfigError, match=message), gguf.opened(file) as (directory, tensors):
        of(directory, tensors)
