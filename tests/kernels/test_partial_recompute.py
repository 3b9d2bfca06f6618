"""K that is normed before its rotation, and rotations of a part of each head: partial_recompute_ref and the models."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgen.core.config import CacheConfig
from jaxgen.core.decoder_parts import AttentionConfig, NormConfig, RopeConfig
from jaxgen.kernels.choice import REFERENCE, REFERENCE_GPU
from jaxgen.models.batch import BlockTokens
from jaxgen.models.decoder import Decoder
from jaxgen.models.kv_cache import init_cache
from jaxgen.models.positions import rotary_angles
from jaxgen.models.walk import LayerContext
from pallas_kernels.gpu.partial_recompute import partial_recompute
from pallas_kernels.partial_recompute import partial_recompute_ref
from tests.kernels.test_gpu_partial_recompute import FAMILIES

N, L, K, B, D, E, H, T = 3, 2, 2, 8, 16, 24, 4, 11
WEIGHT = np.linspace(0.5, 2.0, D)


def k_norm(k: Any) -> Any:
    """RMS over each head, times a weight; of numpy or jax."""
    return k / (k * k).mean(-1, keepdims=True) ** 0.5 * WEIGHT.astype(k.dtype)


def turned(k: np.ndarray, positions: np.ndarray, half: int) -> np.ndarray:
    """The first 2 * half numbers of each head as complex numbers, turned; in float64."""
    turn = np.exp(1j * positions[:, None, None] * 10000.0 ** (-np.arange(half) * 2 / (2 * half)))
    pairs = (k[..., :half] + 1j * k[..., half : 2 * half]) * turn
    return np.concatenate([pairs.real, pairs.imag, k[..., 2 * half :]], axis=-1)


def angles(positions: np.ndarray, half: int) -> Any:
    return rotary_angles(RopeConfig(theta=10000.0), 2 * half, jnp.asarray(positions))


@pytest.mark.parametrize("half", [D // 2, D // 4, 3])
@pytest.mark.parametrize("normed", [False, True])
def test_keys_are_normed_then_turned_in_part(half: int, normed: bool) -> None:
    rng = np.random.default_rng(0)
    cache = rng.normal(size=(N, L, 2, K, B, D)).astype(np.float32)
    x, weight = rng.normal(size=(T, E)), rng.normal(size=(1, (H + 2 * K) * D, E))
    bias = rng.normal(size=(1, (H + 2 * K) * D))
    slots, positions = rng.permutation(N * B)[:T], np.arange(T) + 40
    call: Any = partial(partial_recompute_ref, k_norm=k_norm if normed else None)
    got = call(
        jnp.asarray(cache),
        jnp.int32(1),
        *(jnp.asarray(array, jnp.float32) for array in (x, weight, bias)),
        angles(positions, half),
        jnp.asarray(slots, jnp.int32),
    )
    kv = (x @ weight[0, -2 * K * D :].T + bias[0, -2 * K * D :]).reshape(T, 2 * K, D)
    keys = turned(k_norm(kv[:, :K]) if normed else kv[:, :K], positions, half)
    want = cache.astype(np.float64)
    for token, slot in enumerate(slots):
        want[slot // B, 1, 0, :, slot % B] = keys[token]
        want[slot // B, 1, 1, :, slot % B] = kv[token, K:]
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


def test_more_angles_than_a_head_has_pairs_are_refused() -> None:
    wide = angles(np.arange(T), D)
    with pytest.raises(ValueError, match="rotary angles of 16 pairs for heads of 16 numbers"):
        recomputed(partial_recompute_ref, wide)


def recomputed(function: Any, given: Any, **options: Any) -> Any:
    x, weight = jnp.zeros((T, E), jnp.bfloat16), jnp.zeros((1, (H + 2 * K) * D, E), jnp.bfloat16)
    cache = jnp.zeros((N, L, 2, K, B, D), jnp.bfloat16)
    return function(cache, jnp.int32(0), x, weight, None, given, jnp.arange(T), **options)


def test_the_gpu_kernel_refuses_by_name_what_it_cannot_do() -> None:
    with pytest.raises(NotImplementedError, match="a norm of K between the projection and the rotation"):
        recomputed(partial_recompute, None, k_norm=k_norm)
    with pytest.raises(NotImplementedError, match="rotary angles of 4 pairs for head_dim 16"):
        recomputed(partial_recompute, angles(np.arange(T), 4))


def test_a_layer_is_projected_with_its_norm_of_keys() -> None:
    """By the kernel as by the step's own products."""
    model = replace(FAMILIES["llama"], attention=AttentionConfig(qk_norm=NormConfig(eps=1e-5)))
    graph, stacked = nnx.split(Decoder(model, rngs=nnx.Rngs(0)).layers)
    layer: Any = nnx.merge(graph, jax.tree.map(lambda value: value[1], stacked))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(16, model.hidden_size)), jnp.float32)

    def projected(kernels: Any) -> np.ndarray:
        cache = replace(init_cache(model, CacheConfig(8, 3)), kernels=kernels)
        tokens = BlockTokens(jnp.arange(16), (jnp.arange(16),), jnp.int32(16))
        at = LayerContext(tokens, layer.positional(tokens.positions), jnp.int32(1), 0, jnp.int32(1), None, kernels)
        return np.asarray(layer.keys_values(x, cache, at).data)

    found, want = projected(REFERENCE_GPU), projected(REFERENCE)
    assert np.abs(want[:2, 1]).min() > 0
    np.testing.assert_allclose((want[:2, 1, 0] ** 2).mean(-1), 1.0, rtol=1e-2)
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)
