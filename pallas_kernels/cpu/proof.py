"""Compute every kernel of a library once and compare with the definition. Runs in a process of its own: a library may
crash."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.cpu.library import DTYPES, Library
from pallas_kernels.packed_product import pack
from pallas_kernels.proof import compare, prove_cache_kernels, rounded


def prove(path: str) -> None:
    """Raise AssertionError if any result is wrong."""
    jax.config.update("jax_platforms", "cpu")
    library = Library.open(Path(path), "proof")
    for dtype in DTYPES:
        for head_dim in (40, 64):  # of vectors in part and in whole, whose values are read in place
            prove_cache_kernels(
                library.write_kv,
                library.ragged_paged_attention,
                heads=6,
                kv_heads=2,
                head_dim=head_dim,
                block_size=16,
                dtype=dtype,
                blank=np.nan,
            )
        _prove_product(library, dtype)
        _prove_elements(library, dtype)


def _prove_product(library: Library, dtype: str) -> None:
    rng = np.random.default_rng(0)
    inputs, outputs, tokens = 301, 100, 9
    weight = rounded(rng.normal(size=(2, outputs, inputs)) * inputs**-0.5, dtype)
    x = rounded(rng.normal(size=(tokens + 2, inputs)), dtype)
    packed = pack(jnp.asarray(weight, dtype))
    operands = jnp.asarray(x, dtype), packed, jnp.int32(1), jnp.int32(tokens)
    want = x @ weight[1].T
    want[tokens:] = 0
    compare(library.packed_product(*operands, out_features=outputs), want, "float32")
    residual = rounded(rng.normal(size=want.shape), dtype)
    y = library.packed_product(*operands, jnp.asarray(residual, dtype), out_features=outputs, dtype=dtype)
    added = residual + rounded(want, dtype)
    added[tokens:] = 0
    compare(y, added, dtype)


def _prove_elements(library: Library, dtype: str) -> None:
    rng = np.random.default_rng(1)
    width, tokens, eps = 203, 9, 1e-5
    count = jnp.int32(tokens)
    x, weight, bias = (
        rounded(rng.normal(size=shape) * scale, dtype)
        for shape, scale in (((tokens + 2, width), 3.0), ((width,), 0.2), ((width,), 0.2))
    )
    rms = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight
    centered = x - x.mean(-1, keepdims=True)
    normed = centered / np.sqrt((centered * centered).mean(-1, keepdims=True) + eps) * weight + bias
    gate, up = rng.normal(size=(2, tokens + 2, width)).astype(np.float32) / 2
    gated = gate / (1 + np.exp(-np.float64(gate))) * up
    X, W, B = (jnp.asarray(one, dtype) for one in (x, weight, bias))
    found = (
        library.rms_norm(X, W, count, eps=eps),
        library.layer_norm(X, W, B, count, eps=eps),
        library.gated_silu(jnp.concatenate([gate, up], axis=1), count, dtype=dtype),
    )
    for got, want in zip(found, (rms, normed, gated), strict=True):
        want[tokens:] = 0
        compare(got, want, dtype)
