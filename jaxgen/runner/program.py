"""Programs: functions that are lowered and compiled for arguments of fixed shapes, before the first request."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from jaxgen.runner.devices import Devices


@dataclass(frozen=True)
class Program:
    """A function and the shapes of its arguments, of which those in ``donated`` are updated in place.

    ``keep_unused``: the program also takes the arguments that the function does not read. ``devices``: which run it
    together, on arguments of these shapes each; None: the default one.
    """

    function: Callable[..., Any]
    shapes: tuple[Any, ...]
    donated: tuple[int, ...] = ()
    keep_unused: bool = False
    devices: Devices | None = None

    def lower(self) -> jax.stages.Lowered:
        """Return the program as it goes to XLA."""
        options: dict[str, Any] = {"donate_argnums": self.donated, "keep_unused": self.keep_unused}
        function, shapes = self.function, self.shapes
        if self.devices is not None:
            function, shapes = self.devices.spread(function, shapes)
        return jax.jit(function, **options).lower(*shapes)

    @property
    def results(self) -> Any:
        """The shapes of its results, on one device."""
        if self.devices is not None:
            return self.devices.results(self.function, self.shapes)
        return jax.eval_shape(self.function, *self.shapes)

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
