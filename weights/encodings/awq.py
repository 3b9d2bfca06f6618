"""AWQ (arXiv 2306.00978), as AutoAWQ writes it in its version "gemm". Host only, no jax.

``qweight`` int32 [in, out / 8]: a word has 8 outputs of an input, lowest bits first, in the order 0, 2, 4, 6, 1, 3, 5,
7; ``qzeros`` int32 [groups, out / 8] likewise; ``scales`` [groups, out].
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from jaxgen.core.quantization import Bits, GroupedWeight, WeightFormat, packed
from jaxgen.weights.encodings.encoding import RawWeight, Shape, expect, first, matrix, stem
from jaxgen.weights.encodings.groups import (
    FLOATS,
    Bytes,
    group_of,
    grouped,
    read_group_size,
    scale_dtype,
    unpack_words,
    whole_words,
)
from jaxgen.weights.families.config_fields import JsonFields
from jaxgen.weights.files.safetensors import Array, SafetensorsFiles, Tensor

_BITS: Bits = 4
_PLACES = np.argsort([0, 2, 4, 6, 1, 3, 5, 7])
"""In a word, of each of its 8 outputs."""


@dataclass(frozen=True, slots=True)
class Awq:
    """The encoding of AWQ. ``group_size``: inputs of a group; None: all."""

    group_size: int | None
    title: str = "int4 (AWQ)"
    unread: re.Pattern[str] | None = None

    def parts(self, name: str, files: SafetensorsFiles) -> dict[str, str] | None:
        """See Encoding.parts."""
        base = stem(name)
        if f"{base}.qweight" not in files:
            return None
        return {"codes": f"{base}.qweight", "scales": f"{base}.scales", "zeros": f"{base}.qzeros"}

    def kept_as(self, headers: Mapping[str, Tensor], shape: Shape) -> WeightFormat:
        """See Encoding.kept_as."""
        outputs, inputs = matrix(shape)
        groups, words = first(headers["scales"].shape), whole_words(outputs, _BITS)
        expect("qweight", headers["codes"], ("I32",), (inputs, words))
        expect("scales", headers["scales"], FLOATS, (groups, outputs))
        expect("qzeros", headers["zeros"], ("I32",), (groups, words))
        group = group_of(groups, inputs, self.group_size)
        return WeightFormat(_BITS, group, scale_dtype(headers["scales"].dtype), zeros=True)

    def read(self, raw: RawWeight) -> GroupedWeight:
        """See Encoding.read."""
        codes = packed(_by_output(raw.tensors["codes"]), raw.kept_form)
        return grouped(codes, raw.tensors["scales"].T, _by_output(raw.tensors["zeros"]), None, raw.kept_form)


def read_awq(fields: JsonFields) -> tuple[Awq, ...]:
    """Return the encoding that a configuration describes. Raises ConfigError."""
    for name in ("bits", "w_bit"):
        fields.must_be(name, _BITS, "AWQ has 4 bits")
    for name in ("version", "checkpoint_format", "format"):
        value = fields.get(name)
        if value is not None and str(value).lower() != "gemm":
            raise fields.error(name, f"is {value!r}; supported: gemm")
    return (Awq(read_group_size(fields)),)


def _by_output(words: Array) -> Bytes:
    """Return the values [out, rows] of words [rows, out / 8]."""
    values = unpack_words(words, _BITS)
    by_word = values.reshape(len(values), -1, len(_PLACES))
    return by_word[:, :, _PLACES].reshape(len(values), -1).T
