"""Quantised checkpoints are the numbers that their formats define; what is kept in few bits, and what is refused."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxgen.core.errors import ConfigError
from jaxgen.core.mixed_weight import MixedFormat, PartFormat
from jaxgen.core.quantization import WeightFormat
from jaxgen.weights.encodings.weight_formats import parameter_bytes, with_formats
from jaxgen.weights.load import load_model_config, load_params
from jaxgen.weights.summary import check_weights, num_parameters, summarize
from tests.support.conversions import run
from tests.support.format_cases import INTEGERS as CASES
from tests.support.quantised_cases import (
    AWQ,
    GPTQ,
    Made,
    both,
    compressed,
    encoding,
)
from tests.support.quantised_checkpoints import (
    awq,
    gptq,
    pack_quantized,
    quantised_pair,
)

QKV, OUT, GATE_UP, DOWN = (f"layers.{name}.weight" for name in ("attn.qkv", "attn.out", "mlp.gate_up", "mlp.down"))
EXPERTS = ("layers.mlp.experts.gate_up.weight", "layers.mlp.experts.down.weight")


def name_of(form: PartFormat) -> Any:
    """Bits of codes, or the dtype of numbers."""
    return form.bits if isinstance(form, WeightFormat) else form.dtype


@pytest.mark.parametrize("case", CASES)
def test_weights_are_kept_as_they_are_stored(case: str, tmp_path: Path) -> None:
    about, encode, form = CASES[case]
    config, _ = both(quantised_pair(tmp_path, "llama", about, encode))
    assert dict(config.weight_formats) == dict.fromkeys((DOWN, GATE_UP, OUT, QKV), form)


@pytest.mark.parametrize("case", ["awq", "gptq in an order", "packed with zeros"])
@pytest.mark.parametrize("golden", ["mixtral", "qwen2_moe"])
def test_experts_are_kept_as_they_are_stored(case: str, golden: str, tmp_path: Path) -> None:
    encode = {
        "awq": encoding(awq, group=8),
        "gptq in an order": encoding(gptq, group=8, inputs="shared"),
        "packed with zeros": encoding(pack_quantized, group=8, zeros=True),
    }[case]
    config, _ = both(quantised_pair(tmp_path, golden, CASES[case][0] | {"group_size": 8}, encode))
    form = WeightFormat(4, 8, "float32", zeros=True, ordered="order" in case)
    kept = None if form.ordered else form  # products of experts know no order of inputs
    assert {path: config.weight_format(path) for path in EXPERTS} == dict.fromkeys(EXPERTS, kept)
    assert (config.weight_format("layers.mlp.shared.down.weight") == form) == (golden == "qwen2_moe")


@pytest.mark.parametrize("golden", ["glm4_bias", "phi3_short", "gemma3_wrapped", "falcon_40b", "gpt2", "qwen2"])
def test_rows_in_other_orders_biases_and_other_names(golden: str, tmp_path: Path) -> None:
    draw_awq = encoding(awq, group=8)

    def encode(name: str, shape: tuple[int, int]) -> Made | None:
        if golden != "gpt2":
            return None if shape[0] % 8 else draw_awq(name, shape)
        tensors, numbers = draw_awq(name, shape[::-1])  # type: ignore[misc]
        return tensors, numbers.T

    config, _ = both(quantised_pair(tmp_path, golden, AWQ | {"group_size": 8}, encode))
    assert config.weight_formats


def test_parts_in_different_orders_cannot_be_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    about = GPTQ | {"desc_act": True}
    pair = quantised_pair(tmp_path, "llama", about, encoding(gptq, inputs="of each"))
    config, _ = both(pair)
    assert dict(config.weight_formats) == dict.fromkeys((OUT, DOWN), CASES["gptq in an order"][2])
    (said,) = [record.getMessage() for record in caplog.records if "dequantised" in record.getMessage()]
    assert said == (f"{pair[0]}: dequantised to float32: {QKV}, {GATE_UP} (its parts have inputs in different orders)")


@pytest.mark.parametrize(
    ("case", "left", "kinds"),
    [
        ("awq", "layers.1.mlp.down_proj", {DOWN: [[4], ["float32"]]}),
        ("packed", "layers.0.self_attn.k_proj", {QKV: [[4, "float32", 4], [4]]}),
        ("gptq in an order", "layers.0.", {path: [["float32"], [4]] for path in (DOWN, GATE_UP, OUT, QKV)}),
    ],
)
def test_what_is_not_converted_is_numbers_next_to_codes(
    case: str, left: str, kinds: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    about, encode, form = CASES[case]
    packed, plain = quantised_pair(
        tmp_path, "llama", about, lambda name, shape: None if left in name else encode(name, shape)
    )
    with caplog.at_level(logging.INFO):
        config, _ = both((packed, plain))
    found = {
        path: [[name_of(part.form) for part in kind] for kind in one.kinds]
        for path, one in config.weight_formats
        if isinstance(one, MixedFormat)
    }
    assert found == kinds
    assert {path for path, _ in config.weight_formats} == {DOWN, GATE_UP, OUT, QKV}
    assert {one for _, parts in config.weight_formats for one in parts.forms} == {form}
    numbers = with_formats(config, {path: one for path, one in config.weight_formats if path not in kinds})
    assert parameter_bytes(config) < parameter_bytes(numbers)
    assert f"{packed}: {next(iter(kinds))} is float32 in layers {0 if '0' in left else 1}" in caplog.text
    converted = run(packed, tmp_path / "converted")
    assert both((converted, plain))[0] == config
    narrow = load_model_config(converted, "bfloat16")
    assert all(
        one.plain_layers == [0 if "0" in left else 1]
        for _, one in narrow.weight_formats
        if isinstance(one, MixedFormat)
    )
    params = load_params(converted, narrow, place=lambda _, value: value, progress=False)
    assert parameter_bytes(narrow) == sum(value.nbytes for value in params.values())


def test_a_layer_whose_experts_differ_is_numbers(tmp_path: Path) -> None:
    encode = encoding(awq, group=8)
    pair = quantised_pair(
        tmp_path,
        "mixtral",
        AWQ | {"group_size": 8},
        lambda name, shape: None if "layers.0" in name and "experts.1.w2" in name else encode(name, shape),
    )
    config, _ = both(pair)
    down = config.weight_format("layers.mlp.experts.down.weight")
    assert isinstance(down, MixedFormat)
    assert down.plain_layers == [0]


def test_layers_and_outputs_in_bits_of_their_own_are_kept(tmp_path: Path) -> None:
    four, eight = (encoding(pack_quantized, symmetric=True, bits=bits) for bits in (4, 8))
    fine = ("layers.0.self_attn.v_proj", "layers.1.mlp.down_proj")
    packed, plain = quantised_pair(
        tmp_path, "llama", compressed(), lambda name, shape: (eight if name.endswith(fine) else four)(name, shape)
    )
    config, _ = both((packed, plain))
    several = {path: form for path, form in config.weight_formats if isinstance(form, MixedFormat)}
    assert {path: [[name_of(part.form) for part in kind] for kind in form.kinds] for path, form in several.items()} == {
        DOWN: [[4], [8]],
        QKV: [[4, 8], [4]],
    }
    assert both((run(packed, tmp_path / "converted"), plain))[0] == config


def test_groups_that_products_do_not_compute_are_dequantised(tmp_path: Path) -> None:
    config, _ = both(quantised_pair(tmp_path, "llama", AWQ | {"group_size": 4}, encoding(awq, group=4)))
    assert config.weight_formats == ()


# --- what is made of them


@pytest.mark.parametrize("case", ["gptq in an order", "packed"])
def test_converted_is_kept_as_it_was_stored(case: str, tmp_path: Path) -> None:
    about, encode, _ = CASES[case]
    packed, plain = quantised_pair(tmp_path, "llama", about, encode)
    directory = run(packed, tmp_path / "converted")
    config, _ = both((directory, plain))
    assert config == load_model_config(packed)


def test_another_quantization_is_refused_by_name(tmp_path: Path) -> None:
    packed, _ = quantised_pair(tmp_path, "llama", AWQ, encoding(awq))
    with pytest.raises(ConfigError, match=r"--quantization int8: .* has weights that are quantised already, to int4"):
        load_model_config(packed, quantization="int8")
    assert load_model_config(packed, quantization="int4") == load_model_config(packed)


def test_scales_of_the_cache_are_left_out(tmp_path: Path) -> None:
    encode = encoding(pack_quantized, symmetric=True)

    def with_scales(name: str, shape: tuple[int, int]) -> Made:
        tensors, numbers = encode(name, shape)  # type: ignore[misc]
        attention = name.rpartition(".")[0]
        return tensors | {f"{attention}.k_scale": np.ones(1, np.float32)} if "k_proj" in name else tensors, numbers

    both(quantised_pair(tmp_path, "llama", compressed(), with_scales))


def test_it_is_said_what_weights_are(tmp_path: Path) -> None:
    packed, _ = quantised_pair(tmp_path / "awq", "llama", AWQ, encoding(awq))
    config = load_model_config(packed)
    assert str(summarize(packed)) == "LlamaForCausalLM, 94,528 parameters, int4 (AWQ), context 128, no window"
    assert check_weights(packed, config).numbers == {"int4 (AWQ)": num_parameters(config)}
    assert summarize(run(packed, tmp_path / "converted")).dtype == "int4"


@pytest.mark.parametrize("case", ["awq", "gptq in an order", "packed in an order"])
def test_headers_alone_say_the_formats(case: str, tmp_path: Path) -> None:
    """As an outline has them: zeros in place of all tensors."""
    about, encode, _ = CASES[case]
    packed, _ = quantised_pair(tmp_path, "llama", about, encode)
    config = load_model_config(packed)
    with (packed / "model.safetensors").open("r+b") as file:
        start, size = 8 + int.from_bytes(file.read(8), "little"), file.seek(0, 2)
        file.truncate(start)
        file.truncate(size)
    assert load_model_config(packed) == config
    assert summarize(packed).problem == ""
