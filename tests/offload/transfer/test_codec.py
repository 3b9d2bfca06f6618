"""Blocks as host memory keeps them: how large, and how exact."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgen.cache.cache_format import CacheFormat
from jaxgen.core.config import OffloadConfig
from jaxgen.core.host_dtype import HostDType, group_of
from jaxgen.core.model_config import DType
from jaxgen.offload.build import Offload
from jaxgen.offload.transfer.codec import Quantised, decode, encode
from tests.support.engines import (
    LLAMA,
    engine_config,
    make_engine,
    request,
    run,
    tokens,
)

TOP = {"int8": 255, "int4": 15}
LOSSY: list[HostDType] = ["int8", "int4"]


def block(head_dim: int, dtype: str = "float32", scale: float = 1.0) -> jax.Array:
    """Zero-mean, with a few outliers."""
    rng = np.random.default_rng(head_dim)
    values = rng.normal(0, scale, size=(2, 2, 3, 8, head_dim))
    return jnp.asarray((values * np.where(rng.random(values.shape) < 0.01, 20, 1)).astype(jnp.dtype(dtype)))


def back(values: jax.Array, host_dtype: HostDType) -> np.ndarray:
    return np.asarray(_back(values, host_dtype), np.float64)


@partial(jax.jit, static_argnums=1)
def _back(values: jax.Array, host_dtype: HostDType) -> jax.Array:
    # What stands between the two as they run is memory, not a wider number.
    piece = jax.lax.optimization_barrier(encode(values, host_dtype))
    return decode(piece, jax.ShapeDtypeStruct(values.shape, values.dtype))


def test_as_they_are() -> None:
    values = block(64)
    assert encode(values, "auto") is values


@pytest.mark.parametrize("host_dtype", LOSSY)
@pytest.mark.parametrize("head_dim", [16, 64, 80, 96, 128])
def test_an_element_is_off_by_half_a_step_of_its_group(host_dtype: HostDType, head_dim: int) -> None:
    """A step is what the group spans over its codes; rounding its ends to float16 adds a little."""
    values = block(head_dim)
    exact = np.asarray(values, np.float64).reshape(*values.shape[:-1], -1, group_of(head_dim))
    error = np.abs(back(values, host_dtype).reshape(exact.shape) - exact).max(axis=-1)
    span = exact.max(axis=-1) - exact.min(axis=-1)
    ends = np.abs(exact).max(axis=-1) * 2**-10
    assert (error <= 0.5 * (span + 2 * ends) / TOP[host_dtype] + 1e-3 * span).all()
    assert error.max() > 0.2 * (span / TOP[host_dtype]).min(), "it is quantised at all"


@pytest.mark.parametrize("host_dtype", LOSSY)
@pytest.mark.parametrize("values", [0.0, -3.5, 1e-7, 6e4, 1e6])
def test_a_constant_comes_back(host_dtype: HostDType, values: float) -> None:
    """Past what float16 holds, at its limit."""
    constant = jnp.asarray(np.full((1, 2, 1, 4, 64), values, np.float32))
    np.testing.assert_allclose(back(constant, host_dtype), min(values, 65504.0), rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("host_dtype", LOSSY)
@pytest.mark.parametrize("greatest", [65504.0, np.inf])
def test_the_greatest_number_of_float16_stays_finite(host_dtype: HostDType, greatest: float) -> None:
    values = block(64, "float16").at[0, 0, 0, 0, 0].set(greatest)
    np.testing.assert_allclose(back(values, host_dtype)[0, 0, 0, 0, 0], 65504.0, rtol=0.6 / TOP[host_dtype])


@pytest.mark.parametrize("host_dtype", ["auto", *LOSSY])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("head_dim", [16, 80, 128])
def test_the_bytes_that_are_planned_for(host_dtype: HostDType, dtype: DType, head_dim: int) -> None:
    model = replace(LLAMA, dtype=dtype, head_dim=head_dim)
    shape = (model.num_layers, 2, model.num_kv_heads, 8, head_dim)
    piece = jax.eval_shape(lambda block: encode(block, host_dtype), jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)))
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(piece))
    assert size == CacheFormat.of(model, 8).host_block_bytes(host_dtype)
    assert (size < CacheFormat.of(model, 8).block_bytes) is isinstance(piece, Quantised)


@pytest.mark.parametrize(
    "host_dtype",
    [
        "int8",
        pytest.param("int4", marks=pytest.mark.full),  # the engine does nothing else with it than with int8
    ],
)
def test_an_engine_goes_on_with_what_comes_back(host_dtype: HostDType) -> None:
    """The tokens of a tiny random model may differ, most do not; with int8 its log-probabilities hardly move."""
    config = replace(
        engine_config(num_blocks=32, block_size=8), offload=OffloadConfig(100, "transfer", host_dtype=host_dtype)
    )
    engine = make_engine(config=config)
    rng = np.random.default_rng(1)
    prompts = [rng.integers(3, 300, size=n).tolist() for n in (90, 80, 100, 70)]
    wanted = [request(f"r{i}", prompt, max_tokens=1, temperature=0.0, logprobs=5) for i, prompt in enumerate(prompts)]
    first, second = run(engine, wanted), run(engine, wanted)
    assert isinstance(engine.offload, Offload)
    assert engine.offload.tier.counters.restored_tokens > 0
    for name in first:
        assert len(tokens(second[name])) == 1
        was, now = first[name][0].logprobs, second[name][0].logprobs
        assert was is not None
        assert now is not None
        if host_dtype == "int8":
            assert now.logprob == pytest.approx(was.logprob, abs=0.2)
