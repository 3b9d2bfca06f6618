"""Configurations of quantised checkpoints, and functions that encode random weights by them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jaxgen.core.mixed_weight import AnyWeight
from jaxgen.core.model_config import ModelConfig
from jaxgen.weights.encodings.weight_formats import parameter_bytes
from jaxgen.weights.load import load_model_config, load_params
from tests.support.quantised_checkpoints import FLOAT8, POWERS, Floats, Ints, Tensors, draw, int8

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 16, "sym": False, "desc_act": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 16, "zero_point": True, "version": "gemm"}
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [16, 48]}
Made = tuple[Tensors, Floats]
Encode = Callable[[str, tuple[int, int]], Made | None]


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def compressed(name: str = "pack-quantized", inputs: object = None, **weights: object) -> dict[str, Any]:
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 16, "symmetric": True} | weights
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": name,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head", "re:.*gate$"],
        "quantization_status": "compressed",
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }


def shuffled(name: str, inputs: int, *, of_each: bool = False) -> Ints:
    """An order of inputs: the same one for all modules with the same inputs, as GPTQ finds, or one of each."""
    for one, other in (("k_proj", "q_proj"), ("v_proj", "q_proj"), ("up_proj", "gate_proj"), ("w3", "w1")):
        name = name if of_each else name.replace(one, other)
    return np.random.default_rng(sum(map(ord, name))).permutation(inputs)


def encoding(write: Callable[..., Tensors], *, inputs: str = "in turn", **options: Any) -> Encode:
    """A function that encodes random weights. ``inputs``: in turn, or in an order that is shared or of each."""
    rng = np.random.default_rng(1)
    drawing = {name: options.pop(name) for name in ("group", "symmetric", "dtype") if name in options}
    bits = options.get("bits", 8 if write is int8 else 4)

    def encode(name: str, shape: tuple[int, int]) -> Made:
        order = None if inputs == "in turn" else shuffled(name, shape[1], of_each=inputs == "of each")
        drawn = draw(rng, shape, bits=bits, order=order, **(drawing | {"group": drawing.get("group", 16) or shape[1]}))
        return write(name, drawn, **options), drawn.numbers

    return encode


def both(pair: tuple[Path, Path]) -> tuple[ModelConfig, dict[str, Any]]:
    """Load both; all parameters are the same numbers. Gives configuration and parameters of the quantised one."""
    (config, found), (_, plain) = (loaded(directory) for directory in pair)
    assert found.keys() == plain.keys()
    for path, value in found.items():
        numbers = value.dequantized() if isinstance(value, AnyWeight) else value
        assert numbers.dtype == np.float32
        assert np.array_equal(numbers, plain[path]), path
        assert config.weight_format(path) == (value.format if isinstance(value, AnyWeight) else None)
    assert parameter_bytes(config) == sum(value.nbytes for value in found.values())
    return config, found


def loaded(directory: Path) -> tuple[ModelConfig, dict[str, Any]]:
    config = load_model_config(directory)
    return config, load_params(directory, config, place=lambda _, value: value, progress=False)


def fp8(scaled: str, block: tuple[int, int] = (16, 48), name: str = "weight_scale", dtype: Any = np.float32) -> Encode:
    rng = np.random.default_rng(2)

    def encode(base: str, shape: tuple[int, int]) -> Made:
        rows, columns = block if scaled.startswith("block") else (1, shape[1]) if scaled == "channel" else shape
        scales = 2.0 ** rng.integers(-9, -2, (-(-shape[0] // rows), -(-shape[1] // columns)))
        scales = (scales * (1 if dtype == POWERS else rng.uniform(1, 2, scales.shape))).astype(dtype)
        codes = rng.standard_normal(shape).astype(FLOAT8)
        numbers = codes.astype(np.float32)
        for row, column in np.ndindex(shape):
            numbers[row, column] *= np.float32(scales[row // rows, column // columns])
        stored = scales.reshape(-1) if scaled == "tensor" else scales
        stored = scales[:, None, :, None] if scaled == "block of ModelOpt" else stored
        return {
            f"{base}.weight": codes,
            f"{base}.{name}": stored,
            f"{base}.input_scale": np.ones(1, np.float32),
        }, numbers

    return encode


def mxfp8() -> Encode:
    """Groups of 32 inputs with powers of two, as bytes."""
    rng = np.random.default_rng(3)

    def encode(base: str, shape: tuple[int, int]) -> Made:
        codes = rng.standard_normal(shape).astype(FLOAT8)
        powers = rng.integers(112, 125, (shape[0], shape[1] // 32)).astype(np.uint8)
        scales = np.repeat(2.0 ** (powers.astype(np.float32) - 127), 32, axis=1)
        return {f"{base}.weight": codes, f"{base}.weight_scale": powers}, codes.astype(np.float32) * scales

    return encode


def fp4(kind: Literal["nvfp4", "modelopt", "mxfp4"]) -> Encode:
    rng = np.random.default_rng(4)

    def encode(base: str, shape: tuple[int, int]) -> Made:
        codes = rng.integers(0, 16, shape)
        group = 32 if kind == "mxfp4" else 16
        whole = np.float32(1 / rng.uniform(3000, 15000) if kind == "modelopt" else rng.uniform(3000, 15000))
        groups = (shape[0], shape[1] // group)
        stored: Any = rng.integers(115, 124, groups).astype(np.uint8)
        scales = 2.0 ** (stored.astype(np.float32) - 127)
        if kind != "mxfp4":
            stored = (rng.uniform(1, 448, groups) ** 1.1).clip(0, 448).astype(FLOAT8)
            scales = stored.astype(np.float32) * whole if kind == "modelopt" else stored.astype(np.float32) / whole
        layouts: dict[str, tuple[str, dict[str, Any]]] = {
            "nvfp4": ("weight_packed", {"weight_global_scale": whole.reshape(1), "input_global_scale": np.ones(1)}),
            "modelopt": ("weight", {"weight_scale_2": np.asarray(whole), "input_scale": np.ones(())}),
            "mxfp4": ("weight_packed", {}),
        }
        weight, more = layouts[kind]
        tensors = {weight: (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8), "weight_scale": stored}
        floats = {name: value.astype(np.float32) for name, value in more.items()}
        numbers = E2M1[codes] * np.repeat(scales, group, axis=1).astype(np.float32)
        return {f"{base}.{name}": value for name, value in (tensors | floats).items()}, numbers

    return encode
