"""gather_blocks and scatter_blocks for NVIDIA GPUs, interpreted, against their plain twins."""

from typing import Any

import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.copy_blocks import gather_blocks_ref, scatter_blocks_ref
from pallas_kernels.gpu import copy_blocks
from pallas_kernels.gpu.copy_blocks import STAGES, gather_blocks, scatter_blocks
from tests.support.interpreted import RaceError, run

N, L, K, B, D = 7, 2, 2, 4, 8
M = 5
NUM_CTAS = 2
CASES = [
    (0, True),
    (3, True),
    (M, False),
    *(
        pytest.param(*case, marks=pytest.mark.full)
        for case in ((1, True), (M, True), (0, False), (1, False), (3, False))
    ),
]
"""How many blocks, and whether they are copied in bulk: each of the two ways with full rounds and others."""


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 4 rows, so that a CTA has more of them than stages, and some CTAs one more than others."""
    monkeypatch.setattr(copy_blocks, "PIECE_BYTES", 4 * D * 2)
    pieces = L * 2 * K * B // 4
    assert 3 * pieces // NUM_CTAS > STAGES


def cache_and_ids() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    cache = jnp.asarray(rng.normal(size=(N, L, 2, K, B, D)), jnp.bfloat16)
    return cache, rng.permutation(N)[:M].astype(np.int32)


@pytest.mark.parametrize(("count", "bulk"), CASES)
def test_gather(count: int, bulk: bool) -> None:
    cache, ids = cache_and_ids()
    unused = sorted(set(range(N)) - set(ids[:count].tolist()))
    cache = cache.at[np.array(unused)].set(jnp.nan)
    ids[count:] = 10**6
    got = run(gather_blocks, cache, jnp.asarray(ids), jnp.int32(count), num_ctas=NUM_CTAS, bulk=bulk)
    want = gather_blocks_ref(cache, jnp.asarray(ids), jnp.int32(count))
    np.testing.assert_array_equal(got[:count], want[:count])
    assert not np.isnan(np.asarray(got[:count], np.float32)).any()


@pytest.mark.parametrize(("count", "bulk"), CASES)
def test_scatter(count: int, bulk: bool) -> None:
    cache, ids = cache_and_ids()
    ids[count:] = ids[0]  # where it would write if it did not ignore them
    staging = jnp.asarray(np.random.default_rng(1).normal(size=(M, *cache.shape[1:])), jnp.bfloat16)
    got = run(scatter_blocks, cache, jnp.asarray(ids), staging, jnp.int32(count), num_ctas=NUM_CTAS, bulk=bulk)
    want = np.asarray(cache).copy()
    want[ids[:count]] = np.asarray(staging)[:count]
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(scatter_blocks_ref(cache, jnp.asarray(ids), staging, jnp.int32(count)), want)


def test_codes_are_copied_as_bytes() -> None:
    """A row of 20 bytes is none that a bulk copy takes."""
    cache = jnp.asarray(np.random.default_rng(0).integers(0, 256, size=(N, L, 2, K, 16, D + 4)), jnp.uint8)
    ids = jnp.asarray([5, 0], jnp.int32)
    got = run(gather_blocks, cache, ids, jnp.int32(2), num_ctas=NUM_CTAS)
    np.testing.assert_array_equal(got, np.asarray(cache)[[5, 0]])


def test_a_stage_reused_too_early_is_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    wait = plgpu.wait_smem_to_gmem
    monkeypatch.setattr(plgpu, "wait_smem_to_gmem", lambda n, wait_read_only: wait(n) if n == 0 else None)
    cache, ids = cache_and_ids()
    with pytest.raises(RaceError):
        run(gather_blocks, cache, jnp.asarray(ids), jnp.int32(M), num_ctas=NUM_CTAS)


@pytest.mark.full  # as for write_kv, in test_gpu_write_kv
def test_a_wrong_index_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    right = copy_blocks._Plan.copy

    def wrong(self: Any, count: Any, source: Any, *rest: Any) -> None:
        right(self, count, lambda n: source(jnp.maximum(n - 1, 0)), *rest)

    monkeypatch.setattr(copy_blocks._Plan, "copy", wrong)
    cache, ids = cache_and_ids()
    got = run(gather_blocks, cache, jnp.asarray(ids), jnp.int32(M), num_ctas=NUM_CTAS)
    assert (np.asarray(got) != np.asarray(cache)[ids]).any()
