"""Weights of a stack as arrays of their own."""

from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Array, Shaped

from jaxgen.arrays import ArrayLike


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SeparateWeights:
    """L weights [out, in]: XLA on GPUs copies a layer's weight out of a stack before it reads it, every time."""

    weights: tuple[Shaped[ArrayLike, "O I"], ...]

    @classmethod
    def split(cls, stack: Shaped[Array, "L O I"] | np.ndarray) -> "SeparateWeights":
        """Those of a stack, which from the host's memory go to the device one by one."""
        return cls(tuple(jax.device_put(stack[layer]) for layer in range(len(stack))))

    def at(self, layer: int) -> Shaped[Array, "O I"]:
        return self.weights[layer]
