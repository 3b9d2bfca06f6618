"""Bytes of the KV cache's blocks. Host only, no jax."""

from jaxgen.core.config import ModelConfig
from jaxgen.core.host_dtype import HostDType, host_bytes
from jaxgen.core.kv_dtype import SCALE_BYTES

GIB = 2**30
ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a number, by dtype."""


def block_bytes(model: ModelConfig, block_size: int, *, inputs: bool = False) -> int:
    """Return the bytes of one block over all layers: K and V, and with ``inputs`` the layer inputs too."""
    kv = 2 * model.num_layers * model.num_kv_heads * block_size * row_bytes(model)
    return kv + (input_bytes(model, block_size) if inputs else 0)


def row_bytes(model: ModelConfig) -> int:
    """Return the bytes of the keys, or of the values, of one token and KV head in one layer."""
    if model.kv_dtype == "auto":
        return model.head_dim * ITEMSIZE[model.dtype]
    return model.head_dim + SCALE_BYTES


def input_bytes(model: ModelConfig, block_size: int) -> int:
    """Return the bytes of the layer inputs of one block over all layers."""
    return model.num_layers * block_size * model.hidden_size * ITEMSIZE[model.dtype]


def host_block_bytes(model: ModelConfig, block_size: int, host_dtype: HostDType, *, inputs: bool = False) -> int:
    """Return the bytes of one block in host memory, with ``inputs`` its layer inputs too."""
    size, itemsize = block_bytes(model, block_size), ITEMSIZE[model.dtype]
    kv = host_bytes(size, itemsize=itemsize, head_dim=model.head_dim, host_dtype=host_dtype)
    return kv + (input_bytes(model, block_size) if inputs else 0)
