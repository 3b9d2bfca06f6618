"""Pool a prompt's final hidden states into its embedding. Host only, no jax.

The pooling methods are those of sentence-transformers (Reimers and Gurevych, arXiv 1908.10084).
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from jaxgen.core.model_info import Pooling

Vector = npt.NDArray[np.float64]


def _add_in_order(total: Vector | None, rows: Vector) -> Vector:
    """Add the rows one by one, because the order of numpy's own sum depends on the number of rows."""
    total = np.zeros(rows.shape[1]) if total is None else total
    for row in rows:
        total += row
    return total


_POOL: dict[Pooling, Callable[[Vector | None, Vector], Vector]] = {
    Pooling.MEAN: _add_in_order,
    Pooling.LAST: lambda _, rows: rows[-1].copy(),
    Pooling.CLS: lambda first, rows: rows[0].copy() if first is None else first,
}
"""For each method, the function (pooled value so far, next rows) -> new pooled value."""


class Pool:
    """Pools a prompt's hidden states, which are added in order. No bit of the result depends on the prompt's chunks."""

    def __init__(self, pooling: Pooling) -> None:
        self._pooling = pooling
        self._pooled: Vector | None = None
        self._count = 0

    def add(self, hidden: npt.NDArray[np.generic]) -> None:
        """Add the hidden states of the next tokens: [n, size], n at least 1, of any floating-point type."""
        self._pooled = _POOL[self._pooling](self._pooled, hidden.astype(np.float64))
        self._count += len(hidden)

    def result(self) -> tuple[float, ...]:
        """Return the embedding of all tokens that were added. Raises ValueError if none was."""
        if self._pooled is None:
            raise ValueError("there are no hidden states to pool")
        pooled = self._pooled / self._count if self._pooling is Pooling.MEAN else self._pooled
        return tuple(pooled.tolist())


def unit_vector(embedding: Sequence[float], dimensions: int | None = None) -> npt.NDArray[np.float32]:
    """Return the first ``dimensions`` (None: all) numbers of an embedding, scaled to length 1; zeros stay zeros.

    Raises ValueError if a number is not finite.
    """
    numbers = embedding[:dimensions]
    length = math.sqrt(math.sumprod(numbers, numbers))
    if not math.isfinite(length):
        raise ValueError("the model's hidden states are not finite, so that its embedding has no direction")
    return (np.array(numbers) / (length or 1.0)).astype(np.float32)
