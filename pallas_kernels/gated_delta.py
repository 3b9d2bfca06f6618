"""Gated delta nets (Yang et al., arXiv 2412.06464): a matrix of each head and sequence in place of K and V.

A token fades the matrix, corrects what it recalls for the token's key, and reads it with the token's query:

    M_t = exp(g_t) M_{t-1} + k_t c_t^T,    c_t = beta_t (v_t - exp(g_t) M_{t-1}^T k_t),    o_t = M_t^T q_t

What a sequence keeps, and in which order a token's sums run, must not show how its tokens came in chunks. So positions
are cut into *spans* of C, at multiples of C. A sequence keeps the matrix M at the start of its open span and, of the
span's tokens j so far, k_j, the change c_j, and G_j, the sum of g from the span's first token to j. Token i computes

    M_i = exp(G_i) M + sum over j <= i, in order, of exp(G_i - G_j) k_j c_j^T

and never stores it: it needs M_i^T q_i alone, and c_i needs the same sum over j < i. The last token of a span stores
its M_i as the next span's start. So a token's bits depend on the tokens before it, and on nothing else.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from pallas_kernels.norms import row_sum

EPS = 1e-6
"""What is added to the squared length of queries and keys before they are divided by the length."""


class DeltaState(NamedTuple):
    """What S rows keep in L layers: K key heads and H value heads of Dk and Dv numbers, in spans of C positions.

    Nothing is reset: of a span that began at position 0 ``starts`` is not read, and what other positions of the open
    span left is not read either.
    """

    starts: Float[Array, "S L H Dk Dv"]
    keys: Float[Array, "S L K Dk C"]
    changes: Float[Array, "S L H C Dv"]
    decays: Float[Array, "S L H C"]
    """G, of which a token's share is at most 0."""


def gated_delta_ref(
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
) -> tuple[Float[Array, "T H Dv"], DeltaState]:
    """Return what each token reads of its sequence's matrices, and the state after the chunks.

    ``x``: a token's queries and keys, K heads of Dk numbers each, then its values, H heads of Dv. Queries and keys are
    divided by their lengths, and queries by sqrt(Dk). Each key head serves H / K value heads, which are neighbours.
    ``a`` and ``b``: g = -exp(a_log) softplus(a + dt_bias), and beta = sigmoid(b).

    Chunk r has tokens ``query_starts[r]`` to ``query_starts[r + 1]``, the last of them at position
    ``context_lens[r] - 1``, and its state is that of row ``rows[r]``. Chunks from ``num_rows`` on are padding.
    All is computed in float32. The result has the dtype of x, and its padding is undefined.
    """
    a_log, dt_bias = a_log.astype(jnp.float32), dt_bias.astype(jnp.float32)

    def chunk(r: Array, carry: tuple[Array, DeltaState]) -> tuple[Array, DeltaState]:
        out, state = carry
        to_position = context_lens[r] - query_starts[r + 1]

        def token(t: Array, carry: tuple[Array, DeltaState]) -> tuple[Array, DeltaState]:
            out, own = carry
            decay = -jnp.exp(a_log) * jax.nn.softplus(a[t].astype(jnp.float32) + dt_bias)
            beta = jax.nn.sigmoid(b[t].astype(jnp.float32))
            read, own = _token(x[t].astype(jnp.float32), decay, beta, own, t + to_position)
            return out.at[t].set(read.astype(out.dtype)), own

        own = DeltaState(*(part[rows[r], layer] for part in state))
        out, own = lax.fori_loop(query_starts[r], query_starts[r + 1], token, (out, own))
        return out, DeltaState(*(part.at[rows[r], layer].set(new) for part, new in zip(state, own, strict=True)))

    _, _, H, _, Dv = state.starts.shape
    return lax.fori_loop(0, num_rows, chunk, (jnp.zeros((len(x), H, Dv), x.dtype), state))


def _token(
    x: Float[Array, "N"], decay: Float[Array, "H"], beta: Float[Array, "H"], own: DeltaState, position: Array
) -> tuple[Float[Array, "H Dv"], DeltaState]:
    """Return what one token reads, and its row's state in one layer after it."""
    (K, Dk, C), (H, Dv) = own.keys.shape, own.starts.shape[::2]
    queries, keys, values = jnp.split(x, (K * Dk, 2 * K * Dk))
    query, key = _unit(queries.reshape(K, Dk)) * Dk**-0.5, _unit(keys.reshape(K, Dk))
    i, places = position % C, jnp.arange(C)

    total = jnp.where(i > 0, own.decays[:, i - 1], 0.0) + decay
    open_span = own._replace(keys=own.keys.at[:, :, i].set(key), decays=own.decays.at[:, i].set(total))
    # What is left of each change; nothing of a later one.
    left = jnp.where(places <= i, jnp.exp(total[:, None] - open_span.decays), 0.0)
    start = jnp.where(position < C, 0.0, own.starts)
    changes = jnp.where((places < i)[:, None], own.changes, 0.0)
    of_heads = jnp.repeat(open_span.keys, H // K, axis=0)

    def recall(by: Float[Array, "K Dk"], changes: Float[Array, "H C Dv"]) -> Float[Array, "H Dv"]:
        by = jnp.repeat(by, H // K, axis=0)
        shares = jnp.where(places <= i, left * _sum("hk,hkc->hc", by, of_heads), 0.0)
        return jnp.exp(total)[:, None] * _sum("hk,hkv->hv", by, start) + _sum("hc,hcv->hv", shares, changes)

    change = beta[:, None] * (values.reshape(H, Dv) - recall(key, changes))
    changes = changes.at[:, i].set(change)

    def next_start() -> Float[Array, "H Dk Dv"]:
        return jnp.exp(total)[:, None, None] * start + _sum("hkc,hcv->hkv", left[:, None] * of_heads, changes)

    starts = lax.cond(i == C - 1, next_start, lambda: own.starts)
    return recall(query, changes), open_span._replace(starts=starts, changes=changes)


def _unit(x: Float[Array, "K Dk"]) -> Float[Array, "K Dk"]:
    """Rows of length 1, if they are not tiny."""
    return x * lax.rsqrt(row_sum(x * x) + EPS)


def _sum(subscripts: str, *operands: Array) -> Array:
    return jnp.einsum(subscripts, *operands, precision=lax.Precision.HIGHEST)
