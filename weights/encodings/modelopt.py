"""NVIDIA's ModelOpt: FP8 with a scale of the whole matrix, and NVFP4. Host only, no jax."""

from collections.abc import Mapping

from jaxgen.weights.config_fields import Fields
from jaxgen.weights.encodings.encoding import Encoding
from jaxgen.weights.encodings.fp4 import Fp4
from jaxgen.weights.encodings.fp8 import Fp8

_ENCODINGS: Mapping[str, Encoding] = {"FP8": Fp8("FP8 (ModelOpt)"), "NVFP4": Fp4("NVFP4 (ModelOpt)")}


def read_modelopt(fields: Fields) -> tuple[Encoding, ...]:
    """Return the encoding that a configuration describes; that of ``hf_quant_config.json`` is an object in it.

    Raises ConfigError.
    """
    inner = fields.get("quantization")
    if isinstance(inner, Mapping):
        fields = fields.below("quantization", inner)
    return (_ENCODINGS[fields.choice("quant_algo", "", tuple(_ENCODINGS))],)
