"""Quantised checkpoints that are not read, or damaged: each is refused by name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxgen.core.errors import ConfigError
from jaxgen.core.quantization import WeightFormat
from jaxgen.weights.load import load_model_config
from jaxgen.weights.summary import summarize
from tests.support.quantised_cases import (
    AWQ,
    FP8,
    GPTQ,
    Encode,
    Made,
    both,
    compressed,
    encoding,
    fp8,
    loaded,
)
from tests.support.quantised_checkpoints import (
    Tensors,
    awq,
    gptq,
    pack_quantized,
    quantised_pair,
)


def test_a_configuration_in_a_file_of_its_own(tmp_path: Path) -> None:
    packed, plain = quantised_pair(tmp_path, "llama", None, encoding(gptq))
    with pytest.raises(ConfigError, match=r"the tensor model\.layers\.0\.self_attn\.q_proj\.weight is missing"):
        loaded(packed)
    (packed / "quantize_config.json").write_text(json.dumps({"bits": 4, "group_size": 16, "sym": False}))
    config, _ = both((packed, plain))
    assert config.weight_format("layers.attn.out.weight") == WeightFormat(4, 16, "float32", zeros=True)


@pytest.mark.parametrize(
    ("about", "message"),
    [
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True},
            "quant_method is 'bitsandbytes'; supported: awq, gptq, ",
        ),
        ({"quant_method": "bitsandbytes"}, "take the checkpoint that is not quantised, with --quantization int8 or"),
        ({"bits": 4}, "quant_method is None"),
        ({"quant_method": []}, "quant_method is []"),
        ("awq", "quantization_config must be an object, not 'awq'"),
        (AWQ | {"version": "gemv"}, "quantization_config: version is 'gemv'; supported: gemm"),
        (AWQ | {"bits": 3}, "bits 3 is not supported, only 4"),
        (AWQ | {"group_size": 0}, "group_size must be a positive integer, not 0"),
        (GPTQ | {"bits": 3}, "bits is 3; supported: 4 and 8"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'; supported: gptq, gptq_v2"),
        (GPTQ | {"is_marlin_format": True}, "is_marlin_format True is not supported"),
        (compressed("marlin-24"), "format is 'marlin-24'; supported: dense, pack-quantized, "),
        (compressed("mxfp6-pack-quantized"), "format is 'mxfp6-pack-quantized'"),
        (compressed(num_bits=2), "config_groups.group_0: weights: num_bits is 2 of type int"),
        (compressed(num_bits=6, type="float"), "num_bits is 6 of type float"),
        (compressed() | {"transform_config": {"config_groups": {}}}, "transform_config is not supported"),
        (compressed() | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config is not supported"),
        (compressed() | {"config_groups": [1]}, "quantization_config: config_groups must be an object"),
        (compressed() | {"config_groups": {"a": {"weights": 3}}}, "config_groups must have objects"),
        (
            GPTQ | {"quant_method": "auto-round", "packing_format": "auto_round:exllamav2"},
            "packing_format is 'auto_round:exllamav2'; supported: names with gptq or awq",
        ),
        (GPTQ | {"quant_method": "auto-round", "data_type": "mx_fp"}, "data_type 'mx_fp' is not supported, only 'int'"),
        (FP8 | {"fmt": "e5m2"}, "fmt 'e5m2' is not supported, only 'e4m3'"),
        (FP8 | {"weight_block_size": [128]}, "weight_block_size must be a list of 2 positive numbers"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "quant_algo is 'W4A8_AWQ'; supported: FP8, FP8_PER_"),
    ],
)
def test_what_is_not_read_is_refused_by_name(about: object, message: str, tmp_path: Path) -> None:
    packed, _ = quantised_pair(tmp_path, "llama", about, lambda *_: None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError) as caught:
        load_model_config(packed)
    assert str(caught.value).startswith(f"{packed}/config.json: ")
    assert message in str(caught.value)
    assert message in summarize(packed).problem


# --- damaged checkpoints


def changed(encode: Encode, change: Callable[[str, Tensors], None]) -> Encode:
    """``encode``, with the tensors of one module changed."""

    def damaged(name: str, shape: tuple[int, int]) -> Made | None:
        made = encode(name, shape)
        if made is not None and name.endswith("layers.1.self_attn.o_proj"):
            change(name, made[0])
        return made

    return damaged


def without(part: str) -> Callable[[str, Tensors], None]:
    def change(name: str, tensors: Tensors) -> None:
        del tensors[f"{name}.{part}"]

    return change


def filled(part: str, value: Any) -> Callable[[str, Tensors], None]:
    def change(name: str, tensors: Tensors) -> None:
        tensors[f"{name}.{part}"] = np.full_like(tensors[f"{name}.{part}"], value)

    return change


def cut(part: str) -> Callable[[str, Tensors], None]:
    def change(name: str, tensors: Tensors) -> None:
        tensors[f"{name}.{part}"] = tensors[f"{name}.{part}"][:-1]

    return change


MODULE = "model.layers.1.self_attn.o_proj"
FP8_BLOCK = fp8("block", name="weight_scale_inv")
SYMMETRIC = GPTQ | {"sym": True}


@pytest.mark.parametrize(
    ("about", "encode", "change", "message"),
    [
        (GPTQ, encoding(gptq), without("scales"), f"the tensor {MODULE}.scales is missing"),
        (AWQ, encoding(awq), without("qzeros"), f"the tensor {MODULE}.qzeros is missing"),
        (compressed(), encoding(pack_quantized), without("weight_scale"), f"{MODULE}.weight_scale is missing"),
        (FP8, FP8_BLOCK, without("weight_scale_inv"), f"{MODULE}.weight_scale is missing"),
        (GPTQ, encoding(gptq), cut("qweight"), "weight in int4 (GPTQ) has 7 words of 32 bits for 64 values"),
        (GPTQ, encoding(gptq), cut("scales"), "has qzeros of dtype I32 and shape [4, 8]; they must be I32 and [3, 8]"),
        (GPTQ, encoding(gptq), cut("g_idx"), "has g_idx of dtype I32 and shape [63]; they must be I32 or I64 and [64]"),
        (AWQ, encoding(awq), cut("qweight"), "weight in int4 (AWQ) has qweight of dtype I32 and shape [63, 8]"),
        (
            compressed(),
            encoding(pack_quantized),
            cut("weight_packed"),
            "has weight_packed of dtype I32 and shape [63, 8]",
        ),
        (FP8, FP8_BLOCK, cut("weight_scale_inv"), "has weight_scale of dtype F32 and shape [3, 2]; they"),
        (GPTQ, encoding(gptq), filled("scales", np.nan), "has scales that are not finite"),
        (FP8, FP8_BLOCK, filled("weight_scale_inv", np.inf), "has scales that are not finite"),
        (GPTQ, encoding(gptq), filled("g_idx", 3), "has groups of inputs (g_idx) that are not 16 inputs each"),
        (SYMMETRIC, encoding(gptq), filled("g_idx", 0), "is symmetric by its configuration, but has zero points other"),
        (GPTQ, encoding(gptq), filled("bias", 1), f"a model without the tensors {MODULE}.bias; they belong"),
    ],
)
def test_damaged_weights_are_named(
    about: dict[str, Any], encode: Encode, change: Any, message: str, tmp_path: Path
) -> None:
    packed, _ = quantised_pair(tmp_path, "llama", about, changed(encode, change))
    with pytest.raises(ConfigError) as caught:
        loaded(packed)
    assert str(caught.value).startswith(str(packed))
    assert message in str(caught.value)


def test_an_order_that_the_configuration_denies_is_refused(tmp_path: Path) -> None:
    packed, _ = quantised_pair(tmp_path, "llama", GPTQ, encoding(gptq, inputs="shared"))
    with pytest.raises(
        ConfigError, match=r"in int4 \(GPTQ\) has its inputs in another order, but quantization_config does not"
    ):
        loaded(packed)


def test_fp8_without_a_configuration_is_refused(tmp_path: Path) -> None:
    packed, _ = quantised_pair(tmp_path, "llama", None, FP8_BLOCK)
    with pytest.raises(ConfigError, match=r"q_proj\.weight has dtype F8_E4M3; supported: F32, BF16, F16"):
        loaded(packed)
