"""Say why no kernel rotates a model's queries and keys and writes K and V. Host only, no jax."""

from jaxgen.core.config import ModelConfig
from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.kernels.proving.layer_shapes import RotationShape, rotation_trouble
from pallas_kernels.gpu.rotation_support import supports


def rotation_refusal(model: ModelConfig) -> str | None:
    """Return why no kernel of any GPU rotates a model's queries and keys and writes K and V, or None."""
    if model.kv_dtype != "auto":
        return f"no others write a KV cache of {model.kv_dtype}"
    if not isinstance(model, DecoderConfig):
        return "its layers have no description"
    pairs = RotationShape.of(model).pairs
    of_heads = supports(head_dim=model.head_dim, rotary_pairs=pairs, dtype=model.dtype)
    return of_heads or rotation_trouble(model)
