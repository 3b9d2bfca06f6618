"""The bill of a program that is compiled for the GPU, beside a count by hand."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from scripts.gpu.roofline.bill import OTHER, PRODUCTS, Kernel, bill_of
from scripts.gpu.roofline.pallas import Load
from tests.aot import cases
from tests.aot.target import Target, compile_for

T, V, D, O, S = 64, 8192, 1024, 2048, 4096  # noqa: E741
"""Rows, words of a table, its numbers, outputs, and slots of a cache."""
TURNS = 3


@pytest.mark.only(cases.HOPPER)
def test_a_program_counted_by_hand(target: Target) -> None:
    """A look-up, a product, a write to a few slots of a cache, and a loop over all of it."""

    def step(
        table: jax.Array, weight: jax.Array, cache: jax.Array, ids: jax.Array, slots: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        x = lax.optimization_barrier(table[ids])
        y = lax.dot_general(x, weight, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
        cache = cache.at[slots].set(lax.optimization_barrier(y), mode="drop", unique_indices=True)
        halved = lax.fori_loop(0, TURNS, lambda _, z: jnp.sin(jnp.cumsum(z, axis=0)), y)
        return cache, halved

    index, half = jax.ShapeDtypeStruct((T,), jnp.int32), jnp.bfloat16
    table, weight = jax.ShapeDtypeStruct((V, D), half), jax.ShapeDtypeStruct((O, D), half)
    cache = jax.ShapeDtypeStruct((S, O), jnp.float32)
    options = {"xla_gpu_experimental_force_split_k": "1"}
    compiled = compile_for(target, step, (table, weight, cache, index, index), (2,), read=False, options=options)
    kernels = bill_of(compiled.hlo, Load((), 0))
    ids, x, y = 4 * T, 2 * T * D, 4 * T * O
    product = Kernel("", PRODUCTS, x + 2 * O * D + y, 2 * T * O * D, "bf16")
    wanted = [Kernel("", OTHER, x + ids + x), product, Kernel("", OTHER, y + ids + y)]
    found = [Kernel("", one.kind, one.bytes, one.flops, one.dtype, one.launches) for one in kernels]
    assert [one for one in wanted if one not in found] == [], kernels
    looped = [one for one in kernels if one.launches == TURNS and one.bytes >= 2 * y]
    assert looped, kernels
