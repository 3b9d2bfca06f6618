"""Small arrays packed in one vector of words, bytes of arrays, sums in one order, and the array type of pytrees."""

from math import prod
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int32

# Programs see jax.Array. At run time the same classes also hold numpy arrays and the shapes of a program's arguments.
if TYPE_CHECKING:
    ArrayLike = jax.Array
else:
    ArrayLike = Any

_TOGETHER = 64
"""Numbers that a kernel adds for each of its results: more would be a slow kernel, fewer another one."""

Shape = tuple[int, ...]
Field = tuple[Shape, type[np.generic]]


def num_bytes(array: jax.Array | np.ndarray) -> int:
    """Return the bytes of an array on a device, where two numbers of 4 bits have one; jax counts one for each."""
    return array.nbytes // 2 if array.dtype in (jnp.int4, jnp.uint4) else array.nbytes


class PackedWords:
    """Layout of several small arrays in one vector of 32-bit words, so that one transfer brings them to the device.

    It gives the place of each named array in the vector. Element types are numpy's int32, uint32 and float32.
    """

    def __init__(self, **fields: Field):
        """``fields``: name=(shape, dtype). Raises ValueError for a type that is not 32 bits wide."""
        self._places: dict[str, tuple[slice, Shape, np.dtype[Any]]] = {}
        self.size = 0
        for name, (shape, dtype) in fields.items():
            if np.dtype(dtype).itemsize != 4:
                raise ValueError(f"{name} must have a 32-bit type, not {np.dtype(dtype)}")
            self._places[name] = slice(self.size, self.size + prod(shape)), shape, np.dtype(dtype)
            self.size += prod(shape)

    @property
    def first_words(self) -> dict[str, int]:
        """The index of each array's first word in the vector."""
        return {name: here.start for name, (here, _, _) in self._places.items()}

    def views(self, words: np.ndarray) -> dict[str, np.ndarray]:
        """Return the arrays as writable views of a host vector of int32."""
        return {name: words[here].view(dtype).reshape(shape) for name, (here, shape, dtype) in self._places.items()}

    def split(self, words: Int32[Array, "*n P"]) -> dict[str, Array]:
        """Return the arrays of each vector, after the leading dimensions of ``words``; for use in a program."""
        arrays = {}
        for name, (here, shape, dtype) in self._places.items():
            array = words[..., here].reshape(*words.shape[:-1], *shape)
            arrays[name] = array if dtype == np.int32 else jax.lax.bitcast_convert_type(array, dtype)
        return arrays


def ordered_sum(x: Float[Array, "R V"]) -> Float[Array, "R 1"]:
    """Return the sum of each row, with the same bits for any number of rows, unlike XLA's own sum on GPUs.

    Each stage adds 64 numbers by pairs of halves. A barrier keeps XLA from joining stages into a sum of its own order.
    """
    while x.shape[1] > 1:
        padded = jnp.pad(x, ((0, 0), (0, -x.shape[1] % _TOGETHER)))
        parts = padded.reshape(len(x), _TOGETHER, -1)
        while parts.shape[1] > 1:
            half = parts.shape[1] // 2
            parts = parts[:, :half] + parts[:, half:]
        x = lax.optimization_barrier(parts[:, 0])
    return x
