"""Weights of a stack as separate arrays."""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Shaped


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SeparateWeights:
    """L separate weights [out, in] or [experts, out, in], arrays or QuantizedWeights: XLA on GPUs would copy a layer's
    weight out of a stack each time it reads it. Or L weights [width] of norms, for kernels that read no slice."""

    weights: tuple[Any, ...]

    @classmethod
    def split(cls, stack: Shaped[Array, "L ..."] | np.ndarray) -> "SeparateWeights":
        """Split a stack. Weights in host memory go to the device one by one."""
        return cls(tuple(jax.device_put(stack[layer]) for layer in range(len(stack))))

    def at(self, layer: int) -> Any:
        return self.weights[layer]
