"""Say which weights of experts the Hopper kernel multiplies. Imports no jax, so that a plan of memory can ask."""

from pallas_kernels.gpu.code_support import CODE_BITS, CODES, WIDE, code_trouble, scales_of
from pallas_kernels.gpu.shared_memory import COPY_ALIGNMENT, HOPPER, taken

ROWS = 64
"""Rows of a wgmma; a row has the same bits in each. A tile has as many, or twice as many with MANY_ROWS."""
STAGES = 4, 3
"""Stages with tiles of 64 and of 128 rows."""
TILE_K = 64
"""Inputs in a stage: a row of 128 bytes."""
COMPUTE = 2
"""Compute warpgroups, each with half of a tile's columns; one more loads."""
MAX_COLUMNS = 128
"""Columns of half a tile: float32 results of two warpgroups then fit next to the stages."""
_DTYPES = ("bfloat16", "float16")


def supports(
    *,
    inputs: int,
    outputs: int,
    dtype: str,
    codes: str | None = None,
    group: int | None = None,
    result_bytes: int = 4,
) -> str | None:
    """Return why the kernel cannot multiply with weights [outputs, inputs], or None if it can.

    ``codes``: their dtype, if they are codes. ``group``: inputs that share a scale; None: no scale is the kernel's.
    ``result_bytes``: as of ``columns_of``.
    """
    if dtype not in _DTYPES:
        return f"weights of {dtype} are not {' or '.join(_DTYPES)}"
    if codes is not None and (reason := code_trouble(codes, dtype, group)) is not None:
        return reason
    if inputs % TILE_K or not columns_of(outputs, coded=codes is not None, result_bytes=result_bytes):
        of_outputs = MAX_COLUMNS // 2 if codes is not None else COMPUTE * COPY_ALIGNMENT // result_bytes
        return f"{inputs} inputs and {outputs} outputs are not multiples of {TILE_K} and {of_outputs}"
    for parts in range(1, len(STAGES) + 1):
        if not stored_columns(outputs, parts, codes=codes, group=group, result_bytes=result_bytes):
            return f"tiles of {parts * ROWS} rows take more than {HOPPER} bytes of shared memory"
    return None


def supports_codes(
    *, inputs: int, outputs: int, dtype: str, bits: int, floats: bool, group: int | None, offsets: bool
) -> str | None:
    """Return why there is no product with such codes, or None if there is. ``offsets``: zero points or minimums."""
    if offsets:
        return "their codes have zero points or minimums"
    return supports(inputs=inputs, outputs=outputs, dtype=dtype, codes=CODES[bits, floats], group=group)


def columns_of(outputs: int, *, coded: bool, result_bytes: int = 4) -> int:
    """Return a warpgroup's columns of a tile: as many as divide the outputs, or 0 if no number does.

    ``result_bytes``: of a number of the result, by default of float32. The copy engine takes a row of results from
    shared memory, where it must begin at a multiple of 128 bytes.

    For codes these are whole tiles of a wgmma's operand: only these have a layout in registers that allows a scale for
    each column.
    """
    if coded:
        return next((n for n in (MAX_COLUMNS, MAX_COLUMNS // 2) if outputs % n == 0), 0)
    aligned = range(MAX_COLUMNS, 0, -COPY_ALIGNMENT // result_bytes)
    return next((n for n in aligned if outputs % (COMPUTE * n) == 0), 0)


def stored_columns(outputs: int, parts: int, *, codes: str | None, group: int | None, result_bytes: int) -> int:
    """Return the columns of results that are stored together: as many as fit with all else, or 0.

    ``parts``: of the rows of a tile, ROWS in each.
    """
    columns = columns_of(outputs, coded=codes is not None, result_bytes=result_bytes)
    rest = {"codes": codes, "group": group, "result_bytes": result_bytes}
    fit = (n for n in (columns, columns // 2) if shared_bytes(columns, n, parts, **rest) <= HOPPER)  # type: ignore[arg-type]
    return next((n for n in fit if n * result_bytes % COPY_ALIGNMENT == 0), 0)


def shared_bytes(
    columns: int, stored: int, parts: int, *, codes: str | None, group: int | None, result_bytes: int
) -> int:
    """Return the bytes of shared memory of a thread block with ``columns`` in half a tile, of which it stores
    ``stored`` together."""
    stages, weights, numbers = STAGES[parts - 1], COMPUTE * columns * TILE_K, 2
    bits = 8 * numbers if codes is None else CODE_BITS[codes]
    arrays = [
        stages * parts * ROWS * TILE_K * numbers,
        stages * weights * bits // 8,
        COMPUTE * ROWS * stored * result_bytes,
        0 if codes is None else WIDE * weights * numbers,
        stages * COMPUTE * scales_of(group) * columns * numbers,
    ]
    return taken(arrays, barriers=2 * stages)
