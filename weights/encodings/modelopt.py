"""NVIDIA's ModelOpt: FP8 with a scale of the whole matrix or of each output, NVFP4, and both. Host only, no jax."""

from collections.abc import Mapping
from dataclasses import replace

from jaxgen.weights.encodings.encoding import Encoding
from jaxgen.weights.encodings.fp4 import Fp4
from jaxgen.weights.encodings.fp8 import Fp8
from jaxgen.weights.families.config_fields import JsonFields

_FP8, _FP4 = Fp8("FP8 (ModelOpt)"), Fp4("NVFP4 (ModelOpt)")
_ENCODINGS: Mapping[str, tuple[Encoding, ...]] = {
    "FP8": (_FP8,),
    "FP8_PER_CHANNEL_PER_TOKEN": (_FP8,),
    "FP8_PC_PT": (_FP8,),
    "FP8_PB_WO": (_FP8,),
    "MXFP8": (replace(_FP8, block=(1, 32)),),
    "NVFP4": (_FP4,),
    "W4A16_NVFP4": (_FP4,),
    "MIXED_PRECISION": (_FP8, _FP4),
}
"""By ``quant_algo``. Which weights have which, the dtypes of their tensors show."""

_OFF = ("", "NONE", "NO_QUANT")
_OF_CACHE = ("kv_cache_quant_algo", "kv_cache_scheme")
"""What says how a KV cache is kept, which ``--kv-cache-dtype`` says here."""


def read_modelopt(fields: JsonFields) -> tuple[Encoding, ...]:
    """Return the encodings that a configuration describes; that of ``hf_quant_config.json`` is an object in it.

    A configuration of the KV cache alone describes none. Raises ConfigError.
    """
    inner = fields.get("quantization")
    if isinstance(inner, Mapping):
        fields = fields.below("quantization", inner)
    name = str(fields.get("quant_algo") or "")
    if name.upper() in _OFF and any(fields.get(field) for field in _OF_CACHE):
        return ()
    if name.upper() not in _ENCODINGS:
        raise fields.error("quant_algo", f"is {name!r}; supported: {', '.join(_ENCODINGS)}")
    return _ENCODINGS[name.upper()]
