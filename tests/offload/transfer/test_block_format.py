"""Blocks of all formats become bytes and come back with the same bits, in host memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

from jaxgen.core.host_dtype import HOST_DTYPES, HostDType
from jaxgen.offload.tiers.host_store import HostBlock
from jaxgen.offload.tiers.kv_tier.value import DamagedError
from jaxgen.offload.transfer.block_format import ArrayFormat
from jaxgen.offload.transfer.codec import encode
from jaxgen.offload.transfer.kv_transfer import HOST_MEMORY

RNG = np.random.default_rng(0)


def drawn(*shape: int) -> jax.Array:
    return jnp.asarray(RNG.normal(size=shape), jnp.bfloat16)


@pytest.mark.parametrize("host_dtype", HOST_DTYPES)
@pytest.mark.parametrize("with_inputs", [True, False])
def test_a_block_comes_back_to_the_bit(host_dtype: HostDType, with_inputs: bool) -> None:
    to_host = SingleDeviceSharding(jax.devices()[0], memory_kind=HOST_MEMORY)
    kv, inputs = encode(drawn(3, 2, 2, 8, 16), host_dtype), drawn(3, 8, 32)
    kv_shapes, inputs_shape = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (kv, inputs))
    form = ArrayFormat(kv_shapes, inputs_shape, to_host)
    block = HostBlock(kv, inputs if with_inputs else None)
    content = b"".join(form.parts(block))
    back = form.block(memoryview(b"." * 7 + content)[7:])  # at any address
    assert (back.inputs is None) == (not with_inputs)
    assert str(jax.tree.structure(back.kv)) == str(jax.tree.structure(block.kv))
    leaves, found = (jax.tree.leaves((one.kv, one.inputs)) for one in (block, back))
    assert all(np.array_equal(one, other) for one, other in zip(leaves, found, strict=True))
    assert {leaf.sharding.memory_kind for leaf in found} == {HOST_MEMORY}
    for wrong in (content[:-1], content + b"."):
        with pytest.raises(DamagedError):
            form.block(memoryview(wrong))
