"""How a decoder's parts are rounded in bfloat16, where float32 recordings show nothing of it."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxgen.kernels.choice import REFERENCE
from jaxgen.models.attention import Attention
from jaxgen.models.batch import BlockTokens
from jaxgen.models.decoder import DecoderLayers
from jaxgen.models.positions import Positional
from jaxgen.models.walk import LayerContext
from tests.support.engines import LLAMA

X, Y = (np.random.default_rng(seed).normal(size=(8, 32)).astype(jnp.bfloat16) for seed in (0, 1))


def test_a_branch_is_scaled_by_a_number_that_is_not_rounded_first() -> None:
    """As torch multiplies by a Python number; 0.22 itself is 0.2197 in bfloat16 (Granite)."""
    config = replace(LLAMA, residual_scale=0.22)
    layers = nnx.eval_shape(lambda: DecoderLayers(config, rngs=nnx.Rngs(0)))
    tokens, zero = BlockTokens(jnp.arange(8), (jnp.arange(8),), jnp.int32(8)), jnp.int32(0)
    at = LayerContext(tokens, Positional(), zero, 0, zero, None, REFERENCE)
    got = layers._add(lambda residual: jnp.asarray(Y), None, jnp.asarray(X), at)
    scaled = (Y.astype(np.float32) * np.float32(0.22)).astype(jnp.bfloat16)
    np.testing.assert_array_equal(got, X + scaled)
    assert (scaled != Y * jnp.bfloat16(0.22)).any()


def test_what_heads_read_is_gated_by_what_follows_their_queries() -> None:
    """By a sigmoid in float32, rounded once (Qwen3-Next)."""
    config = replace(LLAMA, attention=replace(LLAMA.attention, output_gate=True))
    attention = nnx.eval_shape(lambda: Attention(config, rngs=nnx.Rngs(0), stack=()))
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    assert attention.qkv.weight.shape == (2 * (queries + keys), config.hidden_size)
    numbers = np.random.default_rng(0).normal(size=(5, 3 * queries + 2 * keys)).astype(jnp.bfloat16)
    out, projected = numbers[:, :queries], numbers[:, queries:]
    gate = 1 / (1 + np.exp(-projected[:, queries : 2 * queries].astype(np.float32)))
    want = (out.astype(np.float32) * gate).astype(jnp.bfloat16)
    np.testing.assert_array_equal(attention._gated(jnp.asarray(out), jnp.asarray(projected)), want)
