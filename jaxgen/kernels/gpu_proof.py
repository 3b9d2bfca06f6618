"""Prove the kernels of a GPU other than attention, and digest the source files that the proof depends on."""

import hashlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgen.core.model_config import ModelConfig
from jaxgen.kernels.code_support import experts_code_trouble
from jaxgen.kernels.coded_weights import coded_weights, dense_weights
from jaxgen.kernels.kernels import Kernels
from jaxgen.kernels.proving.layer_shapes import ProductShape
from jaxgen.kernels.proving.verdict import ExpertShapes
from pallas_kernels import proof
from pallas_kernels.delta_proof import prove_gated_delta as prove_gated_delta
from pallas_kernels.kv_codes import CODE_DTYPES, apart, decode, encode
from pallas_kernels.rotation_proof import prove_rotation as prove_rotation
from pallas_kernels.row_proof import prove_add_norm as prove_add_norm
from pallas_kernels.row_proof import prove_gated_product as prove_gated_product
from pallas_kernels.row_proof import prove_norm as prove_norm
from pallas_kernels.row_proof import prove_product as prove_product

PROOF_TOLERANCE = proof.TOLERANCE
"""Largest absolute error of attention in a proof, by dtype."""


def prove_block_copies(kernels: Kernels, model: ModelConfig, block_size: int) -> None:
    """Raise AssertionError if the kernels copy blocks of such a model incorrectly."""
    proof.prove_copies(
        kernels.gather_blocks,
        kernels.scatter_blocks,
        kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        block_size=block_size,
        dtype=model.dtype,
        codes=None if model.kv_dtype == "auto" else model.kv_dtype,
    )


def cache_of_codes(numbers: np.ndarray, codes: str) -> jax.Array:
    """Return a cache of codes of these numbers, with scales apart."""
    return apart(encode(jnp.asarray(numbers), CODE_DTYPES[codes]))


def stands_for(numbers: np.ndarray, codes: str) -> np.ndarray:
    """Return what the codes of numbers stand for, in their dtype."""
    return np.asarray(decode(encode(jnp.asarray(numbers), CODE_DTYPES[codes]), numbers.dtype))


def prove_expert_products(kernels: Kernels, shapes: ExpertShapes, tokens: int, dtype: str, *, coded: bool) -> None:
    """Raise AssertionError if a product of experts, with codes or without, is wrong in a step of ``tokens`` tokens."""
    for (inputs, outputs), form in zip(shapes.products, shapes.formats, strict=True):
        placed = None if form is None else kernels.placed(form)
        sizes: dict[str, Any] = {"experts": shapes.experts, "inputs": inputs, "outputs": outputs}
        sizes["rows"] = tokens * shapes.per_token
        if (placed is not None) != coded:
            continue
        if placed is None:
            proof.prove_expert_product(kernels.expert_product, **sizes, dtype=dtype)
            continue
        if experts_code_trouble(placed, inputs, outputs, dtype) is not None:
            continue
        product = kernels.floats if placed.floats else kernels.quantized
        assert product is not None
        group = inputs if placed.group is None else placed.group
        options: dict[str, Any] = {"bits": placed.bits, "group": group, "out_features": outputs}
        weights = coded_weights(placed, outputs, inputs, product.pack_codes, product.pack_groups)
        proof.prove_expert_product(partial(product.expert_product, **options), **sizes, dtype=dtype, weights=weights)


def prove_coded_product(
    kernels: Kernels, one: ProductShape, dtype: str, budgets: Sequence[int], counts: Sequence[int]
) -> None:
    """Raise AssertionError if a product with a quantized weight is wrong; see ``prove_product``."""
    form = one.form
    assert form is not None, "it is quantized"
    product = kernels.floats if form.floats else kernels.quantized
    assert product is not None, "GPUs multiply all codes"
    group = form.group or one.inputs
    sizes: dict[str, Any] = {"inputs": one.inputs, "outputs": one.outputs, "dtype": dtype}
    sizes |= {"budgets": budgets, "counts": counts}
    weights = dense_weights(form, one.outputs, one.inputs, product.pack_codes, product.pack_groups)
    if one.activation is not None and product.gated_product is not None:
        gated = partial(product.gated_product, group=group)
        prove_gated_product(gated, activation=one.activation, weights=weights, **sizes)
    else:
        prove_product(partial(product.product, bits=form.bits, group=group), weights=weights, **sizes)


_DEFINITIONS = (
    *("proof.py", "row_proof.py", "delta_proof.py", "rotation_proof.py"),
    *("gated_delta.py", "plain_codes.py", "activations.py", "kv_codes.py", "write_kv.py"),
)
"""Files that say what is right of the GPU kernels."""
_PROVING = (
    *("tools/prove_kernels.py", "tools/proof_step.py", "tools/proof_layers.py", "tools/proof_codes.py"),
    *(
        "kernels/choice.py",
        "kernels/pallas.py",
        "kernels/references.py",
        "kernels/gpu_support.py",
        "kernels/gpu_proof.py",
        "kernels/code_support.py",
        "kernels/coded_weights.py",
    ),
    *("models/attention.py", "models/batch.py", "models/kv_cache.py", "runner/packer.py", "runner/row_state.py"),
    *("arrays.py", "core/quantization.py"),
)
"""Files other than the kernels that the result of a proof depends on."""


def gpu_sources() -> str:
    """Return a digest of the source files of the GPU kernels and of their proof."""
    kernels, package = Path(proof.__file__).parent, Path(__file__).parent.parent
    files = [
        *(kernels / name for name in _DEFINITIONS),
        *kernels.glob("gpu/**/*.py"),
        *(package / name for name in _PROVING),
    ]
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:20]
