"""Checkpoints in FP8 and FP4 are the numbers that their formats define, as numbers or in the codes that they store."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from jaxgen.core.errors import ConfigError
from jaxgen.core.layer_kind import path_without_stack
from jaxgen.core.model_config import ModelConfig
from jaxgen.core.quantization import GroupedWeight, Quantization, WeightFormat
from jaxgen.weights.encodings.quantize import dequantized
from jaxgen.weights.load import load_model_config, load_params
from jaxgen.weights.summary import summarize, summary_of
from tests.support.conversions import run
from tests.support.format_cases import FLOATS as CASES
from tests.support.goldens import GOLDENS, bits
from tests.support.quantised_cases import FP8, Made, both, fp4, fp8
from tests.support.quantised_checkpoints import FLOAT8, Tensors, plain_tensors, quantised_pair, write_checkpoint

EXPERTS_GATE_UP, EXPERTS_DOWN = "layers.mlp.experts.gate_up.weight", "layers.mlp.experts.down.weight"
QKV, OUT, GATE_UP, DOWN = (f"layers.{name}.weight" for name in ("attn.qkv", "attn.out", "mlp.gate_up", "mlp.down"))


def flag(case: str) -> Quantization:
    return cast(Quantization, CASES[case][2].title)


def loaded(directory: Path, quantization: Quantization) -> tuple[ModelConfig, dict[str, Any]]:
    config = load_model_config(directory, quantization=quantization)
    return config, load_params(directory, config, place=lambda _, value: value, progress=False)


@pytest.mark.parametrize("case", CASES)
def test_they_become_numbers(case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    config, _ = both(quantised_pair(tmp_path, "llama", *CASES[case][:2]))
    assert config.weight_formats == ()
    assert f"dequantised to float32: {QKV}, {OUT}, {GATE_UP}, {DOWN} (stored in " in caplog.text


@pytest.mark.parametrize("case", CASES)
def test_they_stay_codes_where_that_is_asked_for(case: str, tmp_path: Path) -> None:
    about, encode, form = CASES[case]
    packed, plain = quantised_pair(tmp_path, "llama", about, encode)
    config, found = loaded(packed, flag(case))
    _, numbers = loaded(plain, "none")
    assert found.keys() == numbers.keys()
    for path in (QKV, OUT, GATE_UP, DOWN):
        assert found[path].format == config.weight_format(path) == form
    for path, value in found.items():
        same = dequantized(value) if isinstance(value, GroupedWeight) else value
        assert np.array_equal(same, numbers[path]), path


def test_a_matrix_that_two_parameters_are_made_of_becomes_numbers(tmp_path: Path) -> None:
    """Of keys and of values, which each head has in turn; a block of scales has rows of both."""
    packed, plain = quantised_pair(tmp_path, "deepseek_v2", *CASES["fp8 block"][:2])
    (_, found), (_, numbers) = loaded(packed, "fp8"), loaded(plain, "none")
    for path in ("keys", "values"):
        path = f"layers.latent.attn.{path}.weight"
        assert found[path].shape == numbers[path].shape
        assert np.array_equal(found[path], numbers[path])


@pytest.mark.parametrize("case", ["fp8 block", "compressed nvfp4"])
def test_converted_they_stay_codes(case: str, tmp_path: Path) -> None:
    packed, plain = quantised_pair(tmp_path, "llama", *CASES[case][:2])
    directory = run(packed, tmp_path / "converted", quantization=flag(case))
    config, _ = both((directory, plain))
    assert config == load_model_config(packed, quantization=flag(case))
    with pytest.raises(ConfigError, match=f"has weights that are quantised already, to {flag(case)}; leave the flag"):
        load_model_config(directory, quantization="int8")


@pytest.mark.parametrize("case", ["fp8 tensor", "compressed fp8 channel"])
def test_activations_in_fp8_are_a_choice_of_their_own(case: str, tmp_path: Path) -> None:
    packed, plain = quantised_pair(tmp_path, "llama", *CASES[case][:2])
    (config, found), (fp8_weights, same) = (loaded(packed, name) for name in ("fp8_dynamic", "fp8"))
    assert config == replace(fp8_weights, fp8_inputs=True)
    assert np.array_equal(found[QKV].codes, same[QKV].codes)
    assert config.weight_formats == fp8_weights.weight_formats != ()
    assert not loaded(packed, "none")[0].fp8_inputs
    directory = run(packed, tmp_path / "converted", quantization="fp8")
    assert load_model_config(directory, quantization="fp8_dynamic") == config
    made = load_model_config(plain, quantization="fp8_dynamic")
    assert (made.fp8_inputs, made.weight_format(QKV)) == (True, WeightFormat(8, None, floats=True))


def test_weights_that_activations_in_fp8_cannot_multiply_are_refused(tmp_path: Path) -> None:
    packed, _ = quantised_pair(tmp_path, "llama", *CASES["fp8 block"][:2])
    with pytest.raises(ConfigError) as caught:
        load_model_config(packed, quantization="fp8_dynamic")
    assert str(caught.value) == (
        f"--quantization fp8_dynamic: {OUT} has scales for groups of 48 inputs, and "
        "needs one for each output or matrix: use --quantization fp8, which leaves activations as they are"
    )
    integers = run(GOLDENS / "llama", tmp_path / "int8", quantization="int8")
    with pytest.raises(ConfigError, match=r"^--quantization fp8_dynamic: .* are quantised already, to int8; leave"):
        load_model_config(integers, quantization="fp8_dynamic")


@pytest.mark.parametrize("case", ["fp8 block", "compressed nvfp4"])
def test_they_may_be_rounded_again(case: str, tmp_path: Path) -> None:
    packed, plain = quantised_pair(tmp_path, "llama", *CASES[case][:2])
    (config, found), (expected, rounded) = (loaded(directory, "int8") for directory in (packed, plain))
    assert config == expected
    assert np.array_equal(dequantized(found[QKV]), dequantized(rounded[QKV]))


@pytest.mark.parametrize("case", ["fp8 tensor", "compressed nvfp4", "compressed mxfp4"])
def test_scales_of_activations_are_said_to_be_left_out(
    case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    packed, _ = quantised_pair(tmp_path, "llama", *CASES[case][:2])
    loaded(packed, "none")
    assert ("scales of activations are not used" in caplog.text) == (case != "compressed mxfp4")


def test_experts_in_mxfp4_stay_codes_where_that_is_asked_for() -> None:
    config, found = loaded(GOLDENS / "gpt_oss_mxfp4", "fp4")
    _, numbers = loaded(GOLDENS / "gpt_oss_mxfp4", "none")
    assert [path for path, _ in config.weight_formats] == [
        "layers.mlp.experts.down.weight",
        "layers.mlp.experts.gate_up.weight",
    ]
    for path, form in config.weight_formats:
        assert form == WeightFormat(4, 32, floats=True)
        assert np.array_equal(dequantized(found[path]), numbers[path].astype(np.float32))
        assert np.array_equal(
            found[path].as_placed(form.placed(integers=(8,), floats=False)).dequantized(), dequantized(found[path])
        )


def test_fp4_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_model_config(GOLDENS / "llama", quantization="fp4")
    assert str(caught.value) == (
        f"--quantization fp4 keeps weights that are stored in it, in NVFP4 or MXFP4, and {GOLDENS / 'llama'} has none: "
        f"use int4 or fp8"
    )


def test_modelopts_two_formats_in_one_checkpoint_are_told_by_their_tensors(tmp_path: Path) -> None:
    eight, four = fp8("tensor"), fp4("modelopt")

    def encode(name: str, shape: tuple[int, int]) -> Made | None:
        return (four if ".mlp." in name else eight)(name, shape)

    about = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {"x": {}}}
    packed, plain = quantised_pair(tmp_path, "llama", about, encode)
    both((packed, plain))
    config, _ = loaded(packed, "fp8")
    assert config.weight_format(OUT) == WeightFormat(8, None, "float32", floats=True)
    config, _ = loaded(packed, "fp4")
    assert config.weight_format(DOWN) == WeightFormat(4, 16, "float32", floats=True)


def test_modelopts_own_file_describes_a_checkpoint(tmp_path: Path) -> None:
    packed, plain = quantised_pair(tmp_path, "llama", None, fp4("modelopt"))
    about = {
        "producer": {"name": "modelopt"},
        "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"},
    }
    (packed / "hf_quant_config.json").write_text(json.dumps(about))
    both((packed, plain))
    (packed / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "W4A8_AWQ"}}))
    with pytest.raises(ConfigError, match="quantization: quant_algo is 'W4A8_AWQ'; supported: FP8, FP8_PER_"):
        load_model_config(packed)


def test_it_is_said_what_weights_are(tmp_path: Path) -> None:
    floats, _ = quantised_pair(tmp_path, "llama", *CASES["fp8 block"][:2])
    assert summarize(floats).dtype == "FP8 as float32"
    assert summary_of(floats, load_model_config(floats, quantization="int8")).dtype == "int8"
    assert summary_of(floats, load_model_config(floats, quantization="fp8")).dtype == "FP8"
    assert summarize(run(floats, tmp_path / "converted", quantization="fp8")).dtype == "fp8"


def not_a_number(name: str, tensors: Tensors) -> None:
    tensors[f"{name}.weight"].view(np.uint8)[1, 2] = 0xFF


def no_scale(name: str, tensors: Tensors) -> None:
    tensors[f"{name}.weight_global_scale"][...] = 0


def short_scales(name: str, tensors: Tensors) -> None:
    tensors[f"{name}.weight_scale"] = tensors[f"{name}.weight_scale"][:, 1:]


@pytest.mark.parametrize(
    ("case", "change", "message"),
    [
        ("fp8 block", not_a_number, "in FP8 has numbers that are not finite"),
        ("compressed nvfp4", no_scale, r"in NVFP4 \(compressed-tensors\) has scales that are not finite"),
        (
            "compressed nvfp4",
            short_scales,
            r"has weight_scale of dtype F8_E4M3 and shape \[64, 3\]; .* F8_E4M3 and \[64, 4\]",
        ),
        ("compressed mxfp4", short_scales, r"has weight_scale of dtype U8 and shape \[64, 1\]"),
    ],
)
def test_damaged_checkpoints_are_refused_by_name(case: str, change: Any, message: str, tmp_path: Path) -> None:
    about, encode, _ = CASES[case]

    def damaged(name: str, shape: tuple[int, int]) -> Any:
        tensors, numbers = encode(name, shape)  # type: ignore[misc]
        if name.endswith("layers.1.self_attn.o_proj"):
            change(name, tensors)
        return tensors, numbers

    packed, _ = quantised_pair(tmp_path, "llama", about, damaged)
    with pytest.raises(
        ConfigError, match=rf"model.safetensors: model\.layers\.1\.self_attn\.o_proj\.weight .*{message}"
    ):
        load_params(packed, load_model_config(packed), progress=False)


def test_what_is_left_in_the_models_dtype_stays(tmp_path: Path) -> None:
    """With the flag too: a checkpoint that has some FP8 is not rounded further."""
    encode = CASES["fp8 block"][1]
    packed, _ = quantised_pair(
        tmp_path, "llama", FP8, lambda name, shape: None if "down_proj" in name else encode(name, shape)
    )
    config, found = loaded(packed, "fp8")
    assert config.weight_format(DOWN) is None
    assert bits(found[DOWN]) == bits(loaded(GOLDENS / "llama", "none")[1][DOWN])


@pytest.mark.parametrize(("golden", "turned"), [("qwen3_moe", True), ("qwen3_moe", False), ("qwen3_5_moe", False)])
def test_experts_in_fp8_may_be_one_tensor(golden: str, turned: bool, tmp_path: Path) -> None:
    """Of Qwen3-VL: [experts, in, out], with scales of blocks; newer files have [experts, out, in]."""
    packed, plain = stacked_fp8(tmp_path, golden, turned=turned)
    config, found = loaded(packed, "fp8")
    (_, dequantised), (_, numbers) = (loaded(directory, "none") for directory in (packed, plain))
    assert {path_without_stack(path) for path, _ in config.weight_formats} == {EXPERTS_GATE_UP, EXPERTS_DOWN}
    for path, value in found.items():
        same = dequantized(value) if isinstance(value, GroupedWeight) else value
        assert np.array_equal(same, numbers[path]), path
        assert np.array_equal(dequantised[path], numbers[path]), path


def test_blocks_that_gates_share_with_others_are_refused(tmp_path: Path) -> None:
    packed, _ = stacked_fp8(tmp_path, "qwen3_moe", block=64)
    with pytest.raises(
        ConfigError, match=r"experts.gate_up_proj in FP8 has blocks of scales in which gates and other rows are mixed"
    ):
        loaded(packed, "none")


def stacked_fp8(directory: Path, golden: str, *, turned: bool = True, block: int = 8) -> tuple[Path, Path]:
    """A golden whose experts are one tensor in FP8, as Qwen3-VL's files have it, and one with the same numbers."""
    rng, plain = np.random.default_rng(0), plain_tensors(golden)
    config = json.loads((GOLDENS / golden / "config.json").read_text()) | {"dtype": "float32"}
    packed: dict[str, Any] = {name: value for name, value in plain.items() if ".experts." not in name}
    for layer in range(config["num_hidden_layers"]):
        base = f"model.layers.{layer}.mlp.experts"
        for name, parts in (("gate_up_proj", ("gate_proj", "up_proj")), ("down_proj", ("down_proj",))):
            outputs, inputs = plain[f"{base}.0.{parts[0]}.weight"].shape
            shape = (config["num_experts"], outputs * len(parts), inputs)
            codes = rng.normal(scale=30, size=shape).astype(FLOAT8)
            blocks = (shape[0], *(-(-size // block) for size in shape[1:]))
            scales = rng.uniform(0.5, 1.5, blocks).astype(np.float32) / 512
            each = scales.repeat(block, 1).repeat(block, 2)[:, : shape[1], : shape[2]]
            numbers = codes.astype(np.float32) * each
            for expert in range(shape[0]):
                for part, values in zip(parts, np.split(numbers[expert], len(parts)), strict=True):
                    plain[f"{base}.{expert}.{part}.weight"] = values
            stored = (codes.swapaxes(1, 2), scales.swapaxes(1, 2)) if turned else (codes, scales)
            packed |= {f"{base}.{name}": stored[0], f"{base}.{name}_scale_inv": stored[1]}
    about = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [block, block]}
    write_checkpoint(directory / "packed", packed, config | {"quantization_config": about})
    write_checkpoint(directory / "plain", plain, config)
    return directory / "packed", directory / "plain"
