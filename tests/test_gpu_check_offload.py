"""scripts/gpu_check.py: recomputing and staging KV, with XLA's forms and with interpreted kernels."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.experimental.pallas.mosaic_gpu as plgpu
import pytest

from scripts.device_check import offload
from scripts.device_check.offload import gather, recompute, scatter
from scripts.device_check.report import Measurement
from scripts.device_check.sizes import DRY, OffloadLoad

SIZES = replace(DRY, repeats=1)
LLAMA, OPT = DRY.offloads
Row = Callable[[Any, OffloadLoad], Measurement]


@pytest.mark.parametrize(
    ("row", "moved", "flops"),
    [
        (recompute, 2 * (128 * 64 + 2 * 32 * 64 + 2 * 128 * 32), 4 * 128 * 64 * 32),
        (gather, 2 * 3 * 2 * 2 * 2 * 64 * 16 * 2, 0),
        (scatter, 2 * 3 * 2 * 2 * 2 * 64 * 16 * 2, 0),
    ],
)
def test_costs(row: Row, moved: int, flops: int) -> None:
    """By hand: 128 tokens of width 64 to K and V of 2 heads of 16; 3 blocks of 2 layers, 2 heads, 64 slots of 16."""
    found = row(SIZES, LLAMA)
    assert (found.bytes, found.flops, found.failure) == (moved, flops, None)
    assert found.detail["kernels"] == "XLA"


@pytest.mark.parametrize("row", [recompute, gather, scatter])
@pytest.mark.parametrize("load", [LLAMA, OPT], ids=["llama", "opt"])
def test_kernels_pass_the_comparison(row: Row, load: OffloadLoad, monkeypatch: pytest.MonkeyPatch) -> None:
    def timed_once(run: Callable[[], object], repeats: int, *, calls: int = 1) -> list[float]:
        jax.block_until_ready(run())
        return [1.0]

    launch = {"num_ctas": 2, "interpret": plgpu.InterpretGPUParams()}
    monkeypatch.setattr("scripts.device_check.kernels.pallas_options", lambda _: launch)
    monkeypatch.setattr(offload, "seconds_of", timed_once)
    found = row(SIZES, load)
    assert found.detail["kernels"] == "Hopper"
    assert found.failure is None


@pytest.mark.parametrize("row", [recompute, gather, scatter])
def test_a_wrong_kernel_fails(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(reference: Any, *_: Any, **options: Any) -> Any:
        return lambda cache, *rest: reference(cache, *rest) * 1.02

    monkeypatch.setattr(offload, "pallas_or", broken)
    failure = row(SIZES, LLAMA).failure
    assert failure is not None
    assert "differs from the reference" in failure
