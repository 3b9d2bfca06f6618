"""Programs: functions that are lowered and compiled for arguments of fixed shapes, before the first request."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp


@dataclass(frozen=True)
class Program:
    """A function and the shapes of its arguments, of which those in ``donated`` are updated in place.

    ``keep_unused``: the program also takes the arguments that the function does not read.
    """

    function: Callable[..., Any]
    shapes: tuple[Any, ...]
    donated: tuple[int, ...] = ()
    keep_unused: bool = False

    def lower(self) -> jax.stages.Lowered:
        """Return the program as it goes to XLA."""
        options: dict[str, Any] = {"donate_argnums": self.donated, "keep_unused": self.keep_unused}
        return jax.jit(self.function, **options).lower(*self.shapes)

    def compile(self, options: Mapping[str, str] | None = None) -> Any:
        """Return the compiled program. ``options``: XLA's."""
        return self.lower().compile(dict(options or {}))


def compile_together(programs: Mapping[str, Program], options: Mapping[str, str]) -> dict[str, Any]:
    """Return the compiled programs by name. XLA compiles all of them at the same time. ``options``: XLA's."""
    lowered = {name: program.lower() for name, program in programs.items()}
    with ThreadPoolExecutor(len(lowered)) as pool:
        compiled = pool.map(lambda program: program.compile(dict(options)), lowered.values())
    return dict(zip(lowered, compiled, strict=True))


def int32(*shape: int) -> jax.ShapeDtypeStruct:
    """Return the shape of an argument of integers."""
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def shapes_of(arrays: Any) -> Any:
    """Return the shapes of arrays in a tree."""
    return jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), arrays)
