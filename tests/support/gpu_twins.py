"""Kernels as Hopper has them, with plain twins of products, norms and rotations: a CPU runs programs of their shape."""

from dataclasses import replace
from functools import partial
from typing import Any

from jaxgen.kernels.choice import REFERENCE_GPU
from jaxgen.kernels.kernels import Kernels, PackedProduct
from jaxgen.kernels.references import as_it_is, stored_rows
from pallas_kernels.add_norm import add_layer_norm_ref, add_rms_norm_ref
from pallas_kernels.dense_product import dense_product_ref, gated_product_ref, product_parts_ref
from pallas_kernels.gpu.dense_support import num_parts
from pallas_kernels.norms import layer_norm_ref, rms_norm_ref
from pallas_kernels.rotate_write import rotate_write_ref


def _takes(inputs: int, outputs: int, dtype: str) -> bool:
    return inputs % 64 == 0 and outputs % 16 == 0


def _parts(x: Any, weight: Any, layer: Any, num_tokens: Any) -> Any:
    _, outputs, inputs = weight.shape
    return None if num_parts(inputs, outputs) == 1 else product_parts_ref(x, weight, layer, num_tokens)


PACKED = PackedProduct(as_it_is, dense_product_ref, stored_rows, None, gated_product_ref, _parts, _takes)
TWINS: Kernels = replace(
    REFERENCE_GPU,
    name="twins",
    packed=PACKED,
    rms_norm=partial(rms_norm_ref),
    layer_norm=partial(layer_norm_ref),
    add_rms_norm=add_rms_norm_ref,
    add_layer_norm=add_layer_norm_ref,
    rotate_write=rotate_write_ref,
).compared_with(REFERENCE_GPU)
