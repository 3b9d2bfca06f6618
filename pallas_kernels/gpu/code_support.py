"""Say which codes of weights Hopper kernels make numbers of. Imports no jax, so that a plan of memory can ask."""

CODE_BITS = {"int8": 8, "int4": 4, "float8_e4m3fn": 8, "uint4": 4}
"""Bits of codes by their dtype; uint4: e2m1."""
CODES = {(8, False): "int8", (4, False): "int4", (8, True): "float8_e4m3fn", (4, True): "uint4"}
"""Dtypes of codes, by their bits and whether they are floating-point numbers."""
CODED_ROWS = 64
"""Rows of a weight whose codes become numbers together: only these have a layout in registers that allows a scale for
each row."""
CODED_INPUTS = 64
"""Inputs of such rows."""
WIDE = 2
"""Tiles of numbers that codes become: one that a wgmma reads, and one that is written."""
_NUMBERS = "bfloat16"
_SMALLEST_GROUP = 16


def code_trouble(codes: str, numbers: str, group: int | None) -> str | None:
    """Return why codes of a dtype cannot become numbers of another, or None if they can.

    ``group``: inputs that share a scale before the sum; None: there is none.
    """
    if codes not in CODE_BITS or numbers != _NUMBERS:
        return f"codes of {codes} for products in {numbers}"
    if group is not None and (group < _SMALLEST_GROUP or max(group, CODED_INPUTS) % min(group, CODED_INPUTS)):
        return f"groups of {group} inputs"
    return None


def scales_of(group: int | None) -> int:
    """Return the scales of a row that CODED_INPUTS inputs need."""
    return 0 if group is None else max(1, CODED_INPUTS // group)
