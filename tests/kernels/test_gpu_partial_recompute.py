"""partial_recompute: its plain twin against the models' layers, the kernel for NVIDIA GPUs, interpreted, against both
the twin and float64."""

from functools import cache, partial
from typing import Any

import jax
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgen.core.config import CacheConfig
from jaxgen.core.decoder_config import DecoderConfig, llama_config, opt_config
from jaxgen.core.decoder_parts import RopeConfig
from jaxgen.kernels.choice import REFERENCE
from jaxgen.models.batch import StepBatch
from jaxgen.models.decoder import Decoder
from jaxgen.models.kv_cache import init_cache
from jaxgen.models.norms import normed
from jaxgen.models.positions import rotary_angles
from jaxgen.models.walk import LayerContext
from pallas_kernels.gpu import partial_recompute as module
from pallas_kernels.gpu.partial_recompute import ROWS, TILE_K, partial_recompute
from pallas_kernels.partial_recompute import partial_recompute_ref
from tests.support.interpreted import RaceError, run

STAGES = 4
"""With these shapes."""
N, L, K, B, D, E, H = 12, 2, 2, 16, 64, TILE_K * (STAGES + 2), 4
T = 2 * ROWS * 2 - 80
NUM_CTAS = 3
"""Of eight tiles of one head, so that none has only one."""
SHARED = (True, True, 16, "bfloat16", NUM_CTAS)
"""A case of several tests, which is interpreted once."""
POSITIONS = jnp.arange(T) + 1000
ROPE = RopeConfig()


def case(*, bias: bool, turned: bool, dtype: Any = jnp.bfloat16, run: int = 1, hidden: int = E) -> tuple[Any, ...]:
    """Arguments: zero-mean, weights of every layer but layer 1 NaN, as are the rows of queries."""
    rng = np.random.default_rng(3)
    cache = jnp.asarray(rng.normal(size=(N, L, 2, K, B, D)), dtype)
    x = jnp.asarray(rng.normal(size=(T, hidden)), dtype)
    outputs = (H + 2 * K) * D
    weight = np.full((L, outputs, hidden), np.nan)
    weight[1, H * D :] = rng.normal(size=(2 * K * D, hidden)) / np.sqrt(hidden)
    biases = np.full((L, outputs), np.nan)
    biases[1, H * D :] = rng.normal(size=2 * K * D)
    starts = rng.permutation(N * B // run)[: T // run] * run
    slots = (starts[:, None] + np.arange(run)).reshape(-1)
    slots[np.arange(T) // run % 7 == 1] = N * B
    angles = rotary_angles(ROPE, D, POSITIONS) if turned else None
    return (
        *(cache, jnp.int32(1), x, jnp.asarray(weight, dtype), jnp.asarray(biases, dtype) if bias else None),
        *(angles, jnp.asarray(slots, jnp.int32)),
    )


@cache
def recomputed(bias: bool, turned: bool, run_length: int, dtype: str, num_ctas: int) -> tuple[tuple[Any, ...], Any]:
    """A case and what the interpreted kernel makes of it."""
    args = case(bias=bias, turned=turned, run=run_length, dtype=jnp.dtype(dtype))
    return args, run(partial_recompute, *args, run=run_length, num_ctas=num_ctas)


def in_float64(cache: Any, layer: Any, x: Any, weight: Any, bias: Any, angles: Any, slots: Any) -> np.ndarray:
    """The cache that is wanted, with no rounding but that of the arguments."""

    def wide(array: Any) -> np.ndarray:
        return np.asarray(array).astype(np.float64)

    kv = wide(x) @ wide(weight)[1, -2 * K * D :].T + (0 if bias is None else wide(bias)[1, -2 * K * D :])
    k, v = np.split(kv.reshape(-1, 2 * K, D), 2, axis=1)
    if angles is not None:
        turn = np.exp(1j * np.asarray(POSITIONS)[:, None, None] * ROPE.theta ** (-np.arange(D // 2) * 2 / D))
        turned = (k[..., : D // 2] + 1j * k[..., D // 2 :]) * turn
        k = np.concatenate([turned.real, turned.imag], axis=-1)
    want = wide(cache).copy()
    for token, slot in enumerate(np.asarray(slots)):
        if slot < N * B:
            want[slot // B, 1, 0, :, slot % B] = k[token]
            want[slot // B, 1, 1, :, slot % B] = v[token]
    return want


@pytest.mark.parametrize(
    ("bias", "turned", "run_length", "dtype", "num_ctas"),
    [
        SHARED,
        pytest.param(False, True, 1, "float16", 1, marks=pytest.mark.full),
        pytest.param(True, False, 4, "bfloat16", 4, marks=pytest.mark.full),
    ],
)
def test_kernel_equals_reference_and_float64(
    bias: bool, turned: bool, run_length: int, dtype: str, num_ctas: int
) -> None:
    args, got = recomputed(bias, turned, run_length, dtype, num_ctas)
    eps = {"bfloat16": 2**-7, "float16": 2**-10}[dtype]
    want = np.asarray(partial_recompute_ref(*args), np.float64)
    np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=eps, atol=eps)
    np.testing.assert_allclose(np.asarray(got, np.float64), in_float64(*args), rtol=eps, atol=3 * eps)
    untouched = np.asarray(got) == np.asarray(args[0])
    written = np.zeros(N * B, bool)
    written[[slot for slot in np.asarray(args[-1]) if slot < N * B]] = True
    assert untouched[:, 0].all()
    assert untouched[:, 1].transpose(1, 0, 3, 2, 4).reshape(2, N * B, K * D)[:, ~written].all()


@pytest.mark.full
def test_norm_is_applied_first() -> None:
    args = case(bias=False, turned=True)
    double = run(partial_recompute, *args, norm=lambda x: 2 * x, num_ctas=NUM_CTAS)
    cache, layer, x, *rest = args
    np.testing.assert_array_equal(double, run(partial_recompute, cache, layer, 2 * x, *rest, num_ctas=NUM_CTAS))


@pytest.mark.parametrize("interpreted", [True, False])
def test_the_weight_of_one_layer_serves_that_layer(interpreted: bool) -> None:
    (cache, layer, x, weight, bias, *rest), want = recomputed(*SHARED)
    function: Any = partial_recompute_ref
    if interpreted:
        function = partial(run, partial_recompute, run=SHARED[2], num_ctas=NUM_CTAS)
    else:
        want = partial_recompute_ref(cache, layer, x, weight, bias, *rest)
    np.testing.assert_array_equal(function(cache, layer, x, weight[1:2], bias[1:2], *rest), want)


@pytest.mark.full  # as for write_kv, in test_gpu_write_kv
def test_a_dropped_wait_is_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no more steps than stages: the interpreter refuses a barrier that completes twice and nobody waits for."""
    monkeypatch.setattr(plgpu, "barrier_wait", lambda barrier: None)
    with pytest.raises(RaceError):
        run(partial_recompute, *case(bias=False, turned=False, hidden=STAGES * TILE_K), num_ctas=8)


@pytest.mark.full  # as for write_kv, in test_gpu_write_kv
def test_a_wrong_index_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    right = module._Epilogue._store
    monkeypatch.setattr(
        module._Epilogue, "_store", lambda self, token, which, head: right(self, token, which, head ^ 1)
    )
    args = case(bias=False, turned=False)
    got = run(partial_recompute, *args, num_ctas=NUM_CTAS)
    assert np.abs(np.asarray(got, np.float64) - in_float64(*args)).max() > 0.1


SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_layers": 2,
    "num_heads": 4,
    "max_position": 4096,
    "head_dim": 16,
    "dtype": "float32",
}


def _llama(rope: RopeConfig, **options: Any) -> DecoderConfig:
    return llama_config(**SIZES, num_kv_heads=2, norm_eps=1e-5, rope=rope, **options)


def _opt(**options: Any) -> DecoderConfig:
    return opt_config(**SIZES, num_kv_heads=4, **options)


FAMILIES: dict[str, DecoderConfig] = {
    "llama": _llama(ROPE),
    "llama_bias": _llama(RopeConfig(theta=5e5), attention_bias=True),
    "opt": _opt(),
    "opt_post_norm": _opt(pre_norm=False),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("llama", marks=pytest.mark.full),  # less than the one with biases
        "llama_bias",
        "opt",
        "opt_post_norm",
    ],
)
def test_reference_equals_the_models_layer(name: str) -> None:
    """K and V in the cache after the model's own layer 1 has run on x."""
    config, tokens, blocks = FAMILIES[name], 23, 3
    rng = np.random.default_rng(0)
    model = nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0)))
    graph, stacked = nnx.split(model.layers)
    stacked = jax.tree.map(lambda value: jnp.asarray(rng.normal(size=value.shape) / 4, value.dtype), stacked)
    layer: Any = nnx.merge(graph, jax.tree.map(lambda value: value[1], stacked))
    positions = jnp.arange(tokens) + 500
    slots = jnp.arange(tokens).at[-3:].set(blocks * 8)
    batch = batch_of(tokens - 3, positions, slots, blocks)
    x = jnp.asarray(rng.normal(size=(tokens, 64)), jnp.float32)
    cache = init_cache(config, CacheConfig(8, blocks))
    positional = layer.positional(positions)
    at = LayerContext(batch, positional, jnp.int32(1), 0, jnp.int32(1), None, REFERENCE)

    def norm(x: jax.Array) -> Any:
        return normed(layer.input_norm, x, at)

    want = jax.jit(lambda x: layer.attn(norm(x), cache, at)[1])(x)
    weights: Any = nnx.to_pure_dict(stacked)["attn"]["qkv"]
    recompute = jax.jit(partial(partial_recompute_ref, norm=norm))
    got = recompute(cache.data, jnp.int32(1), x, weights["weight"], weights.get("bias"), positional.angles, slots)
    assert np.abs(np.asarray(want.data[:, 1])).max() > 0.5
    np.testing.assert_allclose(got, want.data, rtol=1e-5, atol=1e-5)


def batch_of(num_tokens: int, positions: Any, slots: Any, blocks: int) -> StepBatch:
    """One row of ``num_tokens`` tokens."""
    nothing = jnp.zeros_like(positions)
    return StepBatch(
        tokens=nothing,
        positions=positions,
        slots=(slots,),
        token_rows=nothing,
        query_starts=jnp.array([0, num_tokens]),
        context_lens=jnp.array([num_tokens]),
        block_tables=(jnp.arange(blocks)[None],),
        rows=jnp.array([0]),
        num_tokens=jnp.int32(num_tokens),
        num_rows=jnp.int32(1),
        num_decodes=jnp.int32(0),
        sample_at=jnp.array([num_tokens - 1]),
        sample_rows=jnp.array([0]),
        sample_positions=jnp.array([num_tokens]),
        num_samples=jnp.int32(1),
        want_logprobs=jnp.bool_(False),
        prompt_targets=nothing - 1,
    )
