"""GGUF files, which the gguf package writes from recorded checkpoints: the same weights and logits."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGMLQuantizationType as Kind
from safetensors.numpy import save_file

from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.errors import ConfigError
from jaxgen.core.mixed_weight import MixedFormat
from jaxgen.models.positions import inverse_frequencies
from jaxgen.weights.encodings.quantize import dequantized
from jaxgen.weights.encodings.weight_formats import EMBEDDINGS, PRODUCTS, parameter_bytes
from jaxgen.weights.gguf import model as gguf
from jaxgen.weights.gguf.codes import LAYOUTS
from jaxgen.weights.gguf.file import GgufFile
from jaxgen.weights.huggingface.config import read_eos_token_ids
from jaxgen.weights.load import load_model_config, load_params
from jaxgen.weights.resolve import resolve_model
from tests.support.conversions import bits_of, run
from tests.support.gguf_files import CONTROL, NORMAL, USER_DEFINED, letters, load, save_rounded, write
from tests.support.golden_runs import LOGIT_TOLERANCE, SMALL, relative_logit_error
from tests.support.goldens import GOLDENS, bits, copy_golden, golden_answers

LINEAR = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}


def llama3_factors() -> npt.NDArray[np.float32]:
    """What the frequencies of the golden llama3_rope are divided by, as llama.cpp's converter writes it."""
    rope = json.loads((GOLDENS / "llama3_rope" / "config.json").read_text())["rope_parameters"]
    factors = []
    for i in range(0, 16, 2):
        turns = rope["original_max_position_embeddings"] / (2 * np.pi * rope["rope_theta"] ** (i / 16))
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        smooth = min(max((turns - low) / (high - low), 0.0), 1.0)
        factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, np.float32)


def phi3_options() -> dict[str, Any]:
    rope = json.loads((GOLDENS / "phi3_long" / "config.json").read_text())["rope_parameters"]
    factors = {name: np.array(rope[f"{name}_factor"], np.float32) for name in ("long", "short")}
    return {
        "metadata": {"rope.scaling.original_context_length": 32},
        "more": {f"rope_factors_{name}.weight": values for name, values in factors.items()},
    }


@pytest.mark.full  # a program for each; that weights and configuration are the source's is quick to see, below
@pytest.mark.parametrize(
    ("golden", "family", "options"),
    [
        ("llama", "llama", {}),
        ("llama3_rope", "llama", {"more": {"rope_freqs.weight": llama3_factors()}}),
        ("phi3_long", "phi3", phi3_options()),
    ],
)
def test_logits_are_the_recorded_ones(golden: str, family: str, options: dict[str, Any], tmp_path: Path) -> None:
    converted = run(write(tmp_path / "model.gguf", GOLDENS / golden, family, **options), tmp_path / "converted")
    answers = golden_answers(golden)
    config = load_model_config(converted).within(max(len(one.prompt) + len(one.greedy) for one in answers))
    params = load_params(converted, config, progress=False)
    assert relative_logit_error(config, params, answers, SMALL) < LOGIT_TOLERANCE


@pytest.mark.parametrize(
    ("golden", "family", "options"),
    [
        ("llama", "llama", {}),
        ("llama_linear_rope", "llama", {"metadata": LINEAR}),
        ("mistral_window", "llama", {"metadata": {"attention.sliding_window": 16}}),
        ("phi3_long", "phi3", phi3_options()),
    ],
)
def test_weights_and_configuration_are_the_source_s(
    golden: str, family: str, options: dict[str, Any], tmp_path: Path
) -> None:
    source = GOLDENS / golden
    converted = run(write(tmp_path / "model.gguf", source, family, **options), tmp_path / "converted")
    assert bits_of(converted, "float32") == bits_of(source, "float32")
    assert load_model_config(converted) == load_model_config(source, "float32")


def test_factors_of_llama_3_give_its_frequencies(tmp_path: Path) -> None:
    """The file has numbers by which frequencies are divided, and not the fields that they were computed from."""
    source = GOLDENS / "llama3_rope"
    metadata = {"rope.scaling.original_context_length": 32}
    more = {"rope_freqs.weight": llama3_factors()}
    file = write(tmp_path / "model.gguf", source, "llama", metadata=metadata, more=more)
    converted = run(file, tmp_path / "converted")
    got, want = (load_model_config(directory, "float32") for directory in (converted, source))
    assert isinstance(got, DecoderConfig)
    assert isinstance(want, DecoderConfig)
    for config in (got, got.within(8)):
        (rope,) = config.positions.ropes
        frequencies, expected = (inverse_frequencies(one, 16) for one in (rope, want.positions.ropes[0]))
        np.testing.assert_allclose(frequencies, expected, rtol=1e-6)
        assert rope.attention_factor == 1.0
    assert bits_of(converted, "float32") == bits_of(source, "float32")


@pytest.mark.parametrize("golden", ["gemma2", "gemma3"])
def test_gemma(golden: str, tmp_path: Path) -> None:
    """Scores are scaled by the size of a head, biases have no place in a file, and full attention every sixth layer."""
    source = copy_golden(golden, tmp_path / "source")
    config = json.loads((source / "config.json").read_text())
    change = {"query_pre_attn_scalar": config["head_dim"], "attention_bias": False}
    metadata: dict[str, Any] = {}
    if golden == "gemma3":
        change["layer_types"] = ["sliding_attention"] * 2
        config["rope_parameters"]["sliding_attention"]["rope_theta"] = 10_000.0
        metadata = LINEAR | {"rope.scaling.factor": 8.0}
    (source / "config.json").write_text(json.dumps(config | change))
    tensors = {name: values for name, values in load(source).items() if not name.endswith(".bias")}
    for file in source.glob("*.safetensors"):
        file.unlink()
    save_file(tensors, source / "model.safetensors")
    file = write(tmp_path / "model.gguf", source, golden, metadata=metadata)
    converted = run(file, tmp_path / "converted")
    assert bits_of(converted, "bfloat16") == bits_of(source, "bfloat16")
    assert load_model_config(converted) == load_model_config(source, "float32")


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(Kind.F16, "float16"), (Kind.BF16, "bfloat16")],
)
def test_types_give_the_dequantised_weights(kind: Kind, dtype: Any, tmp_path: Path) -> None:
    """Rounded once, to the dtype that is stored."""
    file = write(tmp_path / "model.gguf", GOLDENS / "llama", "llama", kind=kind)
    expected = save_rounded(GOLDENS / "llama", tmp_path / "expected", kind, dtype)
    assert bits_of(run(file, tmp_path / "auto")) == bits_of(expected, dtype)
    assert bits_of(run(file, tmp_path / "wide", dtype="float32")) == bits_of(expected, "float32")


@pytest.mark.parametrize("kind", [Kind.Q8_0, Kind.Q4_1])
def test_codes_stay_codes(kind: Kind, tmp_path: Path) -> None:
    """Matrices are the file's numbers to the bit, and take its bytes; the rest is in bfloat16."""
    file = write(tmp_path / "model.gguf", GOLDENS / "llama", "llama", kind=kind)
    expected = bits_of(save_rounded(GOLDENS / "llama", tmp_path / "expected", kind, "float32"), "float32")
    converted = run(file, tmp_path / "converted")
    config = load_model_config(converted)
    params = load_params(converted, config, progress=False)
    assert json.loads((converted / "jaxgen.json").read_text())["format_version"] == 3
    assert dict(config.weight_formats).keys() == {*PRODUCTS[:3], PRODUCTS[4], *EMBEDDINGS[:2]}
    for path, form in config.weight_formats:
        assert form == LAYOUTS[kind.name].form
        assert bits(dequantized(params[path])) == expected[path]
    assert {str(params[path].dtype) for path in params.keys() - dict(config.weight_formats).keys()} == {"bfloat16"}
    stored = sum(one.data.nbytes for one in GgufFile(file).tensors.values() if len(one.shape) > 1)
    assert sum(params[path].nbytes for path, _ in config.weight_formats) == stored


def test_layers_and_outputs_of_one_parameter_keep_their_own_types(tmp_path: Path) -> None:
    """As values and down projections of Q4_K_M: the numbers and the bytes are the file's."""
    source, kinds = GOLDENS / "llama", {"blk.0.attn_v.weight": Kind.Q8_0, "blk.1.ffn_down.weight": Kind.Q8_0}
    file = write(tmp_path / "model.gguf", source, "llama", kind=Kind.Q4_1, kinds=kinds)
    several = {
        kind: load(save_rounded(source, tmp_path / kind.name, kind, "float32")) for kind in (Kind.Q4_1, Kind.Q8_0)
    }
    fine = ("layers.0.self_attn.v_proj", "layers.1.mlp.down_proj")
    mixed = {
        name: several[Kind.Q8_0 if any(one in name for one in fine) else Kind.Q4_1][name] for name in several[Kind.Q4_1]
    }
    save_file(mixed, tmp_path / "Q4_1" / "model.safetensors", metadata={"format": "pt"})
    expected = bits_of(tmp_path / "Q4_1", "float32")
    converted = run(file, tmp_path / "converted")
    config = load_model_config(converted)
    params = load_params(converted, config, progress=False)
    assert json.loads((converted / "jaxgen.json").read_text())["format_version"] == 4
    qkv, down = (config.weight_format(PRODUCTS[place]) for place in (0, 4))
    assert isinstance(qkv, MixedFormat)
    assert isinstance(down, MixedFormat)
    of_parts = [[getattr(part.form, "bits", None) for part in kind] for kind in (*qkv.kinds, *down.kinds)]
    assert of_parts == [[4, 8], [4], [4], [8]]
    for path, _ in config.weight_formats:
        assert bits(params[path].dequantized()) == expected[path]
    stored = sum(one.data.nbytes for one in GgufFile(file).tensors.values() if len(one.shape) > 1)
    assert sum(params[path].nbytes for path, _ in config.weight_formats) == stored
    assert parameter_bytes(config) == stored + sum(
        params[path].nbytes for path in params.keys() - dict(config.weight_formats).keys()
    )


def test_a_quantization_rounds_the_numbers_of_codes(tmp_path: Path) -> None:
    file = write(tmp_path / "model.gguf", GOLDENS / "llama", "llama", kind=Kind.Q8_0)
    expected = save_rounded(GOLDENS / "llama", tmp_path / "expected", Kind.Q8_0, "bfloat16")
    directory = run(file, tmp_path / "converted", quantization="int4")
    assert load_model_config(directory) == load_model_config(expected, quantization="int4")


def test_parts_are_one_model(tmp_path: Path) -> None:
    write(tmp_path / "model.gguf", GOLDENS / "llama", "llama", split=8)
    parts = sorted(tmp_path.glob("*.gguf"))
    assert [part.name for part in parts] == [f"model-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    assert bits_of(run(parts[0], tmp_path / "converted")) == bits_of(GOLDENS / "llama")
    with pytest.raises(ConfigError, match="is part 2 of 3: name the first, model-00001-of-00003"):
        run(parts[1], tmp_path / "again")
    renamed = parts[0].rename(tmp_path / "renamed.gguf")
    with pytest.raises(ConfigError, match=r"is part 1 of 3, but its name does not say so"):
        run(renamed, tmp_path / "again")
    renamed.rename(parts[0])
    parts[2].unlink()
    with pytest.raises(ConfigError, match=r"00003-of-00003.gguf is missing: the model is in 3 parts"):
        run(parts[0], tmp_path / "again")


def test_ends_of_answers(tmp_path: Path) -> None:
    """The token that the file names, and those that end an answer wherever they are control tokens.

    A converted Gemma has the HTML tag </s>, as text.
    """
    most = letters(254)
    tokens = most["tokens"] + ["<|im_end|>", "</s>"]
    for kind, ends in ((CONTROL, {3, 254, 255}), (USER_DEFINED, {3}), (NORMAL, {3})):
        metadata = {"tokenizer.ggml.eos_token_id": 3}
        vocabulary = most | {"tokens": tokens, "kinds": [NORMAL] * 254 + [kind] * 2}
        file = write(tmp_path / "m.gguf", GOLDENS / "llama", "llama", vocabulary=vocabulary, metadata=metadata)
        assert read_eos_token_ids(run(file, tmp_path / str(kind))) == ends


def test_a_directory_names_its_file(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    with pytest.raises(ConfigError, match=rf"no config.json, but a GGUF file: name that, as --model {file}$"):
        resolve_model(str(tmp_path))


def test_a_layer_that_is_not_quantised_is_numbers_next_to_codes(tmp_path: Path) -> None:
    """As files have their first layers, or some of their tensors, in 16 bits."""
    kinds = {"blk.1.ffn_down.weight": Kind.F32, "blk.0.attn_v.weight": Kind.F32}
    file = write(tmp_path / "model.gguf", GOLDENS / "llama", "llama", kind=Kind.Q8_0, kinds=kinds)
    with gguf.opened(file) as (directory, tensors):
        config = load_model_config(directory, "bfloat16", tensors=tensors)
        params = load_params(directory, config, tensors=tensors, place=lambda _, value: value, progress=False)
    qkv, down = (config.weight_format(PRODUCTS[place]) for place in (0, 4))
    assert isinstance(qkv, MixedFormat)
    assert isinstance(down, MixedFormat)
    assert (qkv.plain_layers, down.plain_layers) == ([0], [1])
    assert parameter_bytes(config) == sum(value.nbytes for value in params.values())
    assert params[PRODUCTS[4]].kinds[1][0].numbers.dtype == np.dtype("bfloat16")
