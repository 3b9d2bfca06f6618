"""Put a parameter on a device once it is read."""

from collections.abc import Callable
from typing import Any

import jax

from jaxgen.weights.names import Array

Place = Callable[[str, Array], Any]
"""A function that puts a parameter, given its dotted path and the host's array, where programs read it."""


def on_device(_: str, array: Array) -> jax.Array:
    """Put the array on the default device, unchanged."""
    return jax.device_put(array)
