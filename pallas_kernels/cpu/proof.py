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
        prove_cache_kernels(
            library.write_kv,
            library.ragged_paged_attention,
            heads=6,
            kv_heads=2,
            head_dim=40,
            block_size=16,
            dtype=dtype,
            blank=np.nan,
        )
        _prove_product(library, dtype)


def _prove_product(library: Library, dtype: str) -> None:
    rng = np.random.default_rng(0)
    inputs, outputs, tokens = 301, 100, 9
    weight = rounded(rng.normal(size=(2, outputs, inputs)) * inputs**-0.5, dtype)
    x = rounded(rng.normal(size=(tokens + 2, inputs)), dtype)
    packed = pack(jnp.asarray(weight, dtype))
    y = library.packed_product(jnp.asarray(x, dtype), packed, jnp.int32(1), jnp.int32(tokens), out_features=outputs)
    want = x @ weight[1].T
    want[tokens:] = 0
    compare(y, want, "float32")
