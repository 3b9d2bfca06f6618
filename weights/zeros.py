"""Warn of weights that are all zero: a checkpoint that was saved before it was filled."""

import logging
from pathlib import Path

import numpy as np

from jaxgen.weights.names import Array

logger = logging.getLogger(__name__)

FIRST = 4096
"""Numbers looked at before all: nearly every matrix has another than zero among them."""
NAMED = 3


class ZeroWeights:
    """Collects the names of matrices that are all zero."""

    def __init__(self) -> None:
        self._names: list[str] = []

    def look(self, name: str, array: Array) -> None:
        """Take note of a matrix, or a stack of them, if it is all zero. Vectors may be: biases often are."""
        if array.ndim > 1 and array.size and not (np.any(array.reshape(-1)[:FIRST]) or np.any(array)):
            self._names.append(name)

    def warn(self, directory: Path) -> None:
        """Log one warning of all that were found."""
        if self._names:
            more = f" and {len(self._names) - NAMED} more" if len(self._names) > NAMED else ""
            logger.warning("%s: all zero: %s%s", directory, ", ".join(self._names[:NAMED]), more)
