"""FP8 (e4m3) with scales by block, by output or of the whole matrix. Host only, no jax.

``weight`` [out, in], and ``weight_scale_inv`` (DeepSeek-V3, arXiv 2412.19437) or ``weight_scale``, by which it is
multiplied in spite of the first name: [blocks of outputs, blocks of inputs], which ModelOpt has with axes of 1 behind
each (FP8_PB_WO), [out, 1], [1] or a number. A tensor for
all experts has a name and blocks of its own: ``gate_up_proj``, ``gate_up_proj_scale_inv``.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from jaxgen.core.quantization import GroupedWeight, ScaleDType, WeightFormat
from jaxgen.weights.encodings.encoding import RawWeight, Shape, expect, matrix
from jaxgen.weights.encodings.groups import grouped
from jaxgen.weights.families.config_fields import JsonFields
from jaxgen.weights.files.safetensors import SafetensorsFiles, Tensor

_SCALES = ("F32", "BF16", "F16", "F8_E8M0", "U8")
"""Of U8 powers of two, as of F8_E8M0."""
_BESIDE = re.compile(r".*\.(activation_scale|input_scale(_ub)?|output_scale)")
_BLOCK = (128, 128)
_NOT_A_NUMBER = 0x7F
"""The bits of it, of either sign: e4m3 has no infinity."""


@dataclass(frozen=True, slots=True)
class Fp8:
    """Codes of e4m3 with scales.

    ``block``: outputs and inputs that share a scale, where scales are by block.
    """

    title: str
    unread: re.Pattern[str] | None = _BESIDE
    block: tuple[int, int] = _BLOCK

    def parts(self, name: str, files: SafetensorsFiles) -> dict[str, str] | None:
        """See Encoding.parts."""
        if name not in files or files.header(name).dtype != "F8_E4M3":
            return None
        inverse = f"{name}_scale_inv"
        return {"codes": name, "scales": inverse if inverse in files else f"{name}_scale"}

    def kept_as(self, headers: Mapping[str, Tensor], shape: Shape) -> WeightFormat:
        """See Encoding.kept_as."""
        outputs, inputs = matrix(shape)
        blocks = (-(-outputs // self.block[0]), -(-inputs // self.block[1]))
        scales, of_modelopt = headers["scales"], (blocks[0], 1, blocks[1], 1)
        expect("weight", headers["codes"], ("F8_E4M3",), (outputs, inputs))
        expect("weight_scale", scales, _SCALES, blocks, of_modelopt, (outputs, 1), (outputs,), (1,), ())
        by_block = scales.shape in (blocks, of_modelopt) and blocks[1] > 1
        dtype: ScaleDType = "bfloat16" if scales.dtype in ("BF16", "F8_E8M0", "U8") else "float32"
        return WeightFormat(8, self.block[1] if by_block else None, dtype, floats=True)

    def read(self, raw: RawWeight) -> GroupedWeight:
        """See Encoding.read."""
        codes, scales = raw.tensors["codes"].view(np.uint8), raw.tensors["scales"]
        if (codes & _NOT_A_NUMBER == _NOT_A_NUMBER).any():
            raise ValueError("has numbers that are not finite")
        if scales.dtype == np.uint8:
            scales = scales.view(ml_dtypes.float8_e8m0fnu)
        scales = scales.reshape(len(scales) if scales.ndim else 1, -1)
        if len(scales) not in (1, len(codes)):
            scales = np.repeat(scales, self.block[0], axis=0)[: len(codes)]
        return grouped(codes, scales, None, None, raw.kept_form)


def read_block(fields: JsonFields, name: str) -> tuple[int, int]:
    """Return the outputs and inputs of a block; null: there is none, or it is the usual one. Raises ConfigError."""
    if fields.get(name) is None:
        return _BLOCK
    outputs, inputs = fields.numbers(name, 2)
    if not (outputs.is_integer() and inputs.is_integer()):
        raise fields.error(name, f"must be two integers, not {fields.get(name)!r}")
    return int(outputs), int(inputs)


def read_fbgemm(fields: JsonFields) -> tuple[Fp8, ...]:
    """Return the encoding of FBGEMM, whose scales are of each output."""
    del fields
    return (Fp8("FP8 (FBGEMM)"),)


def read_fp8(fields: JsonFields) -> tuple[Fp8, ...]:
    """Return the encoding that a configuration describes. Raises ConfigError."""
    fields.must_be("fmt", "e4m3")
    return (Fp8("FP8", block=read_block(fields, "weight_block_size")),)
