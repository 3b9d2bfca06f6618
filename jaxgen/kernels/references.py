"""The plain twins of all kernels, which XLA compiles for any device."""

from dataclasses import replace
from functools import partial

import jax

from jaxgen.core.operations import XLA
from jaxgen.core.quantization import PLAIN_BITS
from jaxgen.hardware.device_info import DeviceInfo
from jaxgen.kernels.kernels import Kernels, QuantizedProduct
from pallas_kernels.expert_product import GPU_TILE_ROWS, expert_product_ref
from pallas_kernels.partial_recompute import partial_recompute_ref
from pallas_kernels.plain_codes import (
    COMPILER_OPTIONS,
    plain_codes,
    plain_expert_product,
    plain_groups,
    plain_product,
    plain_rows,
)
from pallas_kernels.ragged_paged_attention import GPU_PIECE_TOKENS, GPU_TILE_GROUP, ragged_paged_attention_ref
from pallas_kernels.write_kv import write_kv_ref

REFERENCE = Kernels(XLA, ragged_paged_attention_ref, write_kv_ref)
REFERENCE = REFERENCE.compared_with(REFERENCE)
"""The ``_ref`` twins in plain jnp, which run on all devices."""
GPU_EXPERT_PRODUCT = partial(expert_product_ref, tile_rows=GPU_TILE_ROWS)
"""XLA's loop over tiles of rows."""


def _plain(*, floats: bool) -> QuantizedProduct:
    """Return products in which XLA reads the codes themselves; ``floats``: these are numbers."""
    return QuantizedProduct(
        *(partial(plain_codes, floats=floats), plain_groups, plain_product, plain_rows, plain_expert_product),
        bits=PLAIN_BITS,
    )


GPU_QUANTIZED, GPU_FLOATS = _plain(floats=False), _plain(floats=True)
REFERENCE_GPU = replace(
    REFERENCE,
    ragged_paged_attention=partial(
        ragged_paged_attention_ref, piece_tokens=GPU_PIECE_TOKENS, tile_group=GPU_TILE_GROUP
    ),
    expert_product=GPU_EXPERT_PRODUCT,
    quantized=GPU_QUANTIZED,
    floats=GPU_FLOATS,
    compiler_options=COMPILER_OPTIONS,
    separate_layers=True,
    separate_sampling=True,
    partial_recompute=partial_recompute_ref,
)
REFERENCE_GPU = REFERENCE_GPU.compared_with(REFERENCE_GPU)
"""The twins in a program for GPUs, without a scanned stack and without loops.

On a GPU each weight of a scanned stack would be copied before it is read, and the host would wait for the device in
each iteration of a loop.
"""


def reference(device: DeviceInfo) -> Kernels:
    """Return the ``_ref`` twins for programs of a device."""
    return REFERENCE if device.is_cpu else REFERENCE_GPU


def as_it_is(weight: jax.Array) -> jax.Array:
    """Return the weight, which its product reads as it is stored."""
    return weight


def stored_rows(weight: jax.Array, ids: jax.Array) -> jax.Array:
    """Return rows of such a weight."""
    return weight[ids]
