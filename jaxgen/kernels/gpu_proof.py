"""Prove the kernels of a GPU other than attention, and digest the source files that the proof depends on."""

import hashlib
from functools import partial
from pathlib import Path
from typing import Any

from jaxgen.core.config import ModelConfig
from jaxgen.kernels.coded_weights import coded_weights
from jaxgen.kernels.kernels import Kernels
from jaxgen.kernels.proving.verdict import ExpertShapes
from pallas_kernels import proof
from pallas_kernels.delta_proof import prove_gated_delta as prove_gated_delta
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
    )


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
        product = kernels.floats if placed.floats else kernels.quantized
        assert product is not None
        group = inputs if placed.group is None else placed.group
        options: dict[str, Any] = {"bits": placed.bits, "group": group, "out_features": outputs}
        weights = coded_weights(placed, outputs, inputs, product.pack_codes, product.pack_groups)
        proof.prove_expert_product(partial(product.expert_product, **options), **sizes, dtype=dtype, weights=weights)


_DEFINITIONS = (
    *("proof.py", "row_proof.py", "delta_proof.py", "rotation_proof.py"),
    *("gated_delta.py", "plain_codes.py", "activations.py"),
)
"""Files that say what is right of the GPU kernels."""
_PROVING = (
    *("tools/prove_kernels.py", "tools/proof_step.py", "tools/proof_layers.py"),
    *(
        "kernels/choice.py",
        "kernels/pallas.py",
        "kernels/references.py",
        "kernels/gpu_support.py",
        "kernels/gpu_proof.py",
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
