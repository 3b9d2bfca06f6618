"""Say which gated delta nets the Hopper kernel computes. Imports no jax, so that a plan may ask."""

HEAD = 128
"""Numbers of a head's keys, and of its values."""
SPAN = 32
"""Positions of a span: its keys and its queries are the 64 rows of a wgmma."""
TILE = 64
"""Rows of a wgmma, and numbers of a row of 128 bytes."""
BLOCK = 8
"""Tokens whose changes follow one another in plain sums. A wgmma adds those of earlier blocks."""
CTAS_EACH = 2
"""Thread blocks of one warpgroup for each multiprocessor, which share its memory."""
_DTYPE = "bfloat16"
_HOPPER_CAPABILITY = 9


def supports(
    *, key_dim: int, value_dim: int, span: int, dtype: str, capability: int = _HOPPER_CAPABILITY
) -> str | None:
    """Return why the kernel cannot compute such heads, or None if it can.

    ``capability``: the major number of the GPU's compute capability.
    """
    if capability != _HOPPER_CAPABILITY:
        return f"compute capability {capability} has no wgmma of {_HOPPER_CAPABILITY}.0"
    if dtype != _DTYPE:
        return f"inputs of {dtype} are not {_DTYPE}"
    if (key_dim, value_dim) != (HEAD, HEAD):
        return f"heads of {key_dim} keys and {value_dim} values are not {HEAD} of each"
    if span != SPAN:
        return f"spans of {span} positions are not {SPAN}"
    return None
