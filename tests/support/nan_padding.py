"""Kernels that leave the worst in rows of padding."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from jaxgen.kernels.kernels import Kernel, Kernels


def with_nan_in_padding(kernels: Kernels) -> Kernels:
    """Return native kernels whose results are NaN in each row that holds nothing."""
    assert kernels.packed is not None
    assert kernels.packed.expert_product is not None
    assert kernels.quantized is not None

    def attended(
        _q: Any, _cache: Any, _layer: Any, _tables: Any, starts: jax.Array, _lens: Any, rows: Any, *_: Any
    ) -> Any:
        return starts[rows]

    packed = replace(
        kernels.packed,
        product=_spoiled(kernels.packed.product, _operand(3)),
        expert_product=_spoiled(kernels.packed.expert_product, _last_of(3)),
    )
    quantized = replace(
        kernels.quantized,
        product=_spoiled(kernels.quantized.product, _operand(5)),
        expert_product=_spoiled(kernels.quantized.expert_product, _last_of(5)),
    )
    return replace(
        kernels,
        name=f"{kernels.name}, with NaN in padding",
        ragged_paged_attention=_spoiled(kernels.ragged_paged_attention, attended),
        packed=packed,
        quantized=quantized,
        rms_norm=_spoiled(kernels.rms_norm, _operand(2)),
        layer_norm=_spoiled(kernels.layer_norm, _operand(3)),
        activate=_spoiled(kernels.activate, _operand(1)),
        gated=_spoiled(kernels.gated, _operand(1)),
        rotated_heads=_spoiled(kernels.rotated_heads, _operand(2)),
    )


def _operand(index: int) -> Callable[..., Any]:
    return lambda *operands: operands[index]


def _last_of(index: int) -> Callable[..., Any]:
    return lambda *operands: operands[index][-1]


def _spoiled(kernel: Kernel, num_rows: Callable[..., Any]) -> Kernel:
    """The kernel with NaN from row ``num_rows(*operands)`` on."""

    def compute(*operands: Any, **options: Any) -> jax.Array:
        result = kernel(*operands, **options)
        row = jnp.arange(len(result)).reshape(-1, *[1] * (result.ndim - 1))
        return jnp.where(row < num_rows(*operands), result, jnp.nan)

    return compute
