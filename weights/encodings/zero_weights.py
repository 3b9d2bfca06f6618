"""Find matrices that are all zero, of which loading warns. Host only, no jax."""

import logging
from pathlib import Path

import numpy as np

from jaxgen.core.quantization import GroupedWeight
from jaxgen.weights.families.tensors import Piece

logger = logging.getLogger(__name__)

_FIRST = 4096
"""Numbers looked at before all: nearly every matrix has another than zero among them."""
_NAMED = 3
"""Matrices that a warning names."""


class ZeroWeights:
    """Collects the names of matrices that are all zero, while ``huggingface`` or ``converted`` reads parameters."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}

    def look(self, name: str, value: Piece) -> None:
        """Take note of a matrix, or a stack of them, if it is all zero. Vectors may be: biases often are."""
        array = value.scales if isinstance(value, GroupedWeight) else value
        with np.errstate(invalid="ignore"):  # of numbers that are none, which numpy tells on standard error
            is_zero = array.ndim > 1 and array.size and not (np.any(array.reshape(-1)[:_FIRST]) or np.any(array))
        if is_zero:
            self._names[name] = None

    def warn(self, directory: Path) -> None:
        """Log one warning of all that were found."""
        if self._names:
            more = f" and {len(self._names) - _NAMED} more" if len(self._names) > _NAMED else ""
            logger.warning("%s: all zero: %s%s", directory, ", ".join(list(self._names)[:_NAMED]), more)
