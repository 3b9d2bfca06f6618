"""Say which heads the kernel of rotations for NVIDIA GPUs takes, and which caches of codes there are.

Imports no jax, so that a plan may ask.
"""

_DTYPES = ("bfloat16", "float16")
_COLUMNS = 8
"""Columns of a tile that may be taken apart in registers are a multiple of this."""
_ROW_NUMBERS = 64
"""Numbers of two bytes after which a bulk copy may begin in shared memory."""
_MAX_HEAD = 256
CODE_BLOCK = 64
"""Tokens of which a block is a multiple where a cache has codes, since attention reads as many together."""


def supports(*, head_dim: int, rotary_pairs: int, dtype: str) -> str | None:
    """Return why the kernel cannot take a model's heads, or None if it can."""
    if dtype not in _DTYPES:
        return f"queries, keys and values are {dtype}, not {' or '.join(_DTYPES)}"
    if head_dim % _ROW_NUMBERS or head_dim > _MAX_HEAD:
        return f"head_dim is {head_dim}, not a multiple of {_ROW_NUMBERS} up to {_MAX_HEAD}"
    if rotary_pairs % _COLUMNS:
        return f"{rotary_pairs} rotary pairs are not a multiple of {_COLUMNS}"
    return None


def cache_code_trouble(*, kv_heads: int, head_dim: int, block_size: int) -> str | None:
    """Return why kernels cannot read and write a cache of 8-bit codes, or None if they can."""
    if block_size % CODE_BLOCK:
        return f"block_size is {block_size}, not a multiple of {CODE_BLOCK}, and the cache has 8 bits"
    if kv_heads * block_size % head_dim:
        return (
            f"{kv_heads} kv heads of blocks of {block_size} tokens are not a multiple of {head_dim} numbers of a head, "
            "and the cache has 8 bits"
        )
    return None
