"""write_kv_ref against a loop over tokens."""

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.write_kv import write_kv_ref

N, L, K, B, D, T = 5, 2, 3, 4, 8, 6


def test_writes_each_token_and_drops_padding() -> None:
    rng = np.random.default_rng(0)
    cache = rng.normal(size=(N, L, 2, K, B, D)).astype(np.float32)
    k, v = rng.normal(size=(2, T, K, D)).astype(np.float32)
    slots = np.array([7, 0, N * B - 1, 13, N * B, N * B], np.int32)
    got = np.asarray(jax.jit(write_kv_ref)(cache, jnp.int32(1), k, v, slots))
    want = cache.copy()
    for token, slot in enumerate(slots):
        if slot < N * B:
            want[slot // B, 1, 0, :, slot % B] = k[token]
            want[slot // B, 1, 1, :, slot % B] = v[token]
    np.testing.assert_array_equal(got, want)
