"""The sum that goes through the layers, to which each half of a layer adds."""

from dataclasses import dataclass

import jax
from jaxtyping import Array, Float

from jaxgen.arrays import ArrayLike


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Unsummed:
    """x and the parts of the product that is to be added to it: the norm that follows adds them, since it reads x
    anyway."""

    x: Float[ArrayLike, "T D"]
    parts: Float[ArrayLike, "P T D"]


Residual = Float[Array, "T D"] | Unsummed
