"""What the Pallas kernels of a step read, write and compute for a load: their operands are whole caches and stacks of
experts, of which they touch what the rows of the step need."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pallas_kernels.gpu.attention.items import GRANULE, PIECE_TOKENS
from scripts.gpu.roofline.hlo import Array

FLOAT32 = 4
"""Bytes."""


@dataclass(frozen=True)
class Load:
    """The rows of a step as (query tokens, context) of each, decodes first, and the model's query heads."""

    rows: tuple[tuple[int, int], ...]
    heads: int

    def only(self, *, decodes: bool) -> "Load":
        """Return the load of the rows that decode, or of the others."""
        return Load(tuple(row for row in self.rows if (row[0] == 1) == decodes), self.heads)

    @property
    def tokens(self) -> int:
        return sum(length for length, _ in self.rows)

    @property
    def contexts(self) -> int:
        return sum(context for _, context in self.rows)

    @property
    def pairs(self) -> int:
        """A token and one that it attends to."""
        return sum((2 * context - length + 1) * length // 2 for length, context in self.rows)

    @property
    def pieces(self) -> int:
        """Of the contexts, as decodes walk them."""
        return sum(-(-context // PIECE_TOKENS) for _, context in self.rows)


Cost = tuple[int, int, str]
"""Bytes, FLOPs, and the dtype of the products."""


@dataclass(frozen=True)
class Call:
    """A call of a Pallas kernel in a program for a load."""

    operands: Sequence[Array]
    results: Sequence[Array]
    load: Load

    @property
    def cache(self) -> Array:
        """The operand that is the KV cache [N, L, 2, K, B, D]. Raises ValueError for a cache of codes."""
        found = next((array for array in self.operands if len(array.shape) == 6), None)
        if found is None:
            raise ValueError("a cache of 8 bits has no bill yet")
        return found

    @property
    def kv_heads(self) -> int:
        return self.cache.shape[3]

    @property
    def head_dim(self) -> int:
        return self.cache.shape[5]

    def bytes_of_heads(self, count: int) -> int:
        """Bytes of the given vectors of a head in the dtype of the cache."""
        return count * self.head_dim * self.cache.bits // 8

    def attention(self, load: Load) -> tuple[int, int]:
        """Bytes of K and V of a load's contexts and of its queries, and FLOPs."""
        vectors = 2 * load.contexts * self.kv_heads + load.tokens * load.heads
        return self.bytes_of_heads(vectors), 4 * load.heads * self.head_dim * load.pairs


def _sums_of_pieces(decodes: Load, kv_heads: int, head_dim: int) -> int:
    """Bytes of what is kept of pieces: float32, a granule of rows for each kv head."""
    return decodes.pieces * kv_heads * GRANULE * (head_dim + 2) * FLOAT32


def _in_pieces(call: Call) -> Cost:
    decodes = call.load.only(decodes=True)
    moved, flops = call.attention(decodes)
    return moved + _sums_of_pieces(decodes, call.kv_heads, call.head_dim), flops, call.cache.dtype


def _of_tiles(call: Call) -> Cost:
    prompts = call.load.only(decodes=False)
    moved, flops = call.attention(prompts)
    return moved + call.bytes_of_heads(prompts.tokens * prompts.heads), flops, call.cache.dtype


def _combined(call: Call) -> Cost:
    """Outputs are stored by row, or added in place to those of all tokens."""
    decodes, result = call.load.only(decodes=True), call.results[0]
    rows, kv_heads, columns = result.shape
    sums = next((array for array in call.operands if array.dtype == "f32" and len(array.shape) == 3), result)
    written = min(len(decodes.rows), rows) * kv_heads * columns * result.bits // 8
    return _sums_of_pieces(decodes, kv_heads, sums.shape[-1] // GRANULE) + written, 0, ""


def _planned(call: Call) -> Cost:
    return sum(array.num_bytes for array in (*call.operands, *call.results)), 0, ""


def _rotated(call: Call) -> Cost:
    """Rows of queries, keys and values are read and written. Angles [T, pairs] are read for each head of them."""
    heads, rows = call.load.heads + 2 * call.kv_heads, call.load.tokens
    angles = [array for array in call.operands if len(array.shape) == 2 and array.dtype == "f32"]
    of_angles = sum(array.shape[1] * array.bits // 8 for array in angles) * (call.load.heads + call.kv_heads)
    return call.bytes_of_heads(2 * rows * heads) + rows * of_angles, 0, ""


def _written(call: Call) -> Cost:
    """K and V are read and written."""
    return 2 * sum(array.num_bytes for array in call.operands if len(array.shape) == 4), 0, ""


def _experts(call: Call) -> Cost:
    """As many experts have rows as if each row's expert were drawn at random.

    Weights are [L, E, O, I], and scales of groups [L, E, G, O].
    """
    x = next(array for array in call.operands if len(array.shape) == 2)
    stacks = [array for array in call.operands if len(array.shape) == 4]
    result, (layers, experts, _, inputs) = call.results[0], stacks[0].shape
    rows, outputs = result.shape
    used = experts * (1 - (1 - 1 / experts) ** rows)
    of_experts = round(sum(array.num_bytes for array in stacks) / layers * used / experts)
    return rows * inputs * x.bits // 8 + of_experts + result.num_bytes, 2 * rows * inputs * outputs, x.dtype


def _dense(call: Call) -> Cost:
    """A weight [L, O, I], and scales of its codes [L, G, O], are read for one layer. Rows of padding are skipped."""
    x = next(array for array in call.operands if len(array.shape) == 2)
    stacks = [array for array in call.operands if len(array.shape) == 3]
    (layers, outputs, inputs), rows = stacks[0].shape, min(call.load.tokens, x.shape[0])
    of_rows = (x.num_bytes + sum(result.num_bytes for result in call.results)) * rows // x.shape[0]
    return sum(array.num_bytes for array in stacks) // layers + of_rows, 2 * rows * inputs * outputs, x.dtype


def _by_rows(call: Call) -> Cost:
    """All that has a row for each token, but those of padding; what else there is, is small."""
    rows = max(array.shape[-2] for array in call.results)
    of_rows = [array for array in (*call.operands, *call.results) if array.shape[-2:-1] == (rows,)]
    return sum(array.num_bytes for array in of_rows) * min(call.load.tokens, rows) // rows, 0, ""


COSTS: Mapping[str, Callable[[Call], Cost]] = {
    "attention_in_pieces": _in_pieces,
    "attention_of_tiles": _of_tiles,
    "attention_combine": _combined,
    "write_kv": _written,
    "plan_attention": _planned,
    "rotate_write": _rotated,
    "expert_product": _experts,
    "dense_product": _dense,
    "gated_product": _dense,
    **dict.fromkeys(("sum_of_parts", "rms_norm", "layer_norm", "add_rms_norm", "add_layer_norm"), _by_rows),
}
"""By a kernel's name, the cost of a call."""
