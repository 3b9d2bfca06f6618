"""Say which operations of a model the Pallas kernels of a GPU do not do, and why."""

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp

from jaxgen.core import operations
from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.model_config import ModelConfig
from jaxgen.hardware.device_info import DeviceInfo
from jaxgen.hardware.nvidia import compiler_trouble
from jaxgen.kernels.code_support import code_troubles
from jaxgen.kernels.expert_support import experts_trouble
from jaxgen.kernels.kernels import UNREAD_CODES, Kernels
from jaxgen.kernels.proving.layer_shapes import norms_of, products_of
from jaxgen.kernels.rotation_support import rotation_refusal
from pallas_kernels.gpu.delta_support import supports as delta_supports
from pallas_kernels.gpu.dense_support import supports as dense_supports
from pallas_kernels.gpu.norm_support import supports as norm_supports
from pallas_kernels.gpu.shared_memory import BLACKWELL_RTX, HOPPER

AMPERE_MAJOR, HOPPER_MAJOR, BLACKWELL_RTX_MAJOR = 8, 9, 12
"""Major numbers of compute capabilities that the rules name."""
UNPROVEN_INPUTS = "no proof covers the products of layers with embeddings of their own yet"
UNPROVEN_HEADS = "no proof covers heads of several shapes yet"


def troubles(device: DeviceInfo, model: ModelConfig, block_size: int, kernels: Kernels) -> dict[str, str]:
    """Return the operations of a model that kernels for a GPU do not do, and why. What XLA does anyway is left out."""
    of_compiler = compiler_trouble()
    if of_compiler is not None:
        return dict.fromkeys(kernels.own, of_compiler)
    assert device.compute_capability is not None, "it has kernels"
    return dict(_found(device.compute_capability[0], model, block_size))


def _found(major: int, model: ModelConfig, block_size: int) -> Iterator[tuple[str, str]]:
    experts = experts_trouble(model, made=major == HOPPER_MAJOR)
    yield from experts.items()
    for name, reason in (
        (operations.CODES, experts.get(operations.CODES) or _codes(major, model)),
        (operations.ATTENTION, _attention(major, model, block_size)),
        (operations.COPIES, _copies(major, model, block_size)),
        (operations.PRODUCTS, _products(major, model)),
        (operations.NORMS, _norms(major, model)),
        (operations.ROTATION, _rotation(major, model, block_size)),
        (operations.DELTA_NETS, _delta_nets(major, model)),
    ):
        if reason is not None:
            yield name, reason


def _attention(major: int, model: ModelConfig, block_size: int) -> str | None:
    """Return why attention and the writes of its cache, which go together, do not take a model."""
    from pallas_kernels.gpu import write_kv
    from pallas_kernels.gpu.attention import ragged_paged_attention as attention  # here: importing Mosaic takes time

    coded = model.kv_dtype != "auto"
    heads: dict[str, Any] = {"heads": model.num_heads, "block_size": block_size, "wgmma": major == HOPPER_MAJOR}
    memory = BLACKWELL_RTX if major == BLACKWELL_RTX_MAJOR else HOPPER
    for row in [kind.row for kind in model.cache_kinds]:
        if row.parts == 1:
            return f"no others read rows of {row.width} numbers that are keys and values of all heads"
        shape: dict[str, Any] = {"kv_heads": row.heads, "head_dim": row.width, "dtype": model.dtype}
        trouble = attention.supports(**shape, **heads, coded=coded)
        if not coded:  # which XLA writes, where no kernel rotates and writes
            trouble = trouble or write_kv.supports(**shape, bulk=major != AMPERE_MAJOR, shared_memory=memory)
        if trouble is not None:
            return trouble
    return UNPROVEN_HEADS if model.has_several_rows else None


def _copies(major: int, model: ModelConfig, block_size: int) -> str | None:
    from pallas_kernels.gpu import copy_blocks
    from pallas_kernels.kv_codes import CODE_DTYPES, row_width

    dtype = jnp.dtype(CODE_DTYPES.get(model.kv_dtype, model.dtype)).name
    rows = [(len(kind.layers) * kind.row.parts * kind.row.heads, kind.row.width) for kind in model.cache_kinds]
    of_block = sum(count * row_width(width, dtype) for count, width in rows) * block_size
    bulk = major not in (AMPERE_MAJOR, BLACKWELL_RTX_MAJOR)
    return copy_blocks.supports(numbers=of_block, head_dim=model.head_dim, dtype=dtype, bulk=bulk)


def _products(major: int, model: ModelConfig) -> str | None:
    """Return why the dense product takes no weight of a model. XLA multiplies with other weights."""
    if isinstance(model, DecoderConfig) and model.layer_embedding is not None:
        return UNPROVEN_INPUTS
    reasons = [
        dense_supports(inputs=one.inputs, outputs=one.outputs, dtype=model.dtype, capability=major)
        for one in products_of(model)
    ]
    return next(iter(reasons), None) if all(reasons) else None


def _codes(major: int, model: ModelConfig) -> str | None:
    """Return why no quantized weight of a model has a product of the kernels. XLA multiplies with other weights."""
    reasons = code_troubles(model)
    if not reasons or not all(reasons):
        return None if not reasons or major == HOPPER_MAJOR else "the others are for Hopper"
    return reasons[0]


def xlas_codes(model: ModelConfig) -> str:
    """Return why XLA multiplies with some quantized weights of a model whose others have kernels; empty: with none."""
    return "; ".join(f"with some weights XLA's, {reason}" for reason in dict.fromkeys(code_troubles(model)) if reason)


def _norms(major: int, model: ModelConfig) -> str | None:
    reasons = (norm_supports(width=one.width, capability=major) for one in norms_of(model))
    return next((reason for reason in reasons if reason is not None), None)


def _rotation(major: int, model: ModelConfig, block_size: int) -> str | None:
    """Return why queries and keys are not rotated, and K and V written, by one kernel."""
    if major != HOPPER_MAJOR:
        return f"compute capability {major} is not {HOPPER_MAJOR}.0"
    if model.kv_dtype != "auto" and _attention(major, model, block_size) is not None:
        return UNREAD_CODES
    return rotation_refusal(model)


def _delta_nets(major: int, model: ModelConfig) -> str | None:
    nets = model.delta if isinstance(model, DecoderConfig) else None
    if nets is None:
        return None
    sizes: dict[str, Any] = {"key_dim": nets.key_dim, "value_dim": nets.value_dim, "span": nets.span}
    return delta_supports(**sizes, dtype=model.dtype, capability=major)
