"""From a prompt's final hidden states to its embedding. Host only, no jax.

The ways of pooling are those of sentence-transformers (Reimers and Gurevych, arXiv 1908.10084).
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from jaxgen.core.model_info import Pooling

Vector = npt.NDArray[np.float64]


def _add_in_order(total: Vector | None, rows: Vector) -> Vector:
    """One by one: numpy's own sum takes an order that depends on how many there are."""
    total = np.zeros(rows.shape[1]) if total is None else total
    for row in rows:
        total += row
    return total


_POOL: dict[Pooling, Callable[[Vector | None, Vector], Vector]] = {
    Pooling.MEAN: _add_in_order,
    Pooling.LAST: lambda _, rows: rows[-1].copy(),
    Pooling.CLS: lambda first, rows: rows[0].copy() if first is None else first,
}
"""From what was pooled before and the next rows to what is pooled now."""


class Pool:
    """Takes a prompt's hidden states in order, in any pieces; no bit depends on where they were cut."""

    def __init__(self, pooling: Pooling) -> None:
        self._pooling = pooling
        self._pooled: Vector | None = None
        self._count = 0

    def add(self, hidden: npt.NDArray[np.generic]) -> None:
        """The next tokens' [n, size], n at least 1, of any floating-point type."""
        self._pooled = _POOL[self._pooling](self._pooled, hidden.astype(np.float64))
        self._count += len(hidden)

    def result(self) -> tuple[float, ...]:
        """The embedding of all that was added. Raises ValueError when nothing was."""
        if self._pooled is None:
            raise ValueError("there are no hidden states to pool")
        pooled = self._pooled / self._count if self._pooling is Pooling.MEAN else self._pooled
        return tuple(pooled.tolist())


def unit_vector(embedding: Sequence[float], dimensions: int | None = None) -> npt.NDArray[np.float32]:
    """The first ``dimensions`` (None: all) numbers of an embedding, scaled to length 1; zeros stay zeros.

    Raises ValueError where they are not finite.
    """
    kept = embedding[:dimensions]
    length = math.sqrt(math.sumprod(kept, kept))
    if not math.isfinite(length):
        raise ValueError("the model's hidden states are not finite, so that its embedding has no direction")
    return (np.array(kept) / (length or 1.0)).astype(np.float32)
