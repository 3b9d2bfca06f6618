"""Where a parameter goes once it is read."""

from collections.abc import Callable
from typing import Any

import jax

from jaxgen.weights.names import Array

Place = Callable[[str, Array], Any]
"""Puts a parameter, given its dotted path and the host's array, where programs read it."""


def on_device(_: str, array: Array) -> jax.Array:
    """The default device, as it is."""
    return jax.device_put(array)
