"""The bytes of a cache, against the arrays that a device has, and worked out by hand."""

from dataclasses import replace

import jax
import pytest

from jaxgen.cache.cache_format import CacheFormat, blocks_bytes, kind_blocks
from jaxgen.core.config import CacheConfig
from jaxgen.core.kv_dtype import KV_DTYPES, KVDType
from jaxgen.core.layer_kind import HeadShape
from jaxgen.models.kv_cache import init_cache
from tests.support.engines import LLAMA
from tests.support.hub_configs import described

TWO_SHAPES = replace(
    LLAMA,
    num_layers=3,
    windows=(4, None, 4),
    layer_kinds=("attention", "global", "attention"),
    global_heads=HeadShape(kv_heads=1, head_dim=24),
)
TWO_CACHES = CacheConfig(8, 5, window_blocks=(4,), windows=(4,))
LAYERS, KV_HEADS, HEAD_DIM, HIDDEN, ITEMSIZE = 2, 2, 16, 64, 4


@pytest.mark.parametrize("keep_inputs", [False, True])
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_blocks_have_the_bytes_of_the_arrays(kv_dtype: KVDType, keep_inputs: bool) -> None:
    model, config = replace(LLAMA, kv_dtype=kv_dtype), CacheConfig(8, 5, keep_inputs)
    arrays = jax.tree.leaves(jax.eval_shape(lambda: init_cache(model, config)))
    size = sum(array.size * array.dtype.itemsize for array in arrays)
    assert size == 5 * CacheFormat.of_cache(model, config).block_bytes


def test_each_kind_has_the_bytes_of_its_array() -> None:
    model = replace(LLAMA, num_layers=5, windows=(4, None, 16, 4, None))
    config = CacheConfig(8, 5, window_blocks=(4, 3), windows=(16, 4))
    arrays = jax.eval_shape(lambda: init_cache(model, config)).arrays
    parts = kind_blocks(model, config)
    assert [part.kind.layers for part in parts] == [(1, 4), (2,), (0, 3)]
    assert [part.num_bytes for part in parts] == [array.size * array.dtype.itemsize for array in arrays]
    assert sum(part.num_bytes for part in parts) == blocks_bytes(model, config)


def test_a_row_of_latents_is_stored_once_and_smaller_than_a_layer_s_input() -> None:
    """So no planner projects one: GLM-4.7-Flash, whose 20 heads would have 10,240 numbers in a layer."""
    model, config = described("GLM-4.7-Flash"), CacheConfig(64, 5)
    (array,) = jax.eval_shape(lambda: init_cache(model, config)).arrays
    assert array.shape == (5, 47, 1, 1, 64, 576)
    form = CacheFormat.of_cache(model, config)
    assert (form.kv_bytes, form.input_bytes) == (47 * 576 * 2, 47 * 2048 * 2)
    assert not form.inputs_are_smaller


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_kinds_have_rows_of_their_own_shape(kv_dtype: KVDType) -> None:
    model = replace(TWO_SHAPES, kv_dtype=kv_dtype)
    full, window = jax.eval_shape(lambda: init_cache(model, TWO_CACHES)).arrays
    assert (full.shape[:-1], window.shape[:-1]) == ((5, 1, 2, 1, 8), (4, 2, 2, 2, 8))
    parts = kind_blocks(model, TWO_CACHES)
    assert [part.num_bytes for part in parts] == [array.size * array.dtype.itemsize for array in (full, window)]
    whole = CacheFormat.of_cache(model, TWO_CACHES)
    assert whole.block_bytes == sum(part.block_bytes for part in parts)
    assert whole.kv_numbers == 2 * (1 * 24 + 2 * 2 * HEAD_DIM)


def test_layers_of_several_shapes_are_of_no_common_kind() -> None:
    with pytest.raises(ValueError, match="need a kind of cache for each"):
        kind_blocks(TWO_SHAPES, CacheConfig(8, 5))


def test_what_a_token_has() -> None:
    cache = CacheFormat.of(LLAMA, 8)
    assert cache.kv_numbers == 2 * LAYERS * KV_HEADS * HEAD_DIM
    assert cache.kv_bytes == cache.kv_numbers * ITEMSIZE == cache.block_bytes // 8
    assert (cache.input_bytes, cache.kept_input_bytes) == (LAYERS * HIDDEN * ITEMSIZE, 0)
    assert cache.of_layer.kv_bytes * LAYERS == cache.kv_bytes
    assert cache.of_layer.input_bytes * LAYERS == cache.input_bytes


@pytest.mark.parametrize(("kv_heads", "smaller"), [(1, False), (2, False), (4, True)])
def test_inputs_may_be_smaller_than_keys_and_values(kv_heads: int, smaller: bool) -> None:
    assert CacheFormat.of(replace(LLAMA, num_kv_heads=kv_heads), 1).inputs_are_smaller is smaller
