"""Rebuild K and V of one layer from its stored inputs (KVPR, arXiv 2411.17089).

So part of a context kept on the host is recomputed while the rest of it crosses the link.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Num

from pallas_kernels.kv_codes import head_dim_of
from pallas_kernels.rotary import Angles, rotate
from pallas_kernels.write_kv import write_kv_ref

Norm = Callable[[jax.Array], jax.Array]


def partial_recompute_ref(
    cache: Num[Array, "N L 2 K B W"],
    layer: Int[Array, ""],
    x: Float[Array, "T E"],
    weight: Float[Array, "M O E"],
    bias: Float[Array, "M O"] | None,
    angles: Angles | None,
    slots: Int[Array, "T"],
    *,
    norm: Norm | None = None,
    k_norm: Norm | None = None,
    run: int = 1,
) -> Num[Array, "N L 2 K B W"]:
    """Return the cache with K and V of tokens whose inputs to ``layer`` are ``x``, token t's at ``slots[t]``.

    ``norm``: the layer's norm of x, if any. ``weight``, ``bias``: of the query, key and value projection of all layers
    (M = L) or of this layer alone (M = 1). Its last 2 * K * D outputs are K and V of all heads. ``k_norm``: the layer's
    norm of K [T, K, D] before the rotation, if any (arXiv 2010.04245). ``angles``: if given, the first 2 * half numbers
    of each head of K are turned by them. This is a rotary embedding with the halves as pairs (arXiv 2104.09864). Raises
    ValueError if a head has fewer numbers. Products are accumulated, and bias and
    rotation computed, in float32; the projection is rounded to x's dtype before ``k_norm`` and after the rotation.

    A slot of N * B or more writes nothing. Slots must be distinct and not negative. ``run`` is a promise of the caller:
    the slots of tokens i * run to (i + 1) * run follow one another from a multiple of run, or all write nothing. It
    changes no result. 4 * T * E * K * D FLOPs; bytes moved: x, 2 * K * D * E weights, and 2 * T * K * D written.
    """
    del run
    of_weight = layer if len(weight) > 1 else 0
    K, D = cache.shape[3], head_dim_of(cache.shape[5], cache.dtype)
    if norm is not None:
        x = norm(x)
    wide = lax.dot_general(
        x,
        weight[of_weight, -2 * K * D :],
        (((1,), (1,)), ((), ())),
        precision=lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )
    if bias is not None:
        wide += bias[of_weight, -2 * K * D :].astype(jnp.float32)
    kv = wide.astype(x.dtype).reshape(len(x), 2 * K, D)
    k, v = kv[:, :K], kv[:, K:]
    if k_norm is not None:
        k = k_norm(k)
    return write_kv_ref(cache, layer, rotate(k, angles), v, slots)
