"""Measure the ceilings of the machine: the rates of copies, matrix products and the link to the host alone."""

import time
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import SingleDeviceSharding
from jaxtyping import Array, BFloat16, Shaped, UInt32

from scripts.gpu.result.report import BURST_RATE, COPY_RATE, MATRIX_RATE, Measurement, Run
from scripts.gpu.rows.bench import Bench
from scripts.gpu.rows.clocks import sampled_clocks
from scripts.gpu.rows.sizes import Sizes
from scripts.gpu.rows.timing import compiled, seconds_of

H200_LEAST_COPY_RATE = 3.9e12
"""Least bytes per second of an H200. A low ceiling would make every fraction of it look good."""

BURST_PAUSE = 0.05
"""Seconds before each burst."""


def copy(bench: Bench, way: str) -> Run:
    """Measure a copy on the device, by XLA's copy or by a kernel. A device called H200 must reach its copy rate."""
    function = {"memcpy": jnp.copy, "kernel": lambda x: x + 1}[way]
    measured = measure_copy(bench.sizes, _words(bench.sizes.copy_bytes), jax.jit(function))

    def run() -> Measurement:
        measurement = measured()
        return replace(
            measurement, failure=copy_failure(bench.shared.device.device_kind, measurement.ceilings[COPY_RATE])
        )

    return run


def copy_failure(device_kind: str, rate: float) -> str | None:
    """Return the failure of an H200 whose copy rate is too low; else None."""
    if "H200" not in device_kind or rate >= H200_LEAST_COPY_RATE:
        return None
    return f"copy rate {rate / 1e12:.2f} TB/s on an H200, must be {H200_LEAST_COPY_RATE / 1e12} or more"


def _words(num_bytes: int) -> UInt32[Array, "a b"]:
    """Make distinct words in two axes: one axis of 8 GiB would exceed 32-bit indices."""
    rows = max(num_bytes // 2**17, 1)
    shape = (rows, num_bytes // 4 // rows)

    @jax.jit
    def make() -> UInt32[Array, "a b"]:
        a, b = (lax.broadcasted_iota(jnp.uint32, shape, axis) for axis in (0, 1))
        return (a * np.uint32(shape[1]) + b) * np.uint32(2654435761)

    return jax.block_until_ready(make())


def measure_copy(sizes: Sizes, x: Shaped[Array, "a b"], function: jax.stages.Wrapped) -> Run:
    """Measure the copy rate of ``function`` on ``x``. Raises RuntimeError unless it writes all of ``x`` elsewhere."""
    program = function.lower(x).compile()
    memory: Any = program.memory_analysis()
    if memory.alias_size_in_bytes:
        raise RuntimeError("the copy shares memory with what it copies")
    if memory.output_size_in_bytes != x.nbytes:
        raise RuntimeError(f"the copy writes {memory.output_size_in_bytes} bytes, not {x.nbytes}")
    moved = 2 * x.nbytes

    def run() -> Measurement:
        samples = seconds_of(lambda: program(x), sizes.copy_repeats, calls=3)
        return _best(samples, {COPY_RATE: moved / min(samples)}, moved=moved)

    return run


def matrix(bench: Bench, dtype: str) -> Run:
    """Measure a bfloat16 product, and then clocks and power while the device computes only such products."""
    sizes = bench.sizes
    n = sizes.matrix_side

    @jax.jit
    def make(key: Array) -> BFloat16[Array, "n n"]:
        return jax.random.normal(key, (n, n), jnp.bfloat16)

    def multiply(a: BFloat16[Array, "n n"], b: BFloat16[Array, "n n"]) -> Shaped[Array, "n n"]:
        return jnp.matmul(a, b, preferred_element_type=jnp.float32).astype(dtype)

    a, b = (make(key) for key in jax.random.split(jax.random.key(0)))
    program = compiled(multiply, a, b)
    flops = 2 * n**3

    def run() -> Measurement:
        samples = seconds_of(lambda: program(a, b), sizes.repeats, calls=5)
        measurement = _best(samples, {MATRIX_RATE: flops / min(samples)}, flops=flops)
        with sampled_clocks() as clocks:
            until = time.monotonic() + sizes.load_seconds
            while time.monotonic() < until:
                jax.block_until_ready([program(a, b) for _ in range(5)])
        return replace(measurement, detail=measurement.detail | {"under_load": clocks})

    return run


def burst(bench: Bench) -> Run:
    """Measure bfloat16 products in bursts of a few milliseconds with pauses between them.

    A step is shorter than the time in which the power limit lowers the clock, so its products may be faster than those
    of ``matrix``. The time has the dispatch of one call in it. This rate is not part of any floor.
    """
    n = bench.sizes.matrix_side
    draw = jax.jit(jax.random.normal, static_argnums=(1, 2))
    a, b, c = (draw(key, (n, n), jnp.bfloat16) for key in jax.random.split(jax.random.key(0), 3))
    program = compiled(lambda a, b, c: (jnp.matmul(a, b), jnp.matmul(a, c)), a, b, c)

    def run() -> Measurement:
        samples = []
        for _ in range(bench.sizes.repeats):
            time.sleep(BURST_PAUSE)
            samples += seconds_of(lambda: program(a, b, c), 1)
        return _best(samples, {BURST_RATE: 4 * n**3 / min(samples)}, flops=4 * n**3)

    return run


def link(bench: Bench, kind: str, way: str) -> Run:
    """Measure a transfer between host and device. ``kind`` of host memory: pinned or pageable."""
    words = _words(bench.sizes.link_bytes)

    def run() -> Measurement:
        time_copies = _pinned if kind == "pinned" else _pageable
        samples = time_copies(bench, words, to_device=way == "host_to_device")
        return _best(samples, {f"{way}_{kind}_bytes_per_second": words.nbytes / min(samples)}, moved=words.nbytes)

    return run


def _pinned(bench: Bench, words: jax.Array, *, to_device: bool) -> list[float]:
    """Time device_put between page-locked host memory and device memory."""
    memories = [SingleDeviceSharding(bench.shared.device, memory_kind=kind) for kind in ("pinned_host", "device")]
    source, target = memories if to_device else reversed(memories)
    x = jax.block_until_ready(jax.device_put(words, source))
    return seconds_of(lambda: jax.device_put(x, target), bench.sizes.repeats)


def _pageable(bench: Bench, words: jax.Array, *, to_device: bool) -> list[float]:
    """Time device_put of a numpy array, or np.asarray of a device array (a new one each time: arrays cache it)."""
    repeats = bench.sizes.repeats
    if to_device:
        host = np.array(words)
        return seconds_of(lambda: jax.device_put(host, bench.shared.device), repeats)
    copied = jax.jit(jnp.copy)
    fresh = [jax.block_until_ready(copied(words)) for _ in range(repeats + 1)]
    return seconds_of(lambda: np.asarray(fresh.pop()), repeats)


def _best(
    samples: list[float], ceilings: dict[str, float], *, moved: int | None = None, flops: int | None = None
) -> Measurement:
    detail = {"median_seconds": sorted(samples)[len(samples) // 2], "samples": len(samples)}
    return Measurement(seconds=min(samples), bytes=moved, flops=flops, ceilings=ceilings, detail=detail)
