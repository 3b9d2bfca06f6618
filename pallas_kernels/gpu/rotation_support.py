"""Say which heads the kernel of rotations for NVIDIA GPUs takes. Imports no jax, so that a plan may ask."""

_DTYPES = ("bfloat16", "float16")
_COLUMNS = 8
"""Columns of a tile that may be taken apart in registers are a multiple of this."""
_ROW_NUMBERS = 64
"""Numbers of two bytes after which a bulk copy may begin in shared memory."""
_MAX_HEAD = 256


def supports(*, head_dim: int, rotary_pairs: int, dtype: str) -> str | None:
    """Return why the kernel cannot take a model's heads, or None if it can."""
    if dtype not in _DTYPES:
        return f"queries, keys and values are {dtype}, not {' or '.join(_DTYPES)}"
    if head_dim % _ROW_NUMBERS or head_dim > _MAX_HEAD:
        return f"head_dim is {head_dim}, not a multiple of {_ROW_NUMBERS} up to {_MAX_HEAD}"
    if rotary_pairs % _COLUMNS:
        return f"{rotary_pairs} rotary pairs are not a multiple of {_COLUMNS}"
    return None
