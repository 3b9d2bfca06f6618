"""Short convolution over the tokens of each sequence: how a layer mixes neighbours, without attention.

Each channel has a causal filter of K taps over its inputs. A sequence's state is its last K - 1 inputs. So a token's
output depends on its own and the K - 1 tokens before it, however the sequence was cut in chunks.

There are two forms. Gated (LFM2): each token has three parts of D numbers, before, after and x. The inputs are
before * x, and ``after`` multiplies the result. Plain (before a gated delta net): a token has its D inputs alone, and
the output is silu of the result.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

_BITS = {"float32": (8, 23), "bfloat16": (8, 7), "float16": (5, 10)}
"""Of a number's exponent and mantissa."""


def short_convolution_ref(
    projected: Float[Array, "T N"],
    taps: Float[Array, "K D"],
    bias: Float[Array, "D"] | None,
    states: Float[Array, "S L M D"],
    layer: Int[Array, ""],
    query_starts: Int[Array, "R1"],
    context_lens: Int[Array, "R"],
    rows: Int[Array, "R"],
    num_rows: Int[Array, ""],
) -> tuple[Float[Array, "T D"], Float[Array, "S L M D"]]:
    """Return each token's output, and the states with those of the chunks' ends.

    ``projected``: N numbers of each token, [before, after, x] or the D inputs. The last of the ``taps`` is that of the
    token itself. Chunk r owns tokens ``query_starts[r] : query_starts[r + 1]``, the last of a context of
    ``context_lens[r]``. Its state, M = K - 1 inputs with the oldest first, is at ``states[rows[r], layer]``. Inputs
    before position 0 are zeros, whatever the state has there. Sums are in float32 in the order of the taps; inputs,
    outputs and sums before a gate are rounded to the dtype.
    Tokens past ``query_starts[num_rows]`` hold nothing to read. In place when the states are donated.
    """
    T, R, M = len(projected), len(rows), states.shape[2]
    lengths = query_starts[1:] - query_starts[:-1]
    firsts = context_lens - lengths
    wide, is_gated = projected.astype(jnp.float32), projected.shape[1] != taps.shape[1]
    before, after, x = jnp.split(wide, 3, axis=1) if is_gated else (None, None, wide)
    inputs = x if before is None else _rounded(before * x, projected)
    # By itself: XLA copies states that are still read where they change.
    own = lax.optimization_barrier(states[rows, layer])

    def known(
        chunk: Int[Array, "*n"], number: Int[Array, "*n"], of_chunk: Float[Array, "*n D"]
    ) -> Float[Array, "*n D"]:
        """Return the inputs of this ``number`` in their chunks, of which those of 0 and more are ``of_chunk``."""
        earlier = own[chunk, jnp.clip(number + M, 0, M - 1)].astype(jnp.float32)
        earlier = jnp.where((firsts[chunk] + number >= 0)[..., None], earlier, 0.0)
        return jnp.where((number >= 0)[..., None], of_chunk, earlier)

    chunks = jnp.minimum(jnp.searchsorted(query_starts[1:], jnp.arange(T), side="right", method="compare_all"), R - 1)
    numbers = jnp.arange(T) - query_starts[chunks]
    total = jnp.zeros_like(inputs) if bias is None else jnp.broadcast_to(bias.astype(jnp.float32), inputs.shape)
    for tap in range(M + 1):
        back = M - tap
        moved = jnp.pad(inputs, ((back, 0), (0, 0)))[:T]
        total = total + taps[tap].astype(jnp.float32) * (known(chunks, numbers - back, moved) if back else inputs)
    out = jax.nn.silu(total) if after is None else after * _rounded(total, projected)

    last = lengths[:, None] + jnp.arange(-M, 0)
    of_chunk = inputs[jnp.clip(query_starts[:-1, None] + last, 0, T - 1)]
    ends = known(jnp.broadcast_to(jnp.arange(R)[:, None], last.shape), last, of_chunk).astype(states.dtype)
    used = jnp.where(jnp.arange(R) < num_rows, rows, len(states))
    return out.astype(projected.dtype), states.at[used, layer].set(ends, mode="drop")


def _rounded(x: Float[Array, "*n"], like: Float[Array, "*m"]) -> Float[Array, "*n"]:
    """Return float32 numbers that the dtype of ``like`` has. XLA may leave out a conversion to it and back."""
    exponent, mantissa = _BITS[like.dtype.name]
    return lax.reduce_precision(x, exponent, mantissa)
