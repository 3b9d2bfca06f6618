"""FP4 (e2m1) of linear layers: NVFP4, and MXFP4 as compressed-tensors writes it. Host only, no jax.

``weight_packed`` (ModelOpt: ``weight``) uint8 [out, in / 2], the first input of two in the low bits, and
``weight_scale`` [out, groups]. NVFP4 has groups of 16 inputs with scales in FP8, which ``weight_scale_2`` of the whole
matrix multiplies (ModelOpt) or ``weight_global_scale`` divides (compressed-tensors). MXFP4 has groups of 32 inputs with
powers of two.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from jaxgen.core.quantization import GroupedWeight, WeightFormat
from jaxgen.weights.encodings.encoding import RawWeight, Shape, expect, matrix, stem
from jaxgen.weights.encodings.groups import grouped
from jaxgen.weights.files.safetensors import SafetensorsFiles, Tensor

BESIDE = re.compile(r".*\.input_scale")
_WHOLE = ("F32", "BF16", "F16")
_NVFP4 = WeightFormat(4, 16, "float32", floats=True)
_MXFP4 = WeightFormat(4, 32, floats=True)


@dataclass(frozen=True, slots=True)
class Fp4:
    """FP4 with the scales of each layout, which the names and dtypes of its tensors show."""

    title: str
    unread: re.Pattern[str] | None = BESIDE

    def parts(self, name: str, files: SafetensorsFiles) -> dict[str, str] | None:
        """See Encoding.parts."""
        base = stem(name)
        codes = next((tensor for tensor in (f"{base}.weight_packed", name) if tensor in files), None)
        if codes is None or files.header(codes).dtype != "U8":
            return None
        result = {"codes": codes, "scales": f"{base}.weight_scale"}
        if codes == name:
            return result | {"factor": f"{base}.weight_scale_2"}
        divisor = f"{base}.weight_global_scale"
        return result | ({"divisor": divisor} if divisor in files else {})

    def kept_as(self, headers: Mapping[str, Tensor], shape: Shape) -> WeightFormat:
        """See Encoding.kept_as."""
        outputs, inputs = matrix(shape)
        whole = headers.get("factor") or headers.get("divisor")
        form = _MXFP4 if whole is None else _NVFP4
        if inputs % 2:
            raise ValueError(f"has {inputs} inputs, an odd number")
        expect("weight", headers["codes"], ("U8",), (outputs, inputs // 2))
        dtypes = ("U8", "F8_E8M0") if whole is None else ("F8_E4M3",)
        expect("weight_scale", headers["scales"], dtypes, (outputs, form.num_groups(inputs)))
        if whole is not None:
            expect("the scale of the whole matrix", whole, _WHOLE, (1,), ())
        return form

    def read(self, raw: RawWeight) -> GroupedWeight:
        """See Encoding.read."""
        tensors, scales = raw.tensors, raw.tensors["scales"]
        if raw.kept_form == _MXFP4:
            scales = scales.view(ml_dtypes.float8_e8m0fnu)
        scales = scales.astype(np.float32)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            if "factor" in tensors:
                scales = scales * tensors["factor"].astype(np.float32)
            if "divisor" in tensors:
                scales = scales / tensors["divisor"].astype(np.float32)
        return grouped(tensors["codes"].view(np.uint8), scales, None, None, raw.kept_form)
