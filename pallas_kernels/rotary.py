"""Rotary embedding: what a layer does to its queries and keys after their projection."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

Angles = tuple[Float[Array, "T 1 half"], Float[Array, "T 1 half"]]
"""Cosine and sine of each token's rotary angles."""


def rotate(x: Float[Array, "T H D"], angles: Angles | None) -> Float[Array, "T H D"]:
    """Apply rotary embedding (Su et al., arXiv 2104.09864) to the first 2 * half numbers of each head, in float32, with
    their halves as pairs, and round once.

    ``angles`` None: return x. Raises ValueError for more angles than a head has pairs.
    """
    if angles is None:
        return x
    cos, sin = angles
    half = cos.shape[-1]
    if 2 * half > x.shape[-1]:
        raise ValueError(f"rotary angles of {half} pairs for heads of {x.shape[-1]} numbers")
    first, second, rest = jnp.split(x.astype(jnp.float32), (half, 2 * half), axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1).astype(x.dtype)


def rotated_heads_ref(
    x: Float[Array, "T N"], angles: Angles | None, num_tokens: Int[Array, ""], *, first: int, heads: int, head_dim: int
) -> Float[Array, "T H D"]:
    """Return H = ``heads`` heads of D = ``head_dim`` numbers out of rows of many, from the ``first``-th on, each turned
    by ``rotate``.

    Rows from ``num_tokens`` on hold nothing to read.
    """
    del num_tokens  # XLA's program has one shape
    return rotate(x.reshape(len(x), -1, head_dim)[:, first : first + heads], angles)
