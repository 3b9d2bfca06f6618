"""NVIDIA's ModelOpt: FP8 with a scale of the whole matrix or of each output, NVFP4, and both. Host only, no jax."""

from collections.abc import Mapping

from jaxgen.weights.config_fields import JsonFields
from jaxgen.weights.encodings.encoding import Encoding
from jaxgen.weights.encodings.fp4 import Fp4
from jaxgen.weights.encodings.fp8 import Fp8

_FP8, _FP4 = Fp8("FP8 (ModelOpt)"), Fp4("NVFP4 (ModelOpt)")
_ENCODINGS: Mapping[str, tuple[Encoding, ...]] = {
    "FP8": (_FP8,),
    "FP8_PER_CHANNEL_PER_TOKEN": (_FP8,),
    "NVFP4": (_FP4,),
    "W4A16_NVFP4": (_FP4,),
    "MIXED_PRECISION": (_FP8, _FP4),
}
"""By ``quant_algo``. Which weights have which, the dtypes of their tensors show."""


def read_modelopt(fields: JsonFields) -> tuple[Encoding, ...]:
    """Return the encodings that a configuration describes; that of ``hf_quant_config.json`` is an object in it.

    Raises ConfigError.
    """
    inner = fields.get("quantization")
    if isinstance(inner, Mapping):
        fields = fields.below("quantization", inner)
    return _ENCODINGS[fields.choice("quant_algo", "", tuple(_ENCODINGS))]
