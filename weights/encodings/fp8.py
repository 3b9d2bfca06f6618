"""FP8 (e4m3) with scales by block, by output or of the whole matrix, to floating-point numbers. Host only, no jax.

``weight`` [out, in], and ``weight_scale_inv`` (DeepSeek-V3, arXiv 2412.19437) or ``weight_scale``, by which it is
multiplied in spite of the first name: [blocks of outputs, blocks of inputs], [out, 1], [1] or a number.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from jaxgen.weights.config_fields import Fields
from jaxgen.weights.encodings.encoding import RawWeight, Shape, expect, matrix, stem
from jaxgen.weights.safetensors_files import SafetensorsFiles, Tensor
from jaxgen.weights.tensors import Array

_SCALES = ("F32", "BF16", "F16", "F8_E8M0")
_BESIDE = re.compile(r".*\.(activation_scale|input_scale|output_scale|[kqv]_scale)")
_BLOCK = (128, 128)


@dataclass(frozen=True, slots=True)
class Fp8:
    """``block``: outputs and inputs that share a scale, where scales are by block."""

    title: str
    unread: re.Pattern[str] | None = _BESIDE
    block: tuple[int, int] = _BLOCK

    def parts(self, name: str, files: SafetensorsFiles) -> dict[str, str] | None:
        """As in Encoding."""
        if name not in files or files.header(name).dtype != "F8_E4M3":
            return None
        inverse = f"{stem(name)}.weight_scale_inv"
        return {"codes": name, "scales": inverse if inverse in files else f"{stem(name)}.weight_scale"}

    def kept_as(self, headers: Mapping[str, Tensor], shape: Shape) -> None:
        """As in Encoding."""
        outputs, inputs = matrix(shape)
        blocks = (-(-outputs // self.block[0]), -(-inputs // self.block[1]))
        expect("weight", headers["codes"], ("F8_E4M3",), (outputs, inputs))
        expect("weight_scale", headers["scales"], _SCALES, blocks, (outputs, 1), (outputs,), (1,), ())

    def read(self, raw: RawWeight) -> Array:
        """As in Encoding."""
        shape = raw.shape
        scales = raw.tensors["scales"].astype(np.float32)
        if not np.isfinite(scales).all():
            raise ValueError("has scales that are not finite")
        numbers = raw.tensors["codes"].astype(np.float32)
        if scales.ndim != 2:
            scales = scales.reshape(-1, 1)  # by output, or one of all
        elif scales.shape != (shape[0], 1):
            scales = np.repeat(scales, self.block[1], axis=1)[:, : shape[1]]
        if scales.shape[0] not in (1, shape[0]):
            scales = np.repeat(scales, self.block[0], axis=0)[: shape[0]]
        numbers *= scales
        return numbers


def read_block(fields: Fields, name: str) -> tuple[int, int]:
    """Return the outputs and inputs of a block; null: there is none, or it is the usual one. Raises ConfigError."""
    if fields.get(name) is None:
        return _BLOCK
    outputs, inputs = fields.numbers(name, 2)
    if not (outputs.is_integer() and inputs.is_integer()):
        raise fields.error(name, f"must be two integers, not {fields.get(name)!r}")
    return int(outputs), int(inputs)


def read_fp8(fields: Fields) -> tuple[Fp8, ...]:
    """Return the encoding that a configuration describes. Raises ConfigError."""
    fields.must_be("fmt", "e4m3")
    return (Fp8("FP8", block=read_block(fields, "weight_block_size")),)


def read_modelopt(fields: Fields) -> tuple[Fp8, ...]:
    """Return the encoding that a configuration of ModelOpt describes. Raises ConfigError."""
    fields.choice("quant_algo", "", ("FP8",))
    return (Fp8("FP8 (ModelOpt)"),)
