"""Kernels fit in shared memory in all shapes that they say they support, and take as much of it as is computed."""

import math
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from pallas_kernels.gpu import copy_blocks, partial_recompute, write_kv
from pallas_kernels.gpu.attention import config, mma
from pallas_kernels.gpu.attention.config import Walk
from pallas_kernels.gpu.attention.items import MOST_GROUPS, MOST_VALUES, value_slices
from pallas_kernels.gpu.attention.ragged_paged_attention import supports
from pallas_kernels.gpu.code_support import CODE_BITS
from pallas_kernels.gpu.expert_product import expert_product
from pallas_kernels.gpu.expert_tiles import MANY_ROWS, Shape
from pallas_kernels.gpu.persistent import REGISTERS
from pallas_kernels.gpu.shared_memory import BLACKWELL_RTX, COPY_ALIGNMENT, HOPPER, taken
from tests.aot import cases
from tests.aot.addresses import misaligned_copies
from tests.aot.cases import array, index, write
from tests.aot.target import Target, lower_for

HEAD_DIMS = (64, 80, 96, 128, 256)
DTYPES = ("bfloat16", "float16")
EXPERTS, INPUTS = 4, 512


def bytes_of(scratch: Any) -> int:
    """Return what Mosaic takes for a kernel's arrays and barriers."""
    kinds = jax.tree.leaves(scratch, is_leaf=lambda kind: hasattr(kind, "num_barriers") or hasattr(kind, "shape"))
    arrays = [math.prod(kind.shape) * bits_of(kind.dtype) // 8 for kind in kinds if hasattr(kind, "shape")]
    barriers = [math.prod(kind.num_barriers) for kind in kinds if hasattr(kind, "num_barriers")]
    return taken(arrays, sum(barriers))


def bits_of(dtype: Any) -> int:
    """Return the bits of a number in shared memory."""
    return CODE_BITS.get(jnp.dtype(dtype).name, 8 * jnp.dtype(dtype).itemsize)


def experts_of(codes: str | None, group: int | None, outputs: int, rows: int) -> tuple[Any, ...]:
    """Return the arguments of a product."""
    weights = array(1, EXPERTS, outputs, INPUTS, dtype=jnp.dtype(codes or "bfloat16"))
    scales = () if group is None else (array(1, EXPERTS, INPUTS // group, outputs),)
    return array(rows, INPUTS), weights, index(), index(EXPERTS + 1), *scales


def check_taken(target: Target, size: int, function: Any, args: tuple[Any, ...]) -> None:
    """Check that Mosaic finds a kernel to take ``size`` bytes, which it tells of a device with fewer."""
    device = replace(target.device, shared_memory_per_block_optin=size - 1)
    with pytest.raises(ValueError, match=f"smem_bytes={size} "):
        lower_for(replace(target, device=device), function, args)


@pytest.mark.only(cases.HOPPER)
def test_attention(target: Target) -> None:
    for head_dim, dtype, in_pieces, wgmma, block_size in product(
        HEAD_DIMS, DTYPES, (True, False), (True, False), (16, 32, 64, 128)
    ):
        if supports(heads=8, kv_heads=8, head_dim=head_dim, block_size=block_size, dtype=dtype, wgmma=wgmma):
            assert not wgmma
            assert head_dim > MOST_VALUES
            continue
        groups = 1 if in_pieces or value_slices(head_dim) > 1 or not wgmma else MOST_GROUPS
        static = (8, 1, head_dim, block_size, jnp.dtype(dtype), 1.0, None, None, groups, in_pieces, 1, True, wgmma)
        walk = Walk(*static, REGISTERS, None)
        assert bytes_of((config if wgmma else mma).scratch(walk)) <= (HOPPER if wgmma else BLACKWELL_RTX), walk
        assert walk.stages >= 2


@pytest.mark.only(cases.HOPPER)
def test_products_of_experts(target: Target) -> None:
    coded = product(CODE_BITS, (None, 16, 32, 64, 128))
    for (codes, group), outputs, rows in product(
        [(None, None), *coded], (64, 128, 192, 1024), (MANY_ROWS, EXPERTS * MANY_ROWS)
    ):
        x, weights, *_ = experts_of(codes, group, outputs, rows)
        shape = Shape.of(x, weights, group, jnp.float32)
        assert shape.stored * 4 % COPY_ALIGNMENT == 0
        assert bytes_of(shape.scratch(jnp.float32)) <= HOPPER, (codes, group, outputs, rows)


@pytest.mark.only(cases.HOPPER)
@pytest.mark.parametrize(
    ("codes", "group", "rows"),
    [("int8", 16, MANY_ROWS), ("float8_e4m3fn", 32, EXPERTS * MANY_ROWS), ("uint4", 16, EXPERTS * MANY_ROWS)],
)
def test_products_of_codes_take_what_is_computed(target: Target, codes: str, group: int, rows: int) -> None:
    args = experts_of(codes, group, 256, rows)
    shape = Shape.of(args[0], args[1], group, jnp.float32)
    check_taken(target, bytes_of(shape.scratch(jnp.float32)), partial(expert_product, group=group), args)


@pytest.mark.only(cases.HOPPER)
def test_writes_of_keys_and_values(target: Target) -> None:
    for heads, head_dim, room in product(range(1, 65), HEAD_DIMS, (HOPPER, BLACKWELL_RTX)):
        assert not write_kv.supports(kv_heads=heads, head_dim=head_dim, dtype="bfloat16", shared_memory=room)
        scratch = write_kv._scratch(heads, head_dim, jnp.dtype("bfloat16"), room)
        assert bytes_of(scratch) <= room
        assert math.prod(scratch[0].shape[2:]) * 2 % COPY_ALIGNMENT == 0


@pytest.mark.only(cases.HOPPER)
@pytest.mark.parametrize(("heads", "head_dim"), [(1, 80), (5, 96), (64, 256)])
def test_writes_take_what_is_computed(target: Target, heads: int, head_dim: int) -> None:
    size = bytes_of(write_kv._scratch(heads, head_dim, jnp.dtype("bfloat16"), HOPPER))
    check_taken(target, size, write_kv.write_kv, write(array(16, 2, 2, heads, 64, head_dim), 64))


@pytest.mark.only(cases.HOPPER)
def test_copies_of_blocks(target: Target) -> None:
    for layers, heads, block_size, head_dim in product(range(1, 130), (1, 2, 3, 8), (16, 64), HEAD_DIMS):
        plan = copy_blocks._Plan(layers * 2 * heads * block_size, head_dim, jnp.dtype("bfloat16"), 1, True, None)
        staging = plan.scratch[0]
        assert bytes_of(plan.scratch) <= HOPPER
        assert math.prod(staging.shape[1:]) * 2 % COPY_ALIGNMENT == 0


@pytest.mark.only(cases.HOPPER)
def test_rebuilt_keys_and_values(target: Target) -> None:
    for heads, head_dim, run in product((1, 2, 8), HEAD_DIMS, (1, 2, 8, 16)):
        call = partial(partial_recompute._Shape.of, run=run, num_ctas=132)
        cache, _, x, weight, *_ = cases.recompute(array(16, 2, 2, heads, 64, head_dim), 256, 512, heads)
        if run * head_dim * 2 % COPY_ALIGNMENT:
            with pytest.raises(NotImplementedError, match=f"runs of {run} tokens of head_dim {head_dim}"):
                call(cache, x, weight)
            continue
        assert bytes_of(call(cache, x, weight).scratch()) <= HOPPER


COPY = "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%rd1, {%r9}], [%r8];"
STORE = "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%rd1, {%r9, %r8}], [%r3];"


@pytest.mark.only(cases.HOPPER)
@pytest.mark.parametrize(
    ("definitions", "is_aligned"),
    [
        ("add.s32 %r3, %r2, 320;", False),
        ("add.s32 %r3, %r2, 384;", True),
        ("shl.b32 %r2, %r1, 6;\n add.s32 %r3, %r2, %r4;", False),
        ("shl.b32 %r2, %r1, 7;\n add.s32 %r3, %r2, %r4;", True),
        ("mad.lo.s32 %r3, %r1, 160, %r2;", False),
        ("mul.lo.s32 %r2, %r1, 1280;\n or.b32 %r3, %r2, 1024;", True),
    ],
)
def test_which_addresses_are_found(target: Target, definitions: str, is_aligned: bool) -> None:
    for copy in (COPY, STORE):
        assert misaligned_copies(f" {definitions}\n {copy}\n") == ([] if is_aligned else [copy])
