"""Weights of a stack of which a program reads parts."""

from dataclasses import dataclass, replace

import jax
from jaxtyping import Int, Shaped

from jaxgen.arrays import ArrayLike


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StackedWeight:
    """A stack of L layers of E experts' weights [out, in], with the index of the layer to use.

    A slice of the stack would be a copy of all experts of that layer, of which a step may need few.
    """

    data: Shaped[ArrayLike, "L E O I"]
    layer: Int[ArrayLike, ""]

    def at(self, layer: Int[ArrayLike, ""]) -> "StackedWeight":
        return replace(self, layer=layer)

    def alone(self, layer: int) -> "StackedWeight":
        """Return a copy of one layer's weights as a stack of their own."""
        return replace(self, data=self.data[layer : layer + 1])

    @property
    def num_layers(self) -> int:
        return len(self.data)
