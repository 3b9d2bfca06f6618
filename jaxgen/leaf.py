"""The array type of a pytree's fields, for shape annotations: ``Float[Leaf, "T D"]``.

To a type checker it is jax.Array, which is what a program sees. At run time it is anything with a shape and a dtype,
since the same classes also hold the host's numpy arrays and the shapes that a program is compiled for.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jax

    Leaf = jax.Array
else:
    Leaf = Any
