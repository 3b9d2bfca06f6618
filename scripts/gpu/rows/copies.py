"""Time steps during copies of blocks to the host: offload relies on both running at the same time."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Thread

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from scripts.gpu.result.report import Measurement, Run
from scripts.gpu.rows.bench import Bench
from scripts.gpu.rows.kernels import kernels_for
from scripts.gpu.rows.step_times import filled_device, full_plan, served_config, step_cost, timed


@dataclass
class Copied:
    """Bytes copied while steps ran, and seconds of copying."""

    bytes: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float | None:
        return self.bytes / self.seconds if self.bytes else None


def beside(bench: Bench) -> Run:
    """Time a served step, alone and during continuous copies of blocks to page-locked host memory."""
    load, config = bench.sizes.steps, served_config(bench.sizes)
    kernels = kernels_for(bench)
    compiled = bench.shared.compiled_step(load.model, config, kernels)
    device = filled_device(load.model, config, bench.shared.params_of(load.model, kernels), compiled)
    plan = full_plan(load, config)
    blocks = jnp.copy(device.cache.data[: bench.sizes.copied_blocks])

    def run() -> Measurement:
        with _copying(bench, blocks) as alone:
            time.sleep(bench.sizes.row_seconds / 6)
        quiet = timed(device, plan, bench.sizes.row_seconds / 2)
        with _copying(bench, blocks) as copied:
            busy = timed(device, plan, bench.sizes.row_seconds / 2)
        moved, flops = step_cost(load.model, config, plan)
        detail = {
            "kernels": kernels.name,
            "alone_seconds": quiet.overlapped_seconds,
            "slower_by": busy.overlapped_seconds / quiet.overlapped_seconds,
            "bytes_of_a_copy": blocks.nbytes,
            "copied_bytes_per_second": copied.rate,
            "copied_alone_bytes_per_second": alone.rate,
        }
        return Measurement(seconds=busy.overlapped_seconds, bytes=moved, flops=flops, detail=detail)

    return run


@contextmanager
def _copying(bench: Bench, blocks: jax.Array) -> Iterator[Copied]:
    """Copy blocks in a loop until the end of the context, and count them."""
    host = SingleDeviceSharding(bench.shared.device, memory_kind="pinned_host")
    jax.block_until_ready(jax.device_put(blocks, host))  # the first is not counted
    copied, stop = Copied(), Event()

    def copy() -> None:
        while not stop.is_set():
            jax.block_until_ready(jax.device_put(blocks, host))
            copied.bytes += blocks.nbytes

    thread = Thread(target=copy)
    started = time.perf_counter()
    thread.start()
    try:
        yield copied
    finally:
        stop.set()
        thread.join()
        copied.seconds = time.perf_counter() - started
