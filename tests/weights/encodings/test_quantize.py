"""Rounding of weights to few bits, against its definition number by number; and models that are loaded so."""

import tracemalloc
from fractions import Fraction
from pathlib import Path

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from jaxgen.core.errors import ConfigError
from jaxgen.core.model_config import ModelConfig
from jaxgen.core.quantization import SCALE_DTYPES, GroupedWeight, Quantization, ScaleDType, WeightFormat
from jaxgen.weights.encodings import quantize
from jaxgen.weights.encodings.quantize import dequantized, quantized
from jaxgen.weights.encodings.weight_formats import FP8, INT4, INT8, parameter_bytes, quantization_of
from jaxgen.weights.families.parameters import Array
from jaxgen.weights.load import load_model_config, load_params
from jaxgen.weights.packaged.tiny import make_tiny_checkpoint
from tests.support.goldens import GOLDENS, bits

FORMATS = (
    INT8,
    INT4,
    WeightFormat(8, 32),
    WeightFormat(8, None, zeros=True),
    WeightFormat(4, 16, zeros=True),
    WeightFormat(4, None, "float32"),
)
FLOAT_FORMATS = (
    FP8,
    WeightFormat(8, 32, "float32", floats=True),
    WeightFormat(4, 16, floats=True),
    WeightFormat(4, None, "float32", floats=True),
)


def noise(*shape: int) -> npt.NDArray[np.float32]:
    """With a group of zeros, one of positive and one of negative numbers, and an outlier."""
    weight = np.random.default_rng(3).standard_normal(shape, np.float32)
    weight[..., 0, :32] = 0
    weight[..., 1, :] = abs(weight[..., 1, :])
    weight[..., 2, :] = -abs(weight[..., 2, :])
    weight[..., 3, 5] = 40
    return weight


def stored(value: Fraction, dtype: ScaleDType) -> Fraction:
    return Fraction(float(np.float32(float(value)).astype(SCALE_DTYPES[dtype])))


def nearest(group: list[Fraction], form: WeightFormat) -> list[Fraction]:
    """The numbers that a group is rounded to, by the definition in exact arithmetic."""
    if form.floats:
        return nearest_floats(group, form)
    highest, lowest, last = max(*group, Fraction(0)), min(*group, Fraction(0)), 2**form.bits - 1
    if form.zeros:
        scale = stored((highest - lowest) / last, form.scale_dtype)
        zero = 0 if scale == 0 else min(max(round(-lowest / scale), 0), last)
    else:
        scale = stored((highest if highest > -lowest else lowest) / -form.zero, form.scale_dtype)
        zero = form.zero
    return [scale * (min(max(round(x / scale) + zero, 0), last) - zero) if scale else Fraction(0) for x in group]


def float_codes(form: WeightFormat) -> list[Fraction]:
    """The number of each code, e4m3 or e2m1, from 0 up, by the definition of such numbers."""
    mantissa, bias = (3, 7) if form.bits == 8 else (1, 1)
    found = []
    for code in range(2 ** (form.bits - 1) - (1 if form.bits == 8 else 0)):  # the last of e4m3 is none
        exponent, rest = divmod(code, 2**mantissa)
        whole = rest + (2**mantissa if exponent else 0)
        found.append(Fraction(whole) * Fraction(2) ** (max(exponent, 1) - bias - mantissa))
    return found


def nearest_floats(group: list[Fraction], form: WeightFormat) -> list[Fraction]:
    codes = float_codes(form)
    scale = stored(max(map(abs, group)) / codes[-1], form.scale_dtype)

    def closest(x: Fraction) -> Fraction:
        distance, _, best = min((abs(abs(x) / scale - value), code % 2, value) for code, value in enumerate(codes))
        assert distance <= codes[-1]
        return scale * (best if x > 0 else -best)

    return [closest(x) if scale else Fraction(0) for x in group]


@pytest.mark.parametrize("form", FORMATS + FLOAT_FORMATS, ids=str)
@pytest.mark.parametrize("inputs", [96, 90])
def test_each_number_is_the_nearest_of_its_group(form: WeightFormat, inputs: int) -> None:
    """Also where the last group is shorter than the others."""
    weight = noise(5, inputs)
    found = quantized(weight, form, "w")
    assert found.shape == weight.shape
    assert found.codes.shape == (5, inputs * form.bits // 8)
    size = form.group or inputs
    for row, numbers in zip(dequantized(found), weight, strict=True):
        for start in range(0, inputs, size):
            expected = nearest([Fraction(float(x)) for x in numbers[start : start + size]], form)
            assert row[start : start + size].tolist() == [float(np.float32(float(x))) for x in expected]


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_the_error_is_at_most_half_a_step(form: WeightFormat) -> None:
    """But for the number at the end of a range, which the rounding of the scale may move, or that has no code."""
    weight = noise(2, 7, 64)
    found = quantized(weight, form, "w")
    step = np.repeat(abs(found.scales.astype(np.float32)), form.group or 64, axis=-1)
    error = abs(dequantized(found) - weight)
    assert (error <= 1.02 * step).all()
    assert (error <= 0.501 * step).mean() > 0.9


def test_stacks_and_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = noise(2, 3, 10, 64)
    for form in FORMATS + FLOAT_FORMATS:
        whole = quantized(weight, form, "w")
        monkeypatch.setattr(quantize, "_BLOCK", 3 * 64)
        for index in np.ndindex(2, 3):
            part = quantized(weight[index], form, "w")
            for name, array in part.arrays():
                assert bits(array) == bits(getattr(whole, name)[index])
            assert bits(dequantized(part)) == bits(dequantized(whole)[index])
        monkeypatch.undo()


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_any_floating_point_numbers_are_taken(dtype: type) -> None:
    weight: Array = noise(4, 64).astype(dtype)
    assert bits(quantized(weight, INT4, "w").codes) == bits(quantized(weight.astype(np.float32), INT4, "w").codes)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("form", [INT8, WeightFormat(4, 16, zeros=True), FP8], ids=str)
def test_numbers_that_are_not_finite_are_refused(value: float, form: WeightFormat) -> None:
    weight = noise(4, 64)
    weight[2, 40] = value
    with pytest.raises(ConfigError, match=r"^mine has numbers that are not finite$"):
        quantized(weight, form, "mine")


def test_the_smallest_scales_make_numbers_too() -> None:
    """They are rounded so much that what is divided by them may be far beyond the greatest code."""
    weight = np.linspace(1e-38, 9e-38, 64, dtype=np.float32).reshape(8, 8)
    found = dequantized(quantized(weight, FP8, "w"))
    assert np.isfinite(found).all()
    assert found.any()


def test_an_order_says_which_input_a_code_is_of() -> None:
    weight = noise(4, 64)
    plain = quantized(weight, INT4, "w")
    order = np.random.default_rng(0).permutation(64).astype(np.int32)
    moved = GroupedWeight(WeightFormat(4, 32, ordered=True), plain.codes, plain.scales, order=order)
    assert (dequantized(moved)[:, order] == dequantized(plain)).all()


# --- models


def loaded(directory: Path, quantization: Quantization) -> tuple[ModelConfig, dict[str, object]]:
    config = load_model_config(directory, quantization=quantization)
    return config, load_params(directory, config, place=lambda _, value: value, progress=False)


@pytest.mark.parametrize("quantization", ["int8", "int4", "fp8"])
@pytest.mark.parametrize("name", ["llama", "opt_350m", "gpt2", "qwen2_moe", "gpt_oss", "gpt_oss_mxfp4"])
def test_matrices_are_quantised_and_nothing_else(name: str, quantization: Quantization) -> None:
    """As the matrices of the whole parameter are; the bytes are those that are counted without loading."""
    config, found = loaded(GOLDENS / name, quantization)
    _, plain = loaded(GOLDENS / name, "none")
    left = {"norm", "bias", "router", "shared_gate", "positions", "project_in", "project_out", "sinks"}
    for path, value in found.items():
        in_layers = path.startswith("layers")
        if left & set(path.replace("_norm", ".norm").split(".")) or (quantization == "fp8" and not in_layers):
            assert bits(value) == bits(plain[path])
            continue
        assert isinstance(value, GroupedWeight)
        form = {"int8": INT8, "int4": INT4 if in_layers else INT8, "fp8": FP8}[quantization]
        assert value.format == form == config.weight_format(path)
        expected = quantized(np.asarray(plain[path]), form, path)
        assert {name: bits(array) for name, array in value.arrays()} == {
            name: bits(array) for name, array in expected.arrays()
        }
    assert quantization_of(config) == quantization
    assert parameter_bytes(config) == sum(getattr(value, "nbytes", 0) for value in found.values())


def test_bytes_of_a_model_that_is_not_quantised(tmp_path: Path) -> None:
    config, found = loaded(GOLDENS / "gemma3", "none")
    assert parameter_bytes(config) == sum(getattr(value, "nbytes", 0) for value in found.values())


def test_an_odd_number_of_inputs_is_refused_by_name(tmp_path: Path) -> None:
    make_tiny_checkpoint(tmp_path, intermediate_size=161)
    assert load_model_config(tmp_path, quantization="int8")
    with pytest.raises(ConfigError) as caught:
        load_model_config(tmp_path, quantization="int4")
    assert str(caught.value) == ("--quantization int4: layers.mlp.down.weight has 161 inputs, an odd number: use int8")
    with pytest.raises(ConfigError, match="w has 161 inputs, an odd number, which 4 bits cannot hold: use int8"):
        quantized(np.zeros((2, 161), np.float32), INT4, "w")


@pytest.mark.parametrize("quantization", ["int4", "fp8"])
def test_no_more_than_one_tensor_is_in_memory_beside_the_result(quantization: Quantization, tmp_path: Path) -> None:
    """And what the blocks in work take."""
    make_tiny_checkpoint(tmp_path, hidden_size=512, intermediate_size=4096, vocab_size=16384)
    config = load_model_config(tmp_path, quantization=quantization)
    largest = 4 * 16384 * 512
    blocks = 2 * 6 * 4 * quantize._BLOCK
    tracemalloc.start()
    try:
        found = load_params(tmp_path, config, place=lambda _, value: value, progress=False)
        final, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert parameter_bytes(config) <= final < parameter_bytes(config) + 2**22
    assert peak < final + largest + blocks
    assert found
