"""Time the work of KV offload: recomputing K and V from layer inputs, and staging copies. Where the device has Pallas
kernels, these are compared with XLA's versions, in results and time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.model_config import ModelConfig
from jaxgen.models.positions import rotary_angles
from pallas_kernels.copy_blocks import gather_blocks_ref, scatter_blocks_ref
from pallas_kernels.partial_recompute import partial_recompute_ref
from scripts.gpu.result.report import Measurement, Run
from scripts.gpu.rows.bench import Bench
from scripts.gpu.rows.kernels import BLOCK_SIZE, kernels_for, recompute_kernel
from scripts.gpu.rows.timing import compiled, seconds_of
from scripts.gpu.rows.work import OffloadLoad

CALLS = 8
TOLERANCE = 2.0**-6
"""Largest error of bfloat16 results, relative to the largest value: two roundings of half a unit in the last place,
doubled."""

Function = Callable[..., jax.Array]


def recompute(bench: Bench, load: OffloadLoad) -> Run:
    """Recompute K and V of whole blocks in one layer. Calls cycle through all layers, so that no weights are in L2."""
    model, T = load.model, load.tokens
    E, KD = model.hidden_size, model.num_kv_heads * model.head_dim
    outputs = model.num_heads * model.head_dim + 2 * KD
    weight = _normal(1, (load.layers, outputs, E), model.dtype) * E**-0.5
    assert isinstance(model, DecoderConfig)
    bias = _normal(2, (load.layers, outputs), model.dtype) if model.attention.qkv_bias else None
    ropes = model.positions.ropes
    angles = rotary_angles(ropes[0], model.head_dim, jnp.arange(T)) if ropes else None
    blocks = np.random.default_rng(0).permutation(T // BLOCK_SIZE)
    slots = jnp.asarray((blocks[:, None] * BLOCK_SIZE + np.arange(BLOCK_SIZE)).reshape(-1), jnp.int32)
    inputs = [
        (jnp.int32(layer), _normal(3 + layer, (T, E), model.dtype), weight, bias, angles, slots)
        for layer in range(load.layers)
    ]
    reference: Function = partial(partial_recompute_ref, run=BLOCK_SIZE)
    kernels, function = recompute_kernel(bench, run=BLOCK_SIZE)
    cache = partial(_cache, load, T // BLOCK_SIZE)
    moved = (T * E + 2 * KD * E + 2 * T * KD) * jnp.dtype(model.dtype).itemsize
    compare = _in_place(bench, kernels, (function, reference), cache, inputs)
    return lambda: compare().measurement(moved, 4 * T * E * KD, tolerance=TOLERANCE)


def gather(bench: Bench, load: OffloadLoad) -> Run:
    """Gather every other of twice as many blocks, in shuffled order, into one buffer."""
    kernels = kernels_for(bench)
    cache = _cache(load, 2 * load.blocks)
    arguments = cache, _every_other(load), jnp.int32(load.blocks)
    both = (kernels.gather_blocks, gather_blocks_ref)
    calls = [partial(compiled(one, *arguments), *arguments) for one in both]

    def run() -> Measurement:
        results = [call() for call in calls]
        seconds = [seconds_of(call, bench.sizes.repeats, calls=CALLS) for call in calls]
        return Compared(kernels.name, results, seconds).measurement(cache.nbytes, 0, tolerance=0.0)

    return run


def scatter(bench: Bench, load: OffloadLoad) -> Run:
    """Scatter one buffer into every other of twice as many blocks."""
    kernels = kernels_for(bench)
    inputs = [(_every_other(load), _cache(load, load.blocks, seed=1), jnp.int32(load.blocks))]
    functions = kernels.scatter_blocks, scatter_blocks_ref
    compare = _in_place(bench, kernels.name, functions, partial(_cache, load, 2 * load.blocks), inputs)
    return lambda: compare().measurement(2 * inputs[0][1].nbytes, 0, tolerance=0.0)


def staging(bench: Bench, load: OffloadLoad, way: str) -> Run:
    """Copy the staging buffer between device memory and page-locked host memory."""
    host, here = (SingleDeviceSharding(bench.shared.device, memory_kind=kind) for kind in ("pinned_host", "device"))
    source, target = (here, host) if way == "device_to_host" else (host, here)
    blocks = jax.block_until_ready(jax.device_put(_cache(load, load.blocks), source))
    ceiling = bench.ceilings.get(f"{way}_pinned_bytes_per_second")

    def run() -> Measurement:
        seconds = seconds_of(lambda: jax.device_put(blocks, target), bench.sizes.repeats)
        detail = {"bytes_per_second": blocks.nbytes / median(seconds), "best_seconds": min(seconds)}
        if ceiling is not None:
            detail["fraction_of_link"] = detail["bytes_per_second"] / ceiling
        return Measurement(seconds=median(seconds), bytes=blocks.nbytes, detail=detail)

    return run


@dataclass(frozen=True)
class Compared:
    """Results of a function and of its reference, and the seconds of their samples."""

    kernels: str
    results: Sequence[jax.Array]
    seconds: Sequence[list[float]]

    def measurement(self, moved: int, flops: int, *, tolerance: float) -> Measurement:
        """Compare both. ``tolerance``: largest error, relative to the largest value."""
        error, largest = _distance(*self.results)
        seconds, reference = self.seconds
        detail = {
            "kernels": self.kernels,
            "largest_error": error,
            "best_seconds": min(seconds),
            "reference_seconds": median(reference),
        }
        # Written so that a NaN fails.
        failure = None if error <= tolerance * largest else f"differs from the reference by {error} of {largest}"
        return Measurement(seconds=median(seconds), bytes=moved, flops=flops, detail=detail, failure=failure)


def _in_place(
    bench: Bench,
    kernels: str,
    functions: tuple[Function, Function],
    make_cache: Callable[[], jax.Array],
    inputs: Sequence[tuple[Any, ...]],
) -> Callable[[], Compared]:
    """Compare a function of ``kernels`` and its reference; both take a donated cache and each of ``inputs`` in turn."""
    caches = [make_cache() for _ in functions]
    updates = [
        _Updated(compiled(one, cache, *inputs[0], donate=(0,)), cache, inputs)
        for one, cache in zip(functions, caches, strict=True)
    ]

    def run() -> Compared:
        results, seconds = [], []
        for updated in updates:
            for _ in inputs:
                updated()
            results.append(jnp.copy(updated.cache))
            seconds.append(seconds_of(updated, bench.sizes.repeats, calls=CALLS))
        return Compared(kernels, results, seconds)

    return run


class _Updated:
    """A cache that each call updates in place with the next of the inputs."""

    def __init__(self, program: Function, cache: jax.Array, inputs: Sequence[tuple[Any, ...]]):
        self.cache = cache
        self._program = program
        self._inputs = cycle(inputs)

    def __call__(self) -> jax.Array:
        self.cache = self._program(self.cache, *next(self._inputs))
        return self.cache


@jax.jit
def _apart(got: jax.Array, want: jax.Array) -> tuple[jax.Array, jax.Array]:
    got, want = got.astype(jnp.float32), want.astype(jnp.float32)
    return jnp.abs(got - want).max(), jnp.abs(want).max()


def _distance(got: jax.Array, want: jax.Array) -> tuple[float, float]:
    """Return the largest absolute difference and the largest absolute value of ``want``."""
    error, largest = _apart(got, want)
    return float(error), float(largest)


def _cache(load: OffloadLoad, blocks: int, *, seed: int = 0) -> jax.Array:
    model: ModelConfig = load.model
    shape = (blocks, load.layers, 2, model.num_kv_heads, BLOCK_SIZE, model.head_dim)
    return _normal(seed, shape, model.dtype)


def _every_other(load: OffloadLoad) -> jax.Array:
    return jnp.asarray(2 * np.random.default_rng(0).permutation(load.blocks), jnp.int32)


@partial(jax.jit, static_argnums=(1, 2))
def _draw(key: jax.Array, shape: tuple[int, ...], dtype: str) -> jax.Array:
    return jax.random.normal(key, shape, jnp.dtype(dtype))


def _normal(seed: int, shape: tuple[int, ...], dtype: str) -> jax.Array:
    return _draw(jax.random.key(seed), shape, dtype)
