"""python -m scripts.gpu: recomputing and staging KV, with XLA's forms and with interpreted kernels."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.experimental.pallas.mosaic_gpu as plgpu
import pytest

from jaxgen.kernels.choice import REFERENCE
from pallas_kernels.copy_blocks import gather_blocks_ref, scatter_blocks_ref
from pallas_kernels.gpu.copy_blocks import gather_blocks, scatter_blocks
from pallas_kernels.gpu.partial_recompute import partial_recompute
from pallas_kernels.partial_recompute import partial_recompute_ref
from scripts.gpu.result.report import Run
from scripts.gpu.rows import offload
from scripts.gpu.rows.offload import gather, recompute, scatter
from scripts.gpu.rows.sizes import DRY
from scripts.gpu.rows.work import OffloadLoad
from tests.support.device_benches import TINY_OPT, bench

KERNELS: dict[str, Callable[..., Any]] = {
    "gather_blocks": gather_blocks,
    "scatter_blocks": scatter_blocks,
    "partial_recompute": partial_recompute,
}
REFERENCES: dict[str, Callable[..., Any]] = {
    "gather_blocks": gather_blocks_ref,
    "scatter_blocks": scatter_blocks_ref,
    "partial_recompute": partial_recompute_ref,
}
BENCH = bench(replace(DRY, repeats=1))
(LLAMA,) = DRY.offloads
OPT = replace(LLAMA, name="tiny_opt", model=TINY_OPT)
Row = Callable[[Any, OffloadLoad], Run]


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
    found = row(BENCH, LLAMA)()
    assert (found.bytes, found.flops, found.failure) == (moved, flops, None)
    assert found.detail["kernels"] == "XLA"


def use(patch: pytest.MonkeyPatch, name: str, kernels: dict[str, Callable[..., Any]]) -> None:
    """As if the device had them."""
    copies = replace(REFERENCE, gather_blocks=kernels["gather_blocks"], scatter_blocks=kernels["scatter_blocks"])
    patch.setattr(offload, "kernels_for", lambda _: replace(copies, name=name))
    patch.setattr(offload, "recompute_kernel", lambda _, run: (name, partial(kernels["partial_recompute"], run=run)))


@pytest.mark.parametrize(
    ("row", "load"),
    [
        pytest.param(recompute, LLAMA, id="recompute-llama"),
        # Interpreted kernels take long; tests/kernels has them without the measurements around them.
        pytest.param(gather, LLAMA, id="gather-llama"),
        pytest.param(scatter, LLAMA, id="scatter-llama"),
        pytest.param(recompute, OPT, id="recompute-opt", marks=pytest.mark.full),
        pytest.param(gather, OPT, id="gather-opt", marks=pytest.mark.full),
        pytest.param(scatter, OPT, id="scatter-opt", marks=pytest.mark.full),
    ],
)
def test_kernels_pass_the_comparison(row: Row, load: OffloadLoad, monkeypatch: pytest.MonkeyPatch) -> None:
    def timed_once(run: Callable[[], object], repeats: int, *, calls: int = 1) -> list[float]:
        jax.block_until_ready(run())
        return [1.0]

    launch = {"num_ctas": 2, "interpret": plgpu.InterpretGPUParams()}
    use(monkeypatch, "Hopper", {name: partial(kernel, **launch) for name, kernel in KERNELS.items()})
    monkeypatch.setattr(offload, "seconds_of", timed_once)
    found = row(BENCH, load)()
    assert found.detail["kernels"] == "Hopper"
    assert found.failure is None


@pytest.mark.parametrize("row", [recompute, gather, scatter])
def test_a_wrong_kernel_fails(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(reference: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **options: reference(*args, **options) * 1.02

    use(monkeypatch, "broken", {name: broken(reference) for name, reference in REFERENCES.items()})
    failure = row(BENCH, LLAMA)().failure
    assert failure is not None
    assert "differs from the reference" in failure
