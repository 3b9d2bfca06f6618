"""write_kv for NVIDIA GPUs, interpreted, against write_kv_ref."""

from typing import Any

import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from pallas_kernels.gpu.write_kv import STAGES, write_kv
from pallas_kernels.write_kv import write_kv_ref
from tests.support.interpreted import RaceError, run

N, L, K, B, D = 6, 2, 3, 4, 8
"""In shared memory 8 heads of 16 bytes take the place of 3, so that the next copy is aligned."""
NUM_CTAS = 2
T = NUM_CTAS * STAGES + 5
"""More than one round for each CTA, and the last one not full."""


def case(seed: int = 0, padding: tuple[int, ...] = (0, 7, T - 1), kv_heads: int = K) -> tuple[jnp.ndarray, ...]:
    rng = np.random.default_rng(seed)
    cache = rng.normal(size=(N, L, 2, kv_heads, B, D))
    k, v = rng.normal(size=(2, T, kv_heads, D))
    slots = rng.permutation(N * B)[:T]
    slots[list(padding)] = N * B + np.arange(len(padding))
    kv = (jnp.asarray(x, jnp.bfloat16) for x in (k, v))
    return jnp.asarray(cache, jnp.bfloat16), jnp.int32(1), *kv, jnp.asarray(slots, jnp.int32)


SOME = (0, 7, T - 1)


@pytest.mark.parametrize(
    ("padding", "bulk"),
    [
        pytest.param(SOME, True, id="some-bulk"),
        pytest.param(SOME, False, id="some"),
        *(
            pytest.param(padding, bulk, id=f"{name}{'-bulk' * bulk}", marks=pytest.mark.full)
            for name, padding in (("none", ()), ("all", tuple(range(T))))
            for bulk in (True, False)
        ),
    ],
)
def test_equals_the_reference(padding: tuple[int, ...], bulk: bool) -> None:
    args = case(padding=padding, kv_heads=K if bulk else 16)
    got = run(write_kv, *args, num_ctas=NUM_CTAS, bulk=bulk)
    np.testing.assert_array_equal(got, write_kv_ref(*args))


def test_casts_to_the_caches_dtype() -> None:
    cache, layer, k, v, slots = case()
    args = (cache, layer, k.astype(jnp.float32) * 1.001, v.astype(jnp.float32) * 1.001, slots)
    np.testing.assert_array_equal(run(write_kv, *args, num_ctas=NUM_CTAS), write_kv_ref(*args))


def test_in_a_scan_over_layers() -> None:
    cache, _, k, v, slots = case()

    def layers(cache: jnp.ndarray, write: Any, **options: object) -> jnp.ndarray:
        return lax.scan(
            lambda carry, layer: (write(carry, layer, k + layer.astype(k.dtype), v, slots, **options), None),
            cache,
            jnp.arange(L),
        )[0]

    got = run(lambda cache, interpret: layers(cache, write_kv, num_ctas=NUM_CTAS, interpret=interpret), cache)
    np.testing.assert_array_equal(got, layers(cache, write_kv_ref))


def test_a_dropped_wait_is_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plgpu, "barrier_wait", lambda barrier: None)
    with pytest.raises(RaceError):
        run(write_kv, *case(), num_ctas=T)  # of one token each: the interpreter refuses a barrier nobody waits for


def test_a_wrong_index_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lax, "rem", lambda slot, block_size: block_size - 1 - slot % block_size)
    args = case()
    got = run(write_kv, *args, num_ctas=NUM_CTAS)
    assert (np.asarray(got) != np.asarray(write_kv_ref(*args))).any()
