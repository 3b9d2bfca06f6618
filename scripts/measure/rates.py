"""Time programs in turns, and find the best rates of this CPU."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from os import cpu_count
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Timed = Callable[[], Any]


def turns(programs: Mapping[str, Timed], rounds: int) -> dict[str, np.ndarray]:
    """Return the seconds of each program in each round, without the first, which compiles.

    The programs take turns, so that a slow moment of the machine meets all.
    """
    taken: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(rounds + 1):
        for name, program in programs.items():
            started = time.perf_counter()
            jax.block_until_ready(program())
            taken[name].append(time.perf_counter() - started)
    return {name: np.array(seconds[1:]) for name, seconds in taken.items()}


def fastest(programs: Mapping[str, Timed], rounds: int) -> dict[str, float]:
    """Return the seconds of each program's fastest run."""
    return {name: float(seconds.min()) for name, seconds in turns(programs, rounds).items()}


class Reader:
    """Reads memory with all processors."""

    def __init__(self) -> None:
        self._arrays = [np.ones(2**25, np.float32) for _ in range(cpu_count() or 1)]
        self._pool = ThreadPoolExecutor(len(self._arrays))
        self.nbytes = sum(array.nbytes for array in self._arrays)

    def __call__(self) -> None:
        list(self._pool.map(np.max, self._arrays))


def bytes_per_second() -> float:
    """Return the rate of reading memory with all processors."""
    reader = Reader()
    return reader.nbytes / fastest({"read": reader}, 8)["read"]


def flops_per_second(dtype: str) -> float:
    """Return the rate of XLA's product of large square matrices."""
    size = 2048
    x = jnp.ones((size, size), dtype)
    product = jax.jit(partial(jnp.matmul, preferred_element_type=jnp.float32))
    return 2 * size**3 / fastest({"xla": partial(product, x, x)}, 5)["xla"]
