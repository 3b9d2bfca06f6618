"""GPTQ (arXiv 2210.17323), as AutoGPTQ and GPTQModel write it. Host only, no jax.

``qweight`` int32 [in / 8, out]: a word has 8 inputs of an output, lowest bits first; ``qzeros`` int32 [groups, out / 8]
likewise; ``scales`` [groups, out]; ``g_idx`` [in], the group of each input, which are not in turn with ``desc_act``. In
the first version of the format zero points are stored less 1. Codes of 8 bits are four to a word.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from jaxgen.core.quantization import GroupedWeight, WeightFormat
from jaxgen.weights.encodings.encoding import ORDER, RawWeight, Shape, expect, first, matrix, stem
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
    whole_words,
)
from jaxgen.weights.families.config_fields import JsonFields
from jaxgen.weights.files.safetensors import SafetensorsFiles, Tensor

_VERSIONS = {"gptq": 1, "gptq_v2": 0}
"""What is missing from stored zero points, by format."""


@dataclass(frozen=True, slots=True)
class Gptq:
    """The encoding of GPTQ.

    ``group_size``: inputs of a group; None: all. ``zero_less``: how much too small stored zero points are.
    """

    bits: int
    group_size: int | None
    symmetric: bool
    act_order: bool
    zero_less: int
    unread: re.Pattern[str] | None = None

    @property
    def title(self) -> str:
        return f"int{self.bits} (GPTQ)"

    def parts(self, name: str, files: SafetensorsFiles) -> dict[str, str] | None:
        """See Encoding.parts."""
        base = stem(name)
        if f"{base}.qweight" not in files:
            return None
        result = {"codes": f"{base}.qweight", "scales": f"{base}.scales", "zeros": f"{base}.qzeros"}
        return result | ({ORDER: f"{base}.g_idx"} if f"{base}.g_idx" in files else {})

    def kept_as(self, headers: Mapping[str, Tensor], shape: Shape) -> WeightFormat:
        """See Encoding.kept_as."""
        outputs, inputs = matrix(shape)
        codes, scales = headers["codes"], headers["scales"]
        bits, groups = bits_of(first(codes.shape), inputs), first(scales.shape)
        expect("qweight", codes, ("I32",), (inputs * bits // WORD, outputs))
        expect("scales", scales, FLOATS, (groups, outputs))
        expect("qzeros", headers["zeros"], ("I32",), (groups, whole_words(outputs, bits)))
        group = group_of(groups, inputs, self.group_size)
        if ORDER in headers:
            expect("g_idx", headers[ORDER], ("I32", "I64"), (inputs,))
        ordered = self.act_order and ORDER in headers and group is not None
        return WeightFormat(bits, group, scale_dtype(scales.dtype), not self.symmetric, ordered)

    def read(self, raw: RawWeight) -> GroupedWeight:
        """See Encoding.read."""
        tensors, form = raw.tensors, raw.kept_form
        # Whole words were made less by 1 in each value, so that a zero point of 0 borrowed from the next one.
        less = np.uint32(self.zero_less * sum(1 << shift for shift in range(0, WORD, form.bits)))
        words = np.ascontiguousarray(tensors["zeros"]).view(np.uint32) + less
        zeros = unpack_words(words, form.bits).T
        return grouped(code_bytes(tensors["codes"].T), tensors["scales"].T, zeros, tensors.get(ORDER), form)


def read_gptq(fields: JsonFields) -> tuple[Gptq, ...]:
    """Return the encoding that a configuration describes. Raises ConfigError."""
    bits = fields.size("bits")
    if bits not in (4, 8):
        raise fields.error("bits", f"is {bits}; supported: 4 and 8")
    name = "checkpoint_format" if fields.get("checkpoint_format") is not None else "format"
    version = fields.choice(name, "gptq", tuple(_VERSIONS))
    fields.must_be("is_marlin_format", False)
    symmetric, act_order = fields.boolean("sym", True), fields.boolean("desc_act", False)
    return (Gptq(bits, read_group_size(fields), symmetric, act_order, _VERSIONS[version]),)
