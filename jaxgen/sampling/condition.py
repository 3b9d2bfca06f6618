"""Conditions that are known when a program is made, or that the program computes."""

from collections.abc import Callable

import jax
from jaxtyping import Array, Bool

Condition = bool | Bool[Array, ""]


def either[Result](condition: Condition, then: Callable[[], Result], otherwise: Callable[[], Result]) -> Result:
    """Return the result of one of two functions: chosen here if the condition is known, else by the program."""
    if isinstance(condition, bool):
        return then() if condition else otherwise()
    chosen: Result = jax.lax.cond(condition, then, otherwise)
    return chosen
