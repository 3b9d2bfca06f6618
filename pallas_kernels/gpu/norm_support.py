"""Say which rows the norms for NVIDIA GPUs take. Imports no jax, so that a plan may ask."""

WARPGROUP = 128
"""Threads: registers hold a multiple of as many numbers."""
LONGEST = 12_288
"""Numbers of the longest row, of which a thread has 96 in registers; with 128 some would be spilled."""
TILE, SHORT = 64, 256
"""Rows of a tile, and numbers of its longest row: such tiles are the heads of queries and keys."""
_SHORT_MULTIPLE = 8
_AMPERE = 8


def supports(*, width: int, capability: int = _AMPERE) -> str | None:
    """Return why the kernels cannot normalise rows of ``width`` numbers, or None if they can.

    ``capability``: the major number of the GPU's compute capability.
    """
    if capability < _AMPERE:
        return f"compute capability {capability} is below {_AMPERE}.0"
    multiple = _SHORT_MULTIPLE if width <= SHORT else WARPGROUP
    if width % multiple or not 0 < width <= LONGEST:
        return f"rows of {width} numbers: not a multiple of {multiple} up to {LONGEST}"
    return None
