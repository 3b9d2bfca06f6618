"""A block is copied to another in place, and so is a state: there is room for one more, not for a second cache."""

import jax
import jax.numpy as jnp
import pytest

from jaxgen.core.config import CacheConfig
from jaxgen.core.operations import ATTENTION
from jaxgen.hardware.device_info import DeviceInfo
from jaxgen.kernels.choice import REFERENCE, made_for
from jaxgen.models.kv_cache import KVCache, init_cache, init_states
from jaxgen.runner.program import Program, int32
from jaxgen.runner.state_snapshots import copy_state
from tests.aot import cases
from tests.aot.target import Target, compile_program
from tests.support.hub_configs import described
from tests.support.hybrid import HYBRID


@pytest.mark.only(cases.HOPPER)
@pytest.mark.parametrize("keep_inputs", [False, True])
def test_a_block_is_copied_in_place(target: Target, keep_inputs: bool) -> None:
    model, cores = described("Llama-3.1-8B").of_layers(2), target.device.num_cores
    assert cores is not None
    device = DeviceInfo("gpu", target.device.device_kind, cores, compute_capability=(9, 0))
    cache = CacheConfig(block_size=64, num_blocks=256, keep_inputs=keep_inputs)
    kernels = made_for(device, model, cache.block_size)
    assert ATTENTION in kernels.own, kernels.reason
    shapes = jax.eval_shape(lambda: init_cache(model, cache, kernels))
    block = jax.ShapeDtypeStruct((), jnp.int32)
    found = compile_program(target, Program(KVCache.copy, (shapes, block, block), (0,)), kernels)
    num_bytes = sum(one.size * one.dtype.itemsize for one in jax.tree.leaves(shapes))
    assert found.aliased >= num_bytes
    assert found.temporaries <= 2 * num_bytes // cache.num_blocks


@pytest.mark.only(cases.HOPPER)
def test_a_state_is_copied_in_place(target: Target) -> None:
    rows, snapshots = [jax.eval_shape(lambda number=number: init_states(HYBRID, number)) for number in (16, 64)]
    for into, of in ((rows, snapshots), (snapshots, rows)):
        found = compile_program(target, Program(copy_state, (into, of, int32(), int32()), (0,)), REFERENCE)
        assert found.aliased >= sum(one.size * one.dtype.itemsize for one in into)
        assert found.temporaries <= sum(one.size * one.dtype.itemsize for one in into) // len(into[0])
