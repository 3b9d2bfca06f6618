"""The number formats of the KV cache. Host only, no jax."""

from typing import Literal

from jaxgen.core.errors import ConfigError

KVDType = Literal["auto", "int8", "fp8"]
"""auto: numbers of the model's dtype. int8, fp8: codes of 8 bits, and a float32 scale for each token and KV head."""
KV_DTYPES: tuple[KVDType, ...] = ("auto", "int8", "fp8")
KV_DTYPE_ALIASES: dict[str, KVDType] = {
    "int8_per_token_head": "int8",
    "fp8_per_token_head": "fp8",
    "fp8_e4m3": "fp8",
}
SCALE_BYTES = 4
"""Bytes of a row's scale, which is part of the row.

pallas_kernels, which imports nothing of ours, has this number too; tests/sizing/test_memory.py compares the two."""


def parse_kv_dtype(name: str) -> KVDType:
    """Return the format of this name or alias. Raises ConfigError."""
    known = {dtype: dtype for dtype in KV_DTYPES} | KV_DTYPE_ALIASES
    if name not in known:
        raise ConfigError(f"--kv-cache-dtype must be one of {', '.join(known)}, not {name}")
    return known[name]
