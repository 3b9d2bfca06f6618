"""compressed-tensors, as llm-compressor writes it: groups of 4 or 8 bits, int8, FP8 and FP4. Host only, no jax.

pack-quantized: ``weight_packed`` int32 [out, in / 8], a word of 8 inputs, lowest bits first, each 8 more than its
signed code; ``weight_scale`` [out, groups]; ``weight_zero_point`` int32 [out / 8, groups] packed along outputs, or int8
[out, groups] of older versions; ``weight_g_idx`` [in], the group of each input. int-quantized: ``weight`` int8
[out, in], ``weight_scale`` [out, 1] or [1]. float-quantized and mxfp8-quantized: see
Fp8; nvfp4- and mxfp4-pack-quantized: see Fp4.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from jaxgen.core.quantization import GroupedWeight, WeightFormat
from jaxgen.weights.encodings.encoding import ORDER, Encoding, RawWeight, Shape, expect, first, matrix, stem
from jaxgen.weights.encodings.fp4 import Fp4
from jaxgen.weights.encodings.fp8 import Fp8, read_block
from jaxgen.weights.encodings.groups import (
    FLOATS,
    WORD,
    bits_of,
    code_bytes,
    group_of,
    grouped,
    read_group_size,
    scale_dtype,
    unpack_words,
)
from jaxgen.weights.families.config_fields import JsonFields
from jaxgen.weights.files.safetensors import Array, SafetensorsFiles, Tensor

FORMATS = (
    *("dense", "pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mixed-precision"),
    *("nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp8-quantized"),
)
BESIDE = re.compile(r".*\.(weight_shape|input_(global_)?scale|input_zero_point|output_scale)")
"""Shapes, which the model's configuration has, and scales of activations, which are not rounded so here."""


@dataclass(frozen=True, slots=True)
class Packed:
    """pack-quantized. ``group_size``: inputs of a group; None: as many as scales mean."""

    title: str
    group_size: int | None
    act_order: bool
    unread: re.Pattern[str] | None = BESIDE

    def parts(self, name: str, files: SafetensorsFiles) -> dict[str, str] | None:
        """See Encoding.parts."""
        base = stem(name)
        if f"{base}.weight_packed" not in files or files.header(f"{base}.weight_packed").dtype == "U8":
            return None
        maybe = {"zeros": f"{base}.weight_zero_point", ORDER: f"{base}.weight_g_idx"}
        return {
            "codes": f"{base}.weight_packed",
            "scales": f"{base}.weight_scale",
            **{part: found for part, found in maybe.items() if found in files},
        }

    def kept_as(self, headers: Mapping[str, Tensor], shape: Shape) -> WeightFormat:
        """See Encoding.kept_as."""
        outputs, inputs = matrix(shape)
        bits, groups = bits_of(first(headers["codes"].shape, 1), inputs), first(headers["scales"].shape, 1)
        expect("weight_packed", headers["codes"], ("I32",), (outputs, -(-inputs * bits // WORD)))
        expect("weight_scale", headers["scales"], FLOATS, (outputs, groups))
        if "zeros" in headers:
            packed_outputs = -(-outputs * bits // WORD)
            shape = (packed_outputs if headers["zeros"].dtype == "I32" else outputs, groups)
            expect("weight_zero_point", headers["zeros"], ("I32", "I8"), shape)
        if ORDER in headers:
            expect("weight_g_idx", headers[ORDER], ("I32", "I64"), (inputs,))
        group = group_of(groups, inputs, self.group_size)
        ordered = self.act_order and ORDER in headers and group is not None
        return WeightFormat(bits, group, scale_dtype(headers["scales"].dtype), "zeros" in headers, ordered)

    def read(self, raw: RawWeight) -> GroupedWeight:
        """See Encoding.read."""
        tensors, form = raw.tensors, raw.kept_form
        outputs, inputs = raw.shape
        zeros = tensors.get("zeros")
        if zeros is not None:
            packed = zeros.dtype == np.int32
            zeros = unpack_words(zeros.T, form.bits).T[:outputs] if packed else zeros.astype(np.int16) + form.zero
        codes = code_bytes(tensors["codes"])[:, : inputs * form.bits // 8]
        return grouped(codes, tensors["scales"], zeros, tensors.get(ORDER), form)


@dataclass(frozen=True, slots=True)
class Int8:
    """int-quantized: a signed byte for each number."""

    title: str
    unread: re.Pattern[str] | None = BESIDE

    def parts(self, name: str, files: SafetensorsFiles) -> dict[str, str] | None:
        """See Encoding.parts."""
        if name not in files or files.header(name).dtype != "I8":
            return None
        zeros = f"{stem(name)}.weight_zero_point"
        result = {"codes": name, "scales": f"{stem(name)}.weight_scale"}
        return result | ({"zeros": zeros} if zeros in files else {})

    def kept_as(self, headers: Mapping[str, Tensor], shape: Shape) -> WeightFormat:
        """See Encoding.kept_as."""
        outputs, inputs = matrix(shape)
        scales = headers["scales"]
        groups = max(1, first(scales.shape, 1))
        expect("weight", headers["codes"], ("I8",), (outputs, inputs))
        expect("weight_scale", scales, FLOATS, (outputs, groups), (1,), ())
        if "zeros" in headers:
            expect("weight_zero_point", headers["zeros"], ("I8",), scales.shape)
        return WeightFormat(8, group_of(groups, inputs, None), scale_dtype(scales.dtype), "zeros" in headers)

    def read(self, raw: RawWeight) -> GroupedWeight:
        """See Encoding.read."""
        tensors, form = raw.tensors, raw.kept_form
        codes = tensors["codes"].view(np.uint8) ^ np.uint8(form.zero)
        zeros = tensors.get("zeros")
        if zeros is not None:
            zeros = np.broadcast_to(_by_group(zeros), (len(codes), _by_group(zeros).shape[1])).astype(np.int16)
            zeros = zeros + form.zero
        return grouped(codes, _by_group(tensors["scales"]), zeros, None, form)


def _by_group(values: Array) -> Array:
    """Return values by output and group; a single one is that of all."""
    return values if values.ndim == 2 else values.reshape(1, 1)


def read_compressed_tensors(fields: JsonFields) -> tuple[Encoding, ...]:
    """Return the encodings that a configuration describes: which weights have which, their tensors show.

    Raises ConfigError.
    """
    _check_format(fields)
    for name in ("transform_config", "sparsity_config"):
        transform = fields.get(name)
        if transform and not (isinstance(transform, Mapping) and transform.get("format") == "dense"):
            raise fields.error(name, "is not supported: choose a checkpoint without rotated or sparse weights")
    groups = fields.get("config_groups") or {}
    if not isinstance(groups, Mapping):
        raise fields.error("config_groups", f"must be an object, not {groups!r:.80}")
    result: dict[str, Encoding] = {}
    for name, group in groups.items():
        if not isinstance(group, Mapping) or not isinstance(group.get("weights"), Mapping | None):
            raise fields.error("config_groups", f"must have objects, not {group!r:.80}")
        inner = fields.below(f"config_groups.{name}", group)
        _check_format(inner)
        if group.get("weights") is not None:
            for encoding in _of_weights(inner.below("weights", group["weights"])):
                result.setdefault(type(encoding).__name__, encoding)
    return tuple(result.values())


def _check_format(fields: JsonFields) -> None:
    """Raise ConfigError for a format that is not read; null: that of the whole checkpoint."""
    if fields.get("format") is not None:
        fields.choice("format", "dense", FORMATS)


def _of_weights(fields: JsonFields) -> tuple[Encoding, ...]:
    kind, bits = fields.choice("type", "int", ("int", "float")), fields.size("num_bits")
    if bits not in (4, 8):
        raise fields.error("num_bits", f"is {bits} of type {kind}; supported: int and float of 4 and 8 bits")
    if kind == "float" and bits == 8:
        size = read_group_size(fields)
        block = read_block(fields, "block_structure") if size is None else (1, size)
        return (Fp8("FP8 (compressed-tensors)", BESIDE, block),)
    if kind == "float":
        return (Fp4(f"{'MXFP4' if fields.get('group_size') == 32 else 'NVFP4'} (compressed-tensors)", BESIDE),)
    act_order = str(fields.get("actorder")).lower() in ("group", "dynamic", "true")
    packed = Packed(f"int{bits} (compressed-tensors)", read_group_size(fields), act_order)
    return (packed, Int8(f"int{bits} (compressed-tensors)"))
