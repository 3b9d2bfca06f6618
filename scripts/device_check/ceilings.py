"""The ceilings of the machine: what copies, matrix products and the link to the host reach by themselves."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import SingleDeviceSharding
from jaxtyping import Array, BFloat16, Shaped, UInt32

from scripts.device_check.part import Part, Shared
from scripts.device_check.report import COPY_RATE, MATRIX_RATE, Measurement
from scripts.device_check.sizes import Sizes
from scripts.device_check.timing import seconds_of

H200_LEAST_COPY_RATE = 3.9e12
"""Bytes per second. A low ceiling would flatter every fraction that is taken of it."""


def run(part: Part, sizes: Sizes, shared: Shared) -> None:
    """Fills ``report.ceilings``; a device called H200 must reach its copy rate."""
    device = shared.device
    x = _words(sizes.copy_bytes)
    for name, function in (("memcpy", jnp.copy), ("kernel", lambda x: x + 1)):
        part.measure(f"ceiling_copy_{name}", partial(measure_copy, part, sizes, x, jax.jit(function)))
    del x
    check_copy_rate(part, device.device_kind)
    for dtype in ("float32", "bfloat16"):
        part.measure(f"ceiling_matrix_bf16_to_{dtype}", partial(_matrix, part, sizes, dtype))
    for name, pinned in (("pinned", True), ("pageable", False)):
        link = _pinned_link if pinned else _pageable_link
        part.measure(f"ceiling_host_to_device_{name}", partial(link, part, sizes, device, True))
        part.measure(f"ceiling_device_to_host_{name}", partial(link, part, sizes, device, False))


def check_copy_rate(part: Part, device_kind: str) -> None:
    """Fails the run on an H200 whose copy rate is missing or low."""
    rate = part.report.ceilings.get(COPY_RATE, 0.0)
    if "H200" in device_kind and rate < H200_LEAST_COPY_RATE:
        part.report.fail(f"copy rate {rate / 1e12:.2f} TB/s on an H200, must be {H200_LEAST_COPY_RATE / 1e12} or more")


def _words(num_bytes: int) -> UInt32[Array, "a b"]:
    """Words that differ, in two axes: one axis of 8 GiB would not be counted by 32 bits."""
    rows = max(num_bytes // 2**17, 1)
    shape = (rows, num_bytes // 4 // rows)

    @jax.jit
    def make() -> UInt32[Array, "a b"]:
        a, b = (lax.broadcasted_iota(jnp.uint32, shape, axis) for axis in (0, 1))
        return (a * np.uint32(shape[1]) + b) * np.uint32(2654435761)

    return jax.block_until_ready(make())


def measure_copy(part: Part, sizes: Sizes, x: Shaped[Array, "a b"], function: jax.stages.Wrapped) -> Measurement:
    """The ceiling that ``function`` of ``x`` reaches; RuntimeError unless it reads and writes all of it."""
    compiled = function.lower(x).compile()
    memory: Any = compiled.memory_analysis()
    if memory.alias_size_in_bytes:
        raise RuntimeError("the copy shares memory with what it copies")
    if memory.output_size_in_bytes != x.nbytes:
        raise RuntimeError(f"the copy writes {memory.output_size_in_bytes} bytes, not {x.nbytes}")
    samples = seconds_of(lambda: compiled(x), sizes.copy_repeats, calls=3)
    moved = 2 * x.nbytes
    part.report.add_ceiling(COPY_RATE, moved / min(samples))
    return _best(samples, moved=moved)


def _matrix(part: Part, sizes: Sizes, dtype: str) -> Measurement:
    n = sizes.matrix_side

    @jax.jit
    def make(key: Array) -> BFloat16[Array, "n n"]:
        return jax.random.normal(key, (n, n), jnp.bfloat16)

    @jax.jit
    def multiply(a: BFloat16[Array, "n n"], b: BFloat16[Array, "n n"]) -> Shaped[Array, "n n"]:
        return jnp.matmul(a, b, preferred_element_type=jnp.float32).astype(dtype)

    a, b = (make(key) for key in jax.random.split(jax.random.key(0)))
    samples = seconds_of(lambda: multiply(a, b), sizes.repeats, calls=5)
    flops = 2 * n**3
    part.report.add_ceiling(MATRIX_RATE, flops / min(samples))
    return _best(samples, flops=flops)


def _pinned_link(part: Part, sizes: Sizes, device: jax.Device, to_device: bool) -> Measurement:
    """device_put between page-locked host memory and device memory."""
    memories = [SingleDeviceSharding(device, memory_kind=kind) for kind in ("pinned_host", "device")]
    source, target = memories if to_device else reversed(memories)
    x = jax.block_until_ready(jax.device_put(_words(sizes.link_bytes), source))
    samples = seconds_of(lambda: jax.device_put(x, target), sizes.repeats)
    return _linked(part, samples, x.nbytes, "pinned", to_device)


def _pageable_link(part: Part, sizes: Sizes, device: jax.Device, to_device: bool) -> Measurement:
    """device_put of a numpy array, and numpy's view of a device array (a fresh one each time: arrays keep theirs)."""
    x = _words(sizes.link_bytes)
    if to_device:
        host = np.array(x)
        samples = seconds_of(lambda: jax.device_put(host, device), sizes.repeats)
    else:
        copy = jax.jit(jnp.copy)
        fresh = [jax.block_until_ready(copy(x)) for _ in range(sizes.repeats + 1)]
        samples = seconds_of(lambda: np.asarray(fresh.pop()), sizes.repeats)
    return _linked(part, samples, x.nbytes, "pageable", to_device)


def _linked(part: Part, samples: list[float], num_bytes: int, kind: str, to_device: bool) -> Measurement:
    way = "host_to_device" if to_device else "device_to_host"
    part.report.add_ceiling(f"{way}_{kind}_bytes_per_second", num_bytes / min(samples))
    return _best(samples, moved=num_bytes)


def _best(samples: list[float], *, moved: int | None = None, flops: int | None = None) -> Measurement:
    detail = {"median_seconds": sorted(samples)[len(samples) // 2], "samples": len(samples)}
    return Measurement(seconds=min(samples), bytes=moved, flops=flops, detail=detail)
