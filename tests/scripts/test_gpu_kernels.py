"""python -m scripts.gpu: the kernels' checks pass right kernels, interpreted, and fail wrong ones."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import pytest

from jaxgen.hardware.device_info import DeviceInfo
from jaxgen.kernels.choice import REFERENCE, REFERENCE_GPU, hopper
from jaxgen.kernels.kernels import Kernels
from pallas_kernels.copy_blocks import gather_blocks_ref, scatter_blocks_ref
from pallas_kernels.gpu.attention.ragged_paged_attention import ragged_paged_attention
from pallas_kernels.gpu.copy_blocks import gather_blocks, scatter_blocks
from pallas_kernels.gpu.partial_recompute import partial_recompute
from pallas_kernels.gpu.write_kv import write_kv
from pallas_kernels.partial_recompute import partial_recompute_ref
from scripts.gpu.result.plan import OTHER_REGISTERS
from scripts.gpu.result.report import Run
from scripts.gpu.rows import kernel_checks, own_products
from scripts.gpu.rows import kernels as device_kernels
from scripts.gpu.rows.kernel_checks import check_attention, check_bits
from scripts.gpu.rows.ragged import Padding, padded, random_rows
from scripts.gpu.rows.sizes import DRY
from tests.support.attention_cases import Case, make_inputs
from tests.support.device_benches import bench

INTERPRET = plgpu.InterpretGPUParams()
SMALL = Case(((1, 70), (1, 130), (9, 40)), heads=4, kv_heads=2, head_dim=64, block_size=64, dtype="bfloat16")
BITS = replace(SMALL, rows=((5, 150), (7, 90)))


def kernels(attention: Callable[..., Any]) -> Kernels:
    return Kernels("under test", attention, REFERENCE.write_kv)


@pytest.mark.full  # tests/kernels has the interpreted kernel
@pytest.mark.filterwarnings("ignore:invalid value encountered in matmul:RuntimeWarning")  # NaN past a context
def test_the_attention_kernel_passes_in_a_padded_shape() -> None:
    hopper = kernels(partial(ragged_paged_attention, num_ctas=2, interpret=INTERPRET))
    found = check_attention(hopper, *padded(SMALL, make_inputs(SMALL), Padding(5, 24, 12, 5)))()
    assert found.failure is None
    assert 0 < found.detail["largest_error"] < 2e-2


def wrong_window(*args: Any, **options: Any) -> jax.Array:
    return REFERENCE.ragged_paged_attention(*args, **(options | {"window": 100}))


def wrong_context(
    q: Any, cache: Any, layer: Any, tables: Any, starts: Any, lens: Any, *rest: Any, **options: Any
) -> Any:
    """Reads one token too many, which is NaN where that is in another block."""
    return REFERENCE.ragged_paged_attention(q, cache, layer, tables, starts, lens + 1, *rest, **options)


@pytest.mark.parametrize("attention", [wrong_window, wrong_context])
def test_wrong_attention_fails(attention: Callable[..., Any]) -> None:
    found = check_attention(kernels(attention), *padded(SMALL, make_inputs(SMALL), Padding(5, 24, 12, 5)))()
    assert found.failure is not None
    assert found.failure.startswith("wrong by ")


def by_position(q: Any, *args: Any, **options: Any) -> jax.Array:
    """An output depends, by a unit in the last place, on where in the step its token is."""
    out = REFERENCE.ragged_paged_attention(q, *args, **options)
    return jnp.where(jnp.arange(len(q))[:, None, None] < 8, out, out * (1 + 2**-7))


def test_bits_that_depend_on_neighbours_fail() -> None:
    found = check_bits(kernels(by_position), BITS)()
    assert found.detail["unequal"] == ["chunks", "among others"]
    assert found.failure == "bits differ: chunks, among others"
    assert check_bits(kernels(REFERENCE.ragged_paged_attention), BITS)().detail["equal"] is True


LAUNCH: dict[str, Any] = {"num_ctas": 2, "interpret": INTERPRET}
CHECKS: list[tuple[Callable[[Any], Run], Callable[..., Any], Callable[..., Any]]] = [
    (kernel_checks.check_gather_blocks, gather_blocks, gather_blocks_ref),
    (kernel_checks.check_scatter_blocks, scatter_blocks, scatter_blocks_ref),
    (kernel_checks.check_partial_recompute, partial_recompute, partial_recompute_ref),
]


INTERPRETED: list[Any] = [
    *CHECKS[:2],
    pytest.param(*CHECKS[2], marks=pytest.mark.full),  # tests/kernels has the interpreted kernel, which takes long
]


@pytest.mark.parametrize(("check", "kernel", "_"), INTERPRETED)
def test_copies_and_recomputation_pass(check: Any, kernel: Any, _: Any) -> None:
    assert check(partial(kernel, **LAUNCH))().failure is None


def test_writes_pass() -> None:
    assert kernel_checks.check_write_kv(partial(write_kv, **LAUNCH))().failure is None


@pytest.mark.parametrize(("check", "_", "reference"), CHECKS)
def test_wrong_copies_and_recomputation_fail(check: Any, _: Any, reference: Any) -> None:
    assert check(reference)().failure is None
    assert check(lambda cache, *rest: jnp.roll(reference(cache, *rest), 1, axis=-1))().failure is not None


def test_wrong_writes_fail() -> None:
    def swapped(cache: Any, layer: Any, k: Any, v: Any, slots: Any) -> jax.Array:
        return REFERENCE.write_kv(cache, layer, v, k, slots)

    assert kernel_checks.check_write_kv(swapped)().failure == "write_kv differs from numpy"


def test_products_of_experts_are_checked() -> None:
    product = REFERENCE_GPU.expert_product
    assert kernel_checks.check_expert_product(product)().failure is None
    wrong = kernel_checks.check_expert_product(lambda x, *rest: product(x, *rest).at[:, 0].add(0.1))()
    assert str(wrong.failure).startswith("a product of experts is wrong by 0.1")


def test_dense_products_whose_bits_follow_the_number_of_rows_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    right = device_kernels.dense_kernels(bench())

    def by_count(x: Any, weight: Any, layer: Any, num_tokens: Any, **options: Any) -> jax.Array:
        return right.product(x, weight, layer, num_tokens, **options) * jnp.where(num_tokens < 9, 1 + 2**-20, 1)

    def wrong(*args: Any, **options: Any) -> jax.Array:
        return right.gated(*args, **options) * 1.01

    assert own_products.bits(bench(), 64, 128)().failure is None
    kernels = replace(right, product=by_count, gated=wrong)
    monkeypatch.setattr(own_products, "dense_kernels", lambda _: kernels)
    failure = str(own_products.bits(bench(), 64, 128)().failure)
    assert failure.startswith("product: other bits for [1, 8] rows; gated: error 0.0")


def test_random_rows_are_ragged_and_fit() -> None:
    batches = [random_rows(seed, most_rows=10, most_tokens=256, most_context=1600) for seed in range(200)]
    assert len(set(batches)) == len(batches)
    for rows in batches:
        lengths = [length for length, _ in rows]
        assert 2 <= len(rows) <= 10
        assert sum(lengths) <= 256
        assert all(1 <= length <= context <= 1600 for length, context in rows)
        assert lengths[: lengths.count(1)] == [1] * lengths.count(1), "decodes come first"
    contexts = {context for rows in batches for _, context in rows}
    assert {63, 64, 65, 511, 512, 513} <= contexts
    assert any(all(length == 1 for length, _ in rows) for rows in batches)
    assert any(all(length > 1 for length, _ in rows) for rows in batches)


def test_other_registers_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    device = DeviceInfo("gpu", "NVIDIA H200", 132, compute_capability=(9, 0))
    monkeypatch.setattr(device_kernels, "device_info", lambda: device)
    on_device = bench(replace(DRY, pallas=True))
    assert device_kernels.kernels_for(on_device) is hopper(132)
    other = device_kernels.kernels_for(replace(on_device, registers=OTHER_REGISTERS), num_ctas=8)
    assert other.name == "Hopper, 24/240 registers"
    attention: Any = other.ragged_paged_attention
    assert attention.keywords["registers"] == OTHER_REGISTERS
    assert attention.keywords["num_ctas"] == 8
