"""Say why no kernel rotates a model's queries and keys and writes K and V. Host only, no jax."""

from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.model_config import ModelConfig
from jaxgen.kernels.proving.layer_shapes import RotationShape, rotation_trouble
from pallas_kernels.gpu.rotation_support import CODE_BLOCK, cache_code_trouble, supports


def rotation_refusal(model: ModelConfig) -> str | None:
    """Return why no kernel of any GPU rotates a model's queries and keys and writes K and V, or None."""
    if not isinstance(model, DecoderConfig):
        return "its layers have no description"
    pairs = RotationShape.of(model).pairs
    of_heads = supports(head_dim=model.head_dim, rotary_pairs=pairs, dtype=model.dtype)
    return of_heads or rotation_trouble(model)


def cache_code_refusal(model: ModelConfig) -> str | None:
    """Return why no kernel writes a cache of 8 bits in the smallest blocks, or None."""
    if model.kv_dtype == "auto":
        return None
    return cache_code_trouble(kv_heads=model.num_kv_heads, head_dim=model.head_dim, block_size=CODE_BLOCK)
