"""Random sequences for gated delta nets, and the sizes of their heads."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np


@dataclass(frozen=True)
class Sizes:
    """Of a layer: how many heads, of how many numbers, and the positions of a span."""

    key_heads: int
    heads: int
    key_dim: int
    value_dim: int
    span: int


@dataclass(frozen=True)
class Sequence:
    """The inputs of a sequence's tokens, and the weights of its layer."""

    x: np.ndarray
    a: np.ndarray
    b: np.ndarray
    a_log: np.ndarray
    dt_bias: np.ndarray

    @classmethod
    def draw(cls, sizes: Sizes, tokens: int, dtype: str, seed: int = 0) -> "Sequence":
        rng = np.random.default_rng(seed)
        H, width = sizes.heads, 2 * sizes.key_heads * sizes.key_dim + sizes.heads * sizes.value_dim
        shapes = (tokens, width), (tokens, H), (tokens, H)
        inputs = [np.asarray(jnp.asarray(rng.normal(size=shape), dtype)) for shape in shapes]
        return cls(*inputs, *(rng.normal(size=H).astype(np.float32) - 1 for _ in range(2)))
