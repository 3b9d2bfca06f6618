"""Rows of a cache as codes of 8 bits: the twin against the definition, the native kernels against the twin."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.kv_codes import CODE_DTYPES, SCALE_BYTES, apart, by_rows, decode, encode
from pallas_kernels.write_kv import write_kv_apart, write_kv_ref
from tests.support.attention_cases import LAYER, Case, cache_of, make_inputs, run
from tests.support.kv_codes import code_values, nearest_codes
from tests.support.native import native

CODES = ("int8", "fp8")


def rows(dtype: str, width: int = 40) -> np.ndarray:
    """Rows of all sizes, with zeros, ties between two codes, one large number among small ones, and nothing."""
    rng = np.random.default_rng(0)
    x = (
        rng.normal(size=(60, width))
        * 10.0 ** rng.integers(-3, 3, size=(60, 1))
        * (1 if dtype == "float16" else 10.0 ** rng.integers(-9, 9, size=(60, 1)))
    )
    x[::7, ::3] = 0
    x[1, width // 2] = -30 * np.abs(x[1]).max()
    x[2] = 0
    x[3] = -np.abs(x[3])
    x[4] = rng.integers(-254, 255, size=width) / 2
    x[4, 0] = 127.0  # the scale is 1: halves are ties
    x[5] = code_values("fp8")[rng.integers(0, 127, size=width)] * 17 / 16
    x[5, 0] = 448.0
    return np.asarray(jnp.asarray(x, dtype).astype(jnp.float32))


@pytest.mark.parametrize("codes", CODES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_codes_are_the_nearest(codes: str, dtype: str) -> None:
    x = rows(dtype)
    given = jnp.asarray(x, dtype)
    found = np.asarray(jax.jit(partial(encode, dtype=CODE_DTYPES[codes]))(given))
    want, scale = nearest_codes(x, codes)
    np.testing.assert_array_equal(found[:, -SCALE_BYTES:].copy().view(np.float32), scale)
    np.testing.assert_array_equal(found[:, :-SCALE_BYTES].view(np.uint8), want)
    means = np.asarray(jax.jit(partial(decode, dtype=jnp.float32))(jnp.asarray(found)))
    np.testing.assert_array_equal(means, (code_values(codes)[want] * scale).astype(np.float32))


@pytest.mark.parametrize("codes", CODES)
def test_the_error_is_bounded(codes: str) -> None:
    """Half a step of the row for integers, a sixteenth of a number for floats."""
    x = np.random.default_rng(1).normal(size=(50, 128)).astype(np.float32)
    means = np.asarray(decode(encode(jnp.asarray(x), CODE_DTYPES[codes]), jnp.float32))
    largest = np.abs(x).max(-1, keepdims=True)
    bound = largest / 254 if codes == "int8" else np.maximum(np.abs(x) / 16, largest / 448 * 2**-10)
    assert (np.abs(means - x) <= bound * 1.0001).all()


@pytest.mark.parametrize("codes", CODES)
def test_what_is_not_a_number_is_not_hidden(codes: str) -> None:
    for wrong in (np.nan, np.inf, -np.inf):
        x = np.ones((2, 40), np.float32)
        x[1, 7] = wrong
        cache = np.zeros((1, 1, 2, 1, 2, 44), CODE_DTYPES[codes])
        for write in (write_kv_ref, native().write_kv):
            kv = jnp.asarray(x)[:, None]
            written = write(jnp.asarray(cache), jnp.int32(0), kv, kv, jnp.arange(2, dtype=jnp.int32))
            means = np.asarray(decode(written, jnp.float32))[0, 0, :, 0]
            assert np.isfinite(means[:, 0]).all()
            assert not np.isfinite(means[:, 1]).any()


@pytest.mark.parametrize("codes", CODES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_native_and_twin_write_the_same_bytes(codes: str, dtype: str) -> None:
    for width in (1, 40, 64):
        x = rows(dtype, width)
        k, v = jnp.asarray(x, dtype)[:, None], jnp.asarray(-x[::-1], dtype)[:, None]
        shape = (4, LAYER + 1, 2, 1, 16, width + SCALE_BYTES)
        cache = jnp.asarray(np.random.default_rng(2).integers(0, 100, size=shape), CODE_DTYPES[codes])
        slots = jnp.asarray(np.random.default_rng(3).permutation(4 * 16 + 3)[: len(x)], jnp.int32)
        arguments = (cache, jnp.int32(LAYER), k, v, slots)
        got, want = jax.jit(native().write_kv)(*arguments), write_kv_ref(*arguments)
        np.testing.assert_array_equal(np.asarray(got), np.asarray(want))


@pytest.mark.parametrize(
    ("heads", "head_dim", "dtype", "codes"),
    [
        (4, 64, "float32", "int8"),
        (4, 64, "bfloat16", "fp8"),
        (6, 33, "float32", "fp8"),
        (6, 33, "bfloat16", "int8"),
        (70, 16, "float32", "int8"),
        (70, 16, "bfloat16", "fp8"),
    ],
)
def test_native_attention_is_that_over_the_decoded_rows(codes: str, dtype: str, heads: int, head_dim: int) -> None:
    """To the bit: few queries that read values as they are and many that pack them, whole vectors and parts."""
    case = Case(rows=((1, 200), (20, 90), (90, 133)), heads=heads, head_dim=head_dim, dtype=dtype, codes=codes)
    inputs = make_inputs(case)
    attend = native().ragged_paged_attention
    numbers = decode(cache_of(case, inputs), dtype)

    def over_numbers(q: jax.Array, cache: jax.Array, *rest: jax.Array, **options: object) -> jax.Array:
        del cache
        return attend(q, numbers, *rest, **options)  # type: ignore[arg-type]

    np.testing.assert_array_equal(run(attend, case, inputs), run(over_numbers, case, inputs))


def test_a_cache_without_room_for_a_scale_is_refused() -> None:
    cache = jnp.zeros((1, 1, 2, 1, 8, SCALE_BYTES), jnp.int8)
    nothing = jnp.zeros((1, 1, 0))
    with pytest.raises(jax.errors.JaxRuntimeError, match="no room for codes and a scale"):
        native().write_kv(cache, jnp.int32(0), nothing, nothing, jnp.zeros(1, jnp.int32)).block_until_ready()


@pytest.mark.parametrize("codes", CODES)
def test_numbers_that_do_not_fit_are_refused(codes: str) -> None:
    case = Case(rows=((1, 20),), codes=codes)
    inputs = make_inputs(case)
    with pytest.raises(ValueError, match="float32 or bfloat16"):
        run(native().ragged_paged_attention, Case(rows=((1, 20),), codes=codes, dtype="float16"), inputs)

    def narrow(q: jax.Array, *rest: jax.Array, **options: object) -> jax.Array:
        return native().ragged_paged_attention(q[..., :-1], *rest, **options)  # type: ignore[arg-type]

    with pytest.raises(jax.errors.JaxRuntimeError, match="q does not fit the cache"):
        run(narrow, case, inputs)


def test_scales_apart_are_written_to_their_places() -> None:
    """As in a cache of rows, whose bytes are the same in another order; a slot past the last writes nothing."""
    rng = np.random.default_rng(0)
    cache = rng.integers(-128, 128, size=(2, 2, 2, 3, 8, 16 + SCALE_BYTES)).astype(np.int8)
    k, v = (jnp.asarray(rng.normal(size=(3, 3, 16)), jnp.bfloat16) for _ in range(2))
    arguments = jnp.int32(1), k, v, jnp.asarray([9, 16, 3], jnp.int32)
    codes = apart(jnp.asarray(cache))
    flat = np.asarray(codes[0, 0]).reshape(-1)
    np.testing.assert_array_equal(flat[: 2 * 3 * 8 * 16], cache[0, 0, ..., :16].reshape(-1))
    np.testing.assert_array_equal(flat[2 * 3 * 8 * 16 :][:8], cache[0, 0, 0, 0, :, 16])
    want = jax.jit(write_kv_ref)(jnp.asarray(cache), *arguments)
    np.testing.assert_array_equal(jax.jit(lambda *given: by_rows(write_kv_apart(*given)))(codes, *arguments), want)
    assert not np.array_equal(want, cache)
