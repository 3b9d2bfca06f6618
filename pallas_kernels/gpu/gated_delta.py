"""Gated delta nets on Hopper: a persistent grid over the chunks and their heads. Rows of padding have none.

A decode is a chunk of one token: it has the same place in the same products as in a prompt, and so the same bits.
The state is float32 in global memory, updated in place. A warpgroup computes a head of a chunk, span after span.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from pallas_kernels.gated_delta import DeltaState
from pallas_kernels.gpu.delta_span import compute
from pallas_kernels.gpu.delta_support import CTAS_EACH, HEAD, SPAN, supports
from pallas_kernels.gpu.delta_tiles import PAD, Head, Memory, Piece
from pallas_kernels.gpu.persistent import CTA, H200_MULTIPROCESSORS, CtaItems, Interpret, Ref, put, repeat

_KEYS = DeltaState._fields.index("keys")
_TOGETHER = 8
"""Keys that a warpgroup stores at a time, so that it waits for memory once."""


def gated_delta(
    x: Float[Array, "T N"],
    a: Float[Array, "T H"],
    b: Float[Array, "T H"],
    a_log: Float[Array, "H"],
    dt_bias: Float[Array, "H"],
    state: DeltaState,
    layer: Int[Array, ""],
    query_starts: Int[Array, "R1"],
    context_lens: Int[Array, "R"],
    rows: Int[Array, "R"],
    num_rows: Int[Array, ""],
    *,
    num_ctas: int = H200_MULTIPROCESSORS,
    interpret: Interpret = None,
) -> tuple[Float[Array, "T H Dv"], DeltaState]:
    """Return what each token reads of its sequence's matrices, and the state after the chunks; see gated_delta_ref.

    The state's keys are not divided by their lengths and lie [C, Dk], and its decays are those of single tokens.
    Raises NotImplementedError with the reason of ``delta_support.supports`` for what it does not take.

    Reads and writes a matrix once for each span of a chunk, and what the open span keeps once. Products are of
    bfloat16, with float32 sums: inputs are exact in it, and other numbers are two of it.
    """
    _, _, heads, key_dim, value_dim = state.starts.shape
    span = state.decays.shape[3]
    if reason := supports(key_dim=key_dim, value_dim=value_dim, span=span, dtype=x.dtype.name):
        raise NotImplementedError(reason)
    padded = jnp.pad(x, ((PAD, PAD), (0, 0)))
    decays = -jnp.exp(a_log.astype(jnp.float32)) * jax.nn.softplus(a.astype(jnp.float32) + dt_bias.astype(jnp.float32))
    gates = [jnp.pad(one.T, ((0, 0), (PAD, PAD))) for one in (decays, jax.nn.sigmoid(b.astype(jnp.float32)))]
    by_row = state._replace(keys=state.keys.reshape(*state.keys.shape[:3], span, key_dim))
    refs: tuple[Ref, ...] = tuple(map(jax.new_ref, by_row))
    # Made, not cut from another array: a part of one might not be aligned as Mosaic demands.
    chunks = jnp.stack([rows, query_starts[:-1], query_starts[1:] - query_starts[:-1], context_lens], axis=1)
    walk = _Walk(num_rows, layer, chunks, num_ctas, interpret)
    out = walk.read(padded, gates, refs, len(x))
    walk.keep_keys(padded, refs[_KEYS])
    starts, keys, changes, kept = map(jax.freeze, refs)
    return out.reshape(len(x), heads, value_dim), DeltaState(starts, keys.reshape(state.keys.shape), changes, kept)


@dataclass(frozen=True)
class _Chunk:
    """A chunk of a row: ``count`` tokens from number ``first`` on, of which the last ends a context of ``context``."""

    row: Int[Array, ""]
    first: Int[Array, ""]
    count: Int[Array, ""]
    context: Int[Array, ""]

    def piece(self, number: Int[Array, ""]) -> Piece:
        """Return what the chunk has in a span."""
        begin, position = number * SPAN, self.context - self.count
        used, end = jnp.maximum(position - begin, 0), jnp.minimum(self.context - begin, SPAN)
        return Piece(begin, self.first + begin - position, used, end)

    @property
    def spans(self) -> tuple[Int[Array, ""], Int[Array, ""]]:
        """Return the first span that the chunk has tokens in, and the one after the last."""
        first = lax.div(self.context - self.count, jnp.int32(SPAN))
        return first, lax.div(self.context + SPAN - 1, jnp.int32(SPAN))


_FIELDS = 4
_Item = tuple[_Chunk, Int[Array, ""], Int[Array, ""]]
"""A chunk, the layer, and a head."""


@dataclass(frozen=True, eq=False)
class _Walk:
    """Persistent grids over chunks and their heads. ``chunks``: the fields of each ``_Chunk``."""

    num_rows: Int[Array, ""]
    layer: Int[Array, ""]
    chunks: Int[Array, "R 4"]
    num_ctas: int
    interpret: Interpret

    def read(
        self, x: Float[Array, "P N"], gates: list[Float[Array, "H P"]], refs: tuple[Ref, ...], tokens: int
    ) -> Array:
        """Return what the heads of each token read, and change the state but its keys."""
        heads, key_heads = refs[0].shape[2], refs[_KEYS].shape[2]

        def item(of: _Item, given: Sequence[Ref], memory: Memory) -> None:
            chunk, layer, head = of
            x_ref, decays, betas, starts, keys, changes, kept, out = given
            key_head = lax.div(head, jnp.int32(heads // key_heads))
            columns = key_head * HEAD, (key_heads + key_head) * HEAD, (2 * key_heads + head) * HEAD
            state = [ref.at[chunk.row, layer, one] for ref, one in ((starts, head), (keys, key_head))]
            state += [ref.at[chunk.row, layer, head] for ref in (changes, kept)]
            found = Head(x_ref, columns, decays.at[head], betas.at[head], *state)

            def store(token: Int[Array, ""], numbers: Float[Array, "D"]) -> None:
                put(out.at[token, pl.ds(head * HEAD, HEAD)], numbers.astype(x.dtype))

            repeat(*chunk.spans, lambda number: compute(memory, found, chunk.piece(number), store))

        result = jax.ShapeDtypeStruct((tokens, heads * HEAD), x.dtype)
        arrays = (x, *gates, *refs)
        return self._run("gated_delta", heads, item, arrays, result, Memory.shapes())

    def keep_keys(self, x: Float[Array, "P N"], keys: Ref) -> None:
        """Store the keys of open spans. Only now: the heads that share a key head read those from before the chunk."""
        key_heads = keys.shape[2]

        def item(of: _Item, given: Sequence[Ref], _: None) -> None:
            (chunk, layer, head), (x_ref, keys_ref) = of, given
            columns, kept = pl.ds((key_heads + head) * HEAD, HEAD), keys_ref.at[chunk.row, layer, head]
            piece = chunk.piece(chunk.spans[1] - 1)

            def keep(group: Int[Array, ""]) -> None:
                places = [jnp.clip(group * _TOGETHER + i, piece.used, piece.end - 1) for i in range(_TOGETHER)]
                tokens = [x_ref.at[piece.token + PAD + place, columns] for place in places]
                numbers = [plgpu.load(token, optimized=False).astype(jnp.float32) for token in tokens]
                for place, number in zip(places, numbers, strict=True):
                    put(kept.at[place], number)

            def keep_all() -> None:
                groups = lax.div(piece.end + _TOGETHER - 1, jnp.int32(_TOGETHER))
                repeat(lax.div(piece.used, jnp.int32(_TOGETHER)), groups, keep)

            pl.when((piece.used < piece.end) & (piece.end < SPAN))(keep_all)

        self._run("keep_keys", key_heads, item, (x, keys), (), ())

    def _run(
        self, name: str, heads: int, do: Callable[..., None], arrays: tuple[Any, ...], result: Any, scratch: Any
    ) -> Any:
        """Call ``do(item, arrays and results, memory)`` for each head of each chunk."""
        ctas, num_given = CTAS_EACH * self.num_ctas, len(arrays) + (1 if result else 0)

        def body(count_ref: Ref, layer_ref: Ref, chunks_ref: Ref, *given: Ref) -> None:
            items = CtaItems(count_ref[0] * heads, ctas)
            memory = Memory(*given[num_given:]) if scratch else None

            def one(i: Int[Array, ""]) -> None:
                number, head = lax.div(items[i], jnp.int32(heads)), lax.rem(items[i], jnp.int32(heads))
                chunk = _Chunk(*(chunks_ref[number, field] for field in range(_FIELDS)))
                do((chunk, layer_ref[0], head), given[:num_given], memory)

            repeat(0, items.mine, one)

        return plgpu.kernel(
            body,
            out_type=result,
            scratch_types=scratch,
            grid=(ctas,),
            grid_names=(CTA,),
            compiler_params=plgpu.CompilerParams(),
            interpret=self.interpret,
            kernel_name=name,
        )(self.num_rows.reshape(1), self.layer.reshape(1), self.chunks, *arrays)
