"""What moving KV to and from the host costs: rebuilding it from layer inputs, and staging copies; by the Pallas kernels
where the device has them, checked against XLA's own form of the same and timed beside it."""

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

from jaxgen.config import LlamaConfig, ModelConfig
from jaxgen.models.layers import rotary_angles
from pallas_kernels.copy_blocks import gather_blocks_ref, scatter_blocks_ref
from pallas_kernels.partial_recompute import partial_recompute_ref
from scripts.device_check.kernels import BLOCK_SIZE, pallas_or
from scripts.device_check.part import Part, Shared
from scripts.device_check.report import Measurement
from scripts.device_check.sizes import OffloadLoad, Sizes
from scripts.device_check.timing import seconds_of

CALLS = 8
TOLERANCE = 2.0**-6
"""Of bfloat16 results, relative to the largest: two roundings of half a unit in the last place, and two more."""

Function = Callable[..., jax.Array]


def run(part: Part, sizes: Sizes, shared: Shared) -> None:
    for load in sizes.offloads:
        part.measure(f"partial_recompute_{load.name}_{load.tokens}", partial(recompute, sizes, load))
        part.measure(f"gather_blocks_{load.name}", partial(gather, sizes, load))
        part.measure(f"scatter_blocks_{load.name}", partial(scatter, sizes, load))
        for way in ("device_to_host", "host_to_device"):
            found = partial(_staging, sizes, load, shared.device, way, part.report.ceilings)
            part.measure(f"staging_{way}_{load.name}", found)


def recompute(sizes: Sizes, load: OffloadLoad) -> Measurement:
    """K and V of whole blocks in one layer; calls go through all layers, so that no weights are in a cache."""
    model, T = load.model, load.tokens
    E, KD = model.hidden_size, model.num_kv_heads * model.head_dim
    outputs = model.num_heads * model.head_dim + 2 * KD
    weight = _normal(1, (load.layers, outputs, E), model.dtype) * E**-0.5
    bias = None if isinstance(model, LlamaConfig) else _normal(2, (load.layers, outputs), model.dtype)
    angles = rotary_angles(model.rope, model.head_dim, jnp.arange(T)) if isinstance(model, LlamaConfig) else None
    blocks = np.random.default_rng(0).permutation(T // BLOCK_SIZE)
    slots = jnp.asarray((blocks[:, None] * BLOCK_SIZE + np.arange(BLOCK_SIZE)).reshape(-1), jnp.int32)
    inputs = [
        (jnp.int32(layer), _normal(3 + layer, (T, E), model.dtype), weight, bias, angles, slots)
        for layer in range(load.layers)
    ]
    reference: Function = partial(partial_recompute_ref, run=BLOCK_SIZE)
    function = pallas_or(reference, sizes, "partial_recompute:partial_recompute", run=BLOCK_SIZE)
    cache = partial(_cache, load, T // BLOCK_SIZE)
    moved = (T * E + 2 * KD * E + 2 * T * KD) * jnp.dtype(model.dtype).itemsize
    found = _in_place(sizes, function, reference, cache, inputs)
    return found.measurement(moved, 4 * T * E * KD, tolerance=TOLERANCE)


def gather(sizes: Sizes, load: OffloadLoad) -> Measurement:
    """Every other of twice as many blocks, in a shuffled order, into one buffer."""
    function = pallas_or(gather_blocks_ref, sizes, "copy_blocks:gather_blocks")
    cache = _cache(load, 2 * load.blocks)
    arguments = cache, _every_other(load), jnp.int32(load.blocks)
    results, seconds = [], []
    for one in (function, gather_blocks_ref):
        compiled = jax.jit(one)
        results.append(compiled(*arguments))
        seconds.append(seconds_of(partial(compiled, *arguments), sizes.repeats, calls=CALLS))
    return Compared(_name(function, gather_blocks_ref), results, seconds).measurement(cache.nbytes, 0, tolerance=0.0)


def scatter(sizes: Sizes, load: OffloadLoad) -> Measurement:
    """One buffer into every other of twice as many blocks."""
    function = pallas_or(scatter_blocks_ref, sizes, "copy_blocks:scatter_blocks")
    inputs = [(_every_other(load), _cache(load, load.blocks, seed=1), jnp.int32(load.blocks))]
    found = _in_place(sizes, function, scatter_blocks_ref, partial(_cache, load, 2 * load.blocks), inputs)
    return found.measurement(2 * inputs[0][1].nbytes, 0, tolerance=0.0)


def _staging(sizes: Sizes, load: OffloadLoad, device: jax.Device, way: str, ceilings: dict[str, float]) -> Measurement:
    """The staging buffer between device memory and page-locked host memory."""
    host, here = (SingleDeviceSharding(device, memory_kind=kind) for kind in ("pinned_host", "device"))
    source, target = (here, host) if way == "device_to_host" else (host, here)
    staging = jax.block_until_ready(jax.device_put(_cache(load, load.blocks), source))
    seconds = seconds_of(lambda: jax.device_put(staging, target), sizes.repeats)
    detail = {"bytes_per_second": staging.nbytes / median(seconds), "best_seconds": min(seconds)}
    ceiling = ceilings.get(f"{way}_pinned_bytes_per_second")
    if ceiling is not None:
        detail["fraction_of_link"] = detail["bytes_per_second"] / ceiling
    return Measurement(seconds=median(seconds), bytes=staging.nbytes, detail=detail)


@dataclass(frozen=True)
class Compared:
    """What a function and its reference computed, and the seconds of each sample of theirs."""

    kernels: str
    results: Sequence[jax.Array]
    seconds: Sequence[list[float]]

    def measurement(self, moved: int, flops: int, *, tolerance: float) -> Measurement:
        """``tolerance`` is relative to the largest value."""
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
    sizes: Sizes,
    function: Function,
    reference: Function,
    make_cache: Callable[[], jax.Array],
    inputs: Sequence[tuple[Any, ...]],
) -> Compared:
    """Both are functions of a donated cache and each of ``inputs`` in turn; compared after the last of these."""
    results, seconds = [], []
    for one in (function, reference):
        updated = _Updated(one, make_cache(), inputs)
        for _ in inputs:
            updated()
        results.append(jnp.copy(updated.cache))
        seconds.append(seconds_of(updated, sizes.repeats, calls=CALLS))
    return Compared(_name(function, reference), results, seconds)


class _Updated:
    """A cache that each call updates in place by the next of the inputs."""

    def __init__(self, function: Function, cache: jax.Array, inputs: Sequence[tuple[Any, ...]]):
        self.cache = cache
        self._compiled = jax.jit(function, donate_argnums=0)
        self._inputs = cycle(inputs)

    def __call__(self) -> jax.Array:
        self.cache = self._compiled(self.cache, *next(self._inputs))
        return self.cache


def _name(function: Function, reference: Function) -> str:
    return "XLA" if function is reference else "Hopper"


@jax.jit
def _apart(got: jax.Array, want: jax.Array) -> tuple[jax.Array, jax.Array]:
    got, want = got.astype(jnp.float32), want.astype(jnp.float32)
    return jnp.abs(got - want).max(), jnp.abs(want).max()


def _distance(got: jax.Array, want: jax.Array) -> tuple[float, float]:
    """The largest difference and the largest value."""
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
