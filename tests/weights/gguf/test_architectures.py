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
from jaxgen.weights.gguf.architectures import ARCHITECTURES, architecture_of
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
    "deepseek_v2": {"rope_scaling": {"mscale": 1.2}},
    "deepseek_v2_groups": {},
    "deepseek_v3": {"rope_parameters": {"mscale": 1.2}},
    "dots1": {"sliding_window": None},
    "ernie4_5_moe": {},
    "exaone4": {},
    "exaone4_full": {},
    "falcon_40b": {"max_position_embeddings": 2048},
    "falcon_7b": {"ffn_hidden_size": 128, "tie_word_embeddings": False},
    "gemma2": _GEMMA,
    "gemma3_wrapped": {"text_config": _GEMMA | {"layer_types": ["sliding_attention"] * 2}},
    "gemma4_moe": {},
    "gemma4_shared": {},
    "gemma4_unified": {},
    "glm4_bias": {},
    "glm4_moe": {},
    "glm4_moe_lite": {},
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
    others = set(MODEL_ARCH_NAMES.values()) - set(ARCHITECTURES)
    assert sorted(name for name in others if not what_is_near(name)) == []
    assert not [name for name in ARCHITECTURES if what_is_near(name)]


@pytest.mark.parametrize(
    ("name", "why"),
    [
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


def older(tensors: dict[str, Array]) -> dict[str, Array]:
    """Keys and values as one tensor with rows by head, as in files of before April 2025."""
    for layer in range(2):
        keys, values = (tensors.pop(f"blk.{layer}.attn_{name}_b.weight") for name in "kv")
        by_head = np.concatenate([keys.swapaxes(1, 2), values], axis=1)
        tensors[f"blk.{layer}.attn_kv_b.weight"] = by_head.reshape(-1, by_head.shape[-1])
    return tensors


def test_an_older_file_has_keys_and_values_of_a_latent_in_one_tensor(tmp_path: Path) -> None:
    sizes = {"head_count_kv": 4, "key_length": 20, "value_length": 16, "key_length_mla": 0, "value_length_mla": 0}
    more = {f"deepseek2.attention.{name}": value for name, value in sizes.items()}
    file = rewritten(FILES / "deepseek_v3.gguf", tmp_path / "m.gguf", older, more=more)
    with gguf.opened(FILES / "deepseek_v3.gguf") as (directory, tensors):
        wanted = of(directory, tensors)
    with gguf.opened(file) as (directory, tensors):
        config, numbers = of(directory, tensors)
    assert config == wanted[0]
    for path, values in wanted[1].items():
        np.testing.assert_array_equal(numbers[path], values, err_msg=path)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("deepseek_v2", {"expert_gating_func": 2}, "expert_gating_func 2 is not supported, only 1: scores without"),
        ("deepseek_v3", {"expert_gating_func": 1}, "expert_gating_func 1 is not supported, only 2"),
        ("deepseek_v3", {"attention.key_length_mla": 8}, r"key_length_mla must be more than .*\(8\), not 8"),
        ("deepseek_v3", {"attention.value_length": 16}, "value_length 16 is not supported, only 32"),
        ("glm4_moe", {"expert_gating_func": 1}, "expert_gating_func 1 is not supported, only 2"),
        ("ernie4_5_moe", {"expert_gating_func": 2}, "expert_gating_func 2 is not supported, only 1"),
    ],
)
def test_experts_and_latents_that_are_not_computed(
    name: str, changes: dict[str, int], message: str, tmp_path: Path
) -> None:
    kind = GgufFile(FILES / f"{name}.gguf").fields.data["general.architecture"]
    more = {f"{kind}.{key}": value for key, value in changes.items()}
    file = rewritten(FILES / f"{name}.gguf", tmp_path / "m.gguf", lambda tensors: tensors, more=more)
    with pytest.raises(ConfigError, match=message), gguf.opened(file):
        pass


def test_layers_that_read_the_keys_of_others_may_have_their_own(tmp_path: Path) -> None:
    """As Gemma 4 has them, which computes nothing with them."""
    unread = {
        f"blk.4.{name}.weight": np.ones(shape, np.float32)
        for name, shape in {"attn_k": (32, 32), "attn_v": (32, 32), "attn_k_norm": (16,)}.items()
    }
    file = rewritten(FILES / "gemma4_shared.gguf", tmp_path / "m.gguf", lambda tensors: tensors | unread)
    with gguf.opened(file) as (directory, tensors):
        found = of(directory, tensors)
    with gguf.opened(FILES / "gemma4_shared.gguf") as (directory, tensors):
        wanted = of(directory, tensors)
    assert found[0] == wanted[0]
    path = "layers.global_reader.attn.qkv.weight"
    np.testing.assert_array_equal(found[1][path], wanted[1][path])


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("attention.sliding_window_pattern", 6, "must be a list with an entry by layer, not 6"),
        (
            "feed_forward_length",
            [48, 48, 96, 96, 96],
            r"must be one number, or twice that in the last 2 layers, not \[48",
        ),
        ("attention.head_count_kv", [2, 2, 1, 2, 2], "layers of type sliding_attention with different heads"),
        ("attention.head_count", [4, 4, 2, 4, 4], "differs by layer, which is not supported"),
        ("rope.dimension_count_swa", 4, "4 is not supported, only 8: the size of a head with a window"),
    ],
)
def test_metadata_by_layer_that_do_not_fit(key: str, value: Any, message: str, tmp_path: Path) -> None:
    more = {f"gemma4.{key}": value}
    file = rewritten(FILES / "gemma4_shared.gguf", tmp_path / "m.gguf", lambda tensors: tensors, more=more)
    with pytest.raises(ConfigError, match=message), gguf.opened(file):
        pass


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
        ("gemma4_moe", {"rope_freqs.weight": None}, "needs the tensor rope_freqs.weight, which is missing"),
        (
            "gemma4_moe",
            {"rope_freqs.weight": (8,)},
            r"has other numbers in the tensor rope_freqs.weight than 1 and 1e\+30",
        ),
    ],
)
def test_tensors_that_do_not_fit(name: str, change: dict[str, Any], message: str, tmp_path: Path) -> None:
    def changed(tensors: dict[str, Array]) -> dict[str, Array]:
        made = {one: None if shape is None else np.zeros(shape, np.float32) for one, shape in change.items()}
        return {one: values for one, values in (tensors | made).items() if values is not None}

    file = rewritten(FILES / f"{name}.gguf", tmp_path / "m.gguf", changed)
    with pytest.raises(ConfigError, match=message), gguf.opened(file) as (directory, tensors):
        of(directory, tensors)
