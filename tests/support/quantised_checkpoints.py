"""Quantised checkpoints written from the descriptions of their formats, and the same weights as plain numbers.

Values are packed bit by bit, by the definition of each layout, and share nothing with the code that reads them.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

from tests.support.goldens import GOLDENS

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Tensors = dict[str, npt.NDArray[Any]]
_NAMES = {
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int8": "I8",
    "uint8": "U8",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e8m0fnu": "F8_E8M0",
}


@dataclass(frozen=True)
class Drawn:
    """A random weight: codes [out, in], scales and zero points [out, groups], and the group of each input."""

    codes: Ints
    scales: npt.NDArray[Any]
    zeros: Ints
    groups: Ints

    @property
    def numbers(self) -> Floats:
        """The weight [out, in], by definition."""
        scales = self.scales.astype(np.float32)[:, self.groups]
        return scales * (self.codes - self.zeros[:, self.groups]).astype(np.float32)


def draw(
    rng: np.random.Generator,
    shape: tuple[int, int],
    *,
    bits: int = 4,
    group: int = 16,
    symmetric: bool = False,
    order: Ints | None = None,
    dtype: Any = np.float16,
) -> Drawn:
    """With outliers among the scales, and numbers about 0. ``order``: inputs in the order in which they are cut into
    groups."""
    outputs, inputs = shape
    count = inputs // group
    top = 2**bits
    scales = (0.16 / top * rng.standard_normal((outputs, count)) ** 3).astype(dtype)
    zeros = np.full((outputs, count), top // 2) if symmetric else rng.integers(0, top, (outputs, count))
    groups = np.arange(inputs) // group
    if order is not None:
        groups = groups[np.argsort(order)]
    codes = np.rint(rng.normal(zeros[:, groups], top / 6)).clip(0, top - 1).astype(np.int64)
    return Drawn(codes, scales, zeros, groups)


def words(values: Ints, bits: int) -> npt.NDArray[np.int32]:
    """Values of the last axis, packed into 32-bit words from the lowest bits on; the last word may have zeros."""
    per_word = 32 // bits
    short = -values.shape[-1] % per_word
    padded = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, short)])
    packed = sum(padded[..., i::per_word] << (bits * i) for i in range(per_word))
    return np.asarray(packed).astype(np.uint32).view(np.int32)


def gptq(base: str, drawn: Drawn, *, bits: int = 4, version: int = 1) -> Tensors:
    return {
        f"{base}.qweight": words(drawn.codes, bits).T,
        f"{base}.qzeros": words(drawn.zeros.T - (1 if version == 1 else 0), bits),
        f"{base}.scales": drawn.scales.T,
        f"{base}.g_idx": drawn.groups.astype(np.int32),
        f"{base}.bias": np.zeros(len(drawn.codes), np.float16),
    }


def awq(base: str, drawn: Drawn) -> Tensors:
    order = (0, 2, 4, 6, 1, 3, 5, 7)

    def along_outputs(values: Ints) -> npt.NDArray[np.int32]:
        packed = [
            [sum(int(row[8 * c + order[i]]) << (4 * i) for i in range(8)) for c in range(len(row) // 8)]
            for row in values.T
        ]
        return np.asarray(packed, np.uint32).view(np.int32)

    return {
        f"{base}.qweight": along_outputs(drawn.codes),
        f"{base}.qzeros": along_outputs(drawn.zeros),
        f"{base}.scales": drawn.scales.T,
    }


def pack_quantized(base: str, drawn: Drawn, *, bits: int = 4, zeros: bool = False, order: bool = False) -> Tensors:
    return {
        f"{base}.weight_packed": words(drawn.codes, bits),
        f"{base}.weight_scale": drawn.scales,
        f"{base}.weight_shape": np.asarray(drawn.codes.shape, np.int64),
        **({f"{base}.weight_zero_point": words(drawn.zeros.T, bits).T} if zeros else {}),
        **({f"{base}.weight_g_idx": drawn.groups.astype(np.int32)} if order else {}),
    }


def int8(base: str, drawn: Drawn, *, zeros: bool = False) -> Tensors:
    return {
        f"{base}.weight": (drawn.codes - 128).astype(np.int8),
        f"{base}.weight_scale": drawn.scales,
        f"{base}.input_scale": np.ones(1, np.float32),
        **({f"{base}.weight_zero_point": (drawn.zeros - 128).astype(np.int8)} if zeros else {}),
    }


def plain_tensors(golden: str) -> Tensors:
    """All tensors of a golden, in float32."""
    found: Tensors = {}
    for file in (GOLDENS / golden).glob("*.safetensors"):
        found |= {name: tensor.astype(np.float32) for name, tensor in load_file(file).items()}
    return found


def is_linear(name: str) -> bool:
    """Whether a tensor is the matrix of a layer's product, which tools quantise."""
    parts = name.split(".")
    ends = (
        "_proj",
        "in_proj_qkv",
        "in_proj_z",
        "in_proj_qkvz",
        "w1",
        "w2",
        "w3",
        "query_key_value",
        "dense",
        "h_to_4h",
        "4h_to_h",
        "c_attn",
        "c_fc",
        "per_layer_input_gate",
        "per_layer_projection",
        "embed_tokens_per_layer",
    )
    in_layer = bool({"layers", "h", "embed_tokens_per_layer"} & set(parts))
    return parts[-1] == "weight" and in_layer and parts[-2].endswith(ends)


def quantised_pair(
    directory: Path,
    golden: str,
    about: dict[str, Any] | None,
    encode: Callable[[str, tuple[int, int]], tuple[Tensors, Floats] | None],
    rewrite: Callable[[Tensors, dict[str, Any]], tuple[Tensors, dict[str, Any]]] = lambda *both: both,
) -> tuple[Path, Path]:
    """Write a golden with its layers' matrices encoded, and one with the same numbers; give both directories.

    ``encode``: gives the tensors of a module by name and shape, and its numbers, or None: it stays. ``about``: the
    quantization_config. ``rewrite``: changes the encoded tensors and their configuration.
    """
    tensors = plain_tensors(golden)
    packed: Tensors = {}
    numbers: Tensors = {}
    for name, tensor in tensors.items():
        made = encode(name.removesuffix(".weight"), tensor.shape) if is_linear(name) else None
        packed |= {name: tensor} if made is None else made[0]
        numbers[name] = tensor if made is None else made[1]
    for name, tensor in tensors.items():  # what a bias of the model is, is no zero bias of a tool
        packed |= {name: tensor} if name.endswith(".bias") else {}
    config = json.loads((GOLDENS / golden / "config.json").read_text()) | {"dtype": "float32"}
    config.pop("torch_dtype", None)
    of_packed = config | ({} if about is None else {"quantization_config": about})
    write_checkpoint(directory / "packed", *rewrite(packed, of_packed))
    write_checkpoint(directory / "plain", numbers, config)
    return directory / "packed", directory / "plain"


def write_checkpoint(directory: Path, tensors: Tensors, config: dict[str, Any]) -> None:
    """Also of tensors in FP8."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    header, contents = {}, b""
    for name, tensor in tensors.items():
        data = np.ascontiguousarray(tensor).tobytes()
        where = [len(contents), len(contents) + len(data)]
        header[name] = {"dtype": _NAMES[tensor.dtype.name], "shape": list(tensor.shape), "data_offsets": where}
        contents += data
    text = json.dumps(header).encode()
    (directory / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + contents)


BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOAT8 = np.dtype(ml_dtypes.float8_e4m3fn)
POWERS = np.dtype(ml_dtypes.float8_e8m0fnu)
