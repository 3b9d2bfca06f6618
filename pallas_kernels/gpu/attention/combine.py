"""Combine the pieces of contexts that were walked in pieces, each row's from the left.

A walk of the whole context does the same in registers, with the same arithmetic. A CTA takes a few query heads of a row
at a time. It loads several pieces before it needs the first, because it waits almost only for the loads' latency.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float

from pallas_kernels.gpu.attention.config import Scalar, Walk
from pallas_kernels.gpu.attention.items import Pieces
from pallas_kernels.gpu.attention.online_softmax import FLOOR, Part, merge, normalized, sink
from pallas_kernels.gpu.persistent import CTA, CtaItems, Ref, repeat

_AHEAD = 8
"""Pieces that are loaded together."""
_WARPGROUP = 128
"""Threads; vectors in registers are multiples of this."""
_CTAS = 4
"""For each of the walk's: several fit on a multiprocessor."""


def heads_together(head_dim: int) -> int:
    """Query heads that fill whole vectors."""
    return next(n for n in (1, 2, 4, 8) if n * head_dim % _WARPGROUP == 0)


def stored_heads(walk: Walk) -> int:
    """Return the query heads of a group in an array of outputs by token: as many as fill whole vectors."""
    return -(-walk.group // heads_together(walk.head_dim)) * heads_together(walk.head_dim)


def combine_pieces(
    walk: Walk,
    pieces: Pieces,
    part: Part,
    sinks: Float[Array, "H"] | None,
    others: Float[Array, "T K heads D"] | None,
) -> Float[Array, "R K rows D"]:
    """Return outputs of the first ``pieces.num_rows`` rows in the walk's dtype, from a Part of pieces as
    ``walk_contexts`` stores it and sinks in the exponents' unit.

    ``others``: outputs of other rows' tokens by token, to which these rows' are added in place: the token of row r is
    number r. None: they are returned alone. Other rows are undefined then, and so are query heads past the group.
    """
    n, K, rows, D = part.output.shape
    R = len(pieces.begin)
    operands = {"num_rows": pieces.num_rows, "begin": pieces.begin, "end": pieces.end}
    operands |= {"maximum": part.maximum, "total": part.total, "output": part.output.reshape(n, K, rows * D)}
    if sinks is not None:
        operands["sinks"] = jnp.pad(sinks.reshape(K, -1), ((0, 0), (0, rows - walk.group)))
    shared = None if others is None else jax.new_ref(others.reshape(len(others), K, -1))
    names = (*operands, "result")

    def body(*refs: Ref) -> None:
        _cta(walk, dict(zip(names, refs, strict=True)))

    out = plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((R, K, rows * D), walk.dtype) if shared is None else (),
        grid=(walk.num_ctas * _CTAS,),
        grid_names=(CTA,),
        compiler_params=plgpu.CompilerParams(approx_math=True),
        interpret=walk.interpret,
        kernel_name="attention_combine",
    )(*operands.values(), *(() if shared is None else (shared,)))
    return out.reshape(R, K, rows, D) if shared is None else jax.freeze(shared).reshape(-1, K, stored_heads(walk), D)


def _cta(walk: Walk, refs: dict[str, Ref]) -> None:
    together = heads_together(walk.head_dim)
    per_head = -(-walk.group // together)
    per_row = walk.kv_heads * per_head
    items = CtaItems(refs["num_rows"][0] * per_row, walk.num_ctas * _CTAS)

    def item(n: Scalar) -> None:
        at = items[n]
        row, head = lax.div(at, per_row), lax.div(lax.rem(at, per_row), per_head)
        _combine(walk, refs, row, head, lax.rem(at, per_head) * together)

    repeat(0, items.mine, item)


def _combine(walk: Walk, refs: dict[str, Ref], row: Scalar, head: Scalar, first: Scalar) -> None:
    """The query heads of ``head`` from ``first``, as many as are taken together, of a row."""
    together, D = heads_together(walk.head_dim), walk.head_dim
    begin, end = refs["begin"][row], refs["end"][row]
    values = pl.ds(pl.multiple_of(first * D, together * D), together * D)
    spread = partial(_spread, walk.head_dim)

    def load(piece: Scalar) -> Part:
        """Past the last piece the last again, but with a maximum that keeps it from counting."""
        at = jnp.minimum(piece, end - 1)
        maxima = [refs["maximum"][at, head, first + i] for i in range(together)]
        totals = [refs["total"][at, head, first + i] for i in range(together)]
        maxima = [jnp.where(piece < end, maximum, FLOOR) for maximum in maxima]
        return Part(spread(maxima), spread(totals), refs["output"][at, head, values])

    def some(n: Scalar, running: Part) -> Part:
        parts = [load(begin + n * _AHEAD + i) for i in range(_AHEAD)]
        for part in parts:
            running = merge(running, part)
        return running

    zeros = spread([jnp.float32(0.0)] * together)
    if "sinks" in refs:
        running = sink(spread([refs["sinks"][head, first + i] for i in range(together)]), zeros)
    else:
        running = Part(spread([jnp.float32(FLOOR)] * together), zeros, zeros)
    running = lax.fori_loop(0, lax.div(end - begin + (_AHEAD - 1), _AHEAD), some, running)
    refs["result"][row, head, values] = normalized(running).astype(walk.dtype)


def _spread(head_dim: int, scalars: list[Scalar]) -> Any:
    """A vector that holds each scalar head_dim times."""
    shape = (len(scalars) * head_dim,)
    vector = jnp.broadcast_to(scalars[0], shape)
    if len(scalars) > 1:
        index = lax.iota(jnp.int32, shape[0])
        for i, scalar in enumerate(scalars[1:], 1):
            vector = jnp.where(index >= i * head_dim, jnp.broadcast_to(scalar, shape), vector)
    return plgpu.layout_cast(vector, plgpu.Layout.WG_STRIDED(shape, vec_size=1))
