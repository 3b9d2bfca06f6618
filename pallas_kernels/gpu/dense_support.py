"""Say which dense weights the Hopper kernel multiplies, and in which tiles. Imports no jax, so that a plan may ask."""

from dataclasses import dataclass
from functools import partial

from pallas_kernels.gpu.code_support import CODE_BITS, CODED_ROWS, WIDE, code_trouble, scales_of
from pallas_kernels.gpu.shared_memory import HOPPER, taken

ROWS = 64
"""Rows of a wgmma. Each compute warpgroup has as many rows of a tile."""
TILE_K = 64
"""Inputs of a step: a row of 128 bytes."""
COMPUTE = 2
"""Compute warpgroups; one more loads."""
MOST_COLUMNS = 256
"""Outputs of a wgmma, and rows of one copy of a weight."""
_COLUMNS = 8
"""Outputs of a wgmma are a multiple of it, as rows are in the swizzled layout."""
SPLIT_OUTPUTS = 4096
"""With at most as many outputs there are too few tiles for all multiprocessors, if sums have one part."""
TIERS = (64, 256)
"""Most rows for the first tile and for the second. More rows take the third."""
_PLANNED_ROWS = (64, 256, 1024)
"""Rows for which the tile of each tier is chosen."""
_MOST_STAGES = 8
_SUMMED = 64
"""Most results of a row that a thread block sums from parts at a time: so narrow that few rows occupy many."""
_NUMBER_BYTES = 2
_SCALE_BYTES = 4
"""Most bytes of a scale."""
_DTYPES = ("bfloat16", "float16")
GATED = ("silu", "gelu_tanh", "swiglu_clipped")
"""Gated activations that the kernel computes. Mosaic has no erfc, which the exact gelu needs."""
_HOPPER_CAPABILITY = 9


def num_parts(inputs: int, outputs: int) -> int:
    """Return in how many parts a product sums its inputs: two of equal length for few outputs, else one."""
    return 2 if outputs <= SPLIT_OUTPUTS and inputs % (2 * TILE_K) == 0 else 1


@dataclass(frozen=True)
class Tile:
    """Rows and outputs that a thread block computes at a time.

    With 64 rows each compute warpgroup has half of the columns; with 128 it has half of the rows and all columns.
    """

    rows: int
    columns: int
    """Outputs of the weight. In a gated product half of them are gates."""

    @property
    def row_groups(self) -> int:
        """Warpgroups that share the rows."""
        return self.rows // ROWS

    @property
    def column_groups(self) -> int:
        """Warpgroups that share the columns."""
        return COMPUTE // self.row_groups


@dataclass(frozen=True)
class Tiles:
    """The tiles of a weight by number of rows (TIERS), and the stages of shared memory that they share."""

    inputs: int
    outputs: int
    parts: int
    by_tier: tuple[Tile, ...]
    codes: str | None = None
    """The dtype of codes; None: weights are numbers."""
    scales: int = 0
    """Scales of an output that multiply the codes of TILE_K inputs."""

    @classmethod
    def of(
        cls,
        inputs: int,
        outputs: int,
        *,
        gated: bool,
        num_ctas: int,
        codes: str | None = None,
        group: int | None = None,
    ) -> "Tiles":
        """Return tiles that load the least in waves of ``num_ctas`` thread blocks, for outputs that ``supports`` takes.

        They change no bits: in each of them a result is the sum of the same products in the same order.
        """
        parts, halves = (1, 2) if gated else (num_parts(inputs, outputs), 1)
        bits = _bits(codes)

        def best(rows: int, planned: int) -> Tile:
            tiles = (Tile(rows, columns) for columns in _columns(outputs // halves, rows, halves, codes))
            return min(tiles, key=partial(_cost, planned, parts * outputs, num_ctas, bits))

        rows = (ROWS, COMPUTE * ROWS, COMPUTE * ROWS)
        return cls(inputs, outputs, parts, tuple(map(best, rows, _PLANNED_ROWS)), codes, scales_of(group))

    @property
    def columns(self) -> int:
        """Rows of a weight in a stage."""
        return max(tile.columns for tile in self.by_tier)

    @property
    def stages(self) -> int:
        """Stages that fit into a thread block's shared memory."""
        numbers = TILE_K * _NUMBER_BYTES
        arrays = (
            COMPUTE * ROWS * numbers,
            self.columns * TILE_K * _bits(self.codes) // 8,
            self.columns * self.scales * _SCALE_BYTES,
        )
        wide = 0 if self.codes is None else WIDE * self.columns * numbers

        def fits(stages: int) -> bool:
            return taken([wide, *(stages * size for size in arrays)], barriers=4 * stages + 1) <= HOPPER

        return next(stages for stages in range(_MOST_STAGES, 0, -1) if fits(stages))

    def steps_of_stage(self, tile: Tile) -> int:
        """Return how many steps of TILE_K inputs a stage holds: two if a tile leaves room for them."""
        even = self.inputs // self.parts % (2 * TILE_K) == 0
        return 2 if even and tile.row_groups == 1 and 2 * tile.columns <= self.columns else 1

    def turns(self, tile: Tile) -> int:
        """Return how many stages an item of a tile takes."""
        return self.inputs // (self.parts * TILE_K * self.steps_of_stage(tile))


def supports(
    *,
    inputs: int,
    outputs: int,
    dtype: str,
    activation: str | None = None,
    codes: str | None = None,
    group: int | None = None,
    capability: int = _HOPPER_CAPABILITY,
) -> str | None:
    """Return why the kernel cannot multiply with weights [outputs, inputs], or None if it can.

    ``activation``: of a gated product, whose outputs are gates and as many others. ``codes``: their dtype, if weights
    are codes. ``group``: inputs that share a scale; None: all. ``capability``: the major number of the GPU's compute
    capability.
    """
    if capability != _HOPPER_CAPABILITY:
        return f"compute capability {capability} has no wgmma of {_HOPPER_CAPABILITY}.0"
    if dtype not in _DTYPES:
        return f"weights of {dtype} are not {' or '.join(_DTYPES)}"
    if activation is not None and activation not in GATED:
        return f"activation {activation} is none of {', '.join(GATED)}"
    if codes is not None and (reason := code_trouble(codes, dtype, group)) is not None:
        return reason
    halves = 1 if activation is None else 2
    multiple = _step(ROWS, halves, codes)
    if not inputs or inputs % TILE_K or outputs % halves or not _columns(outputs // halves, ROWS, halves, codes):
        return f"{inputs} inputs and {outputs} outputs are not multiples of {TILE_K} and {multiple}"
    return None


def widest(outputs: int) -> int:
    """Return how many results of a row are summed together: as many as divide the outputs."""
    return next(n for n in range(_SUMMED, 0, -_COLUMNS) if outputs % n == 0)


def _cost(rows: int, columns: int, num_ctas: int, bits: int, tile: Tile) -> int:
    """Return the bits that one thread block loads for each input, if all are as busy as the busiest: in whole waves."""
    items = -(-rows // tile.rows) * (columns // tile.columns)
    return -(-items // num_ctas) * (tile.rows * 8 * _NUMBER_BYTES + tile.columns * bits)


def _columns(outputs: int, rows: int, halves: int, codes: str | None) -> list[int]:
    """Return the columns that a tile of ``rows`` may have; ``halves``: 2 if as many gates stand before the outputs."""
    step = _step(rows, halves, codes)
    return [n for n in range(step, MOST_COLUMNS + 1, step) if outputs % (n // halves) == 0]


def _step(rows: int, halves: int, codes: str | None) -> int:
    """Return what a tile's columns are a multiple of. Codes have CODED_ROWS in each piece of a weight."""
    groups = Tile(rows, 0).column_groups
    if codes is None:
        return halves * _COLUMNS * groups
    return CODED_ROWS if halves == 1 else halves * groups * CODED_ROWS


def _bits(codes: str | None) -> int:
    return 8 * _NUMBER_BYTES if codes is None else CODE_BITS[codes]
