"""States of rows in the cache."""

import jax.numpy as jnp
import pytest

from jaxgen.core.config import CacheConfig
from jaxgen.models.kv_cache import KVCache, init_cache
from tests.support.hybrid import HYBRID


@pytest.fixture
def cache() -> KVCache:
    return init_cache(HYBRID, CacheConfig(2, 3), num_rows=3)


def test_only_layers_without_a_state_have_k_and_v(cache: KVCache) -> None:
    assert cache.data.shape[:2] == (3, 1)
    assert [array.shape for array in cache.states] == [(3, 2, 2, 4), (3, 1, 3)]


def test_copying_a_block_leaves_the_states(cache: KVCache) -> None:
    written = cache.with_states(1, cache.states[1] + 1)
    copied = written.copy(jnp.int32(2), jnp.int32(0))
    assert [array.any() for array in copied.states] == [False, True]
