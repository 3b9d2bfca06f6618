"""Kernels as Hopper has them, with the plain twins of the products and norms: a CPU runs programs of their shape."""

from dataclasses import replace
from functools import partial

from jaxgen.kernels.choice import REFERENCE_GPU
from jaxgen.kernels.kernels import Kernels, PackedProduct
from jaxgen.kernels.references import as_it_is, stored_rows
from pallas_kernels.dense_product import dense_product_ref, gated_product_ref
from pallas_kernels.norms import layer_norm_ref, rms_norm_ref


def _takes(inputs: int, outputs: int, dtype: str) -> bool:
    return inputs % 64 == 0 and outputs % 16 == 0


PACKED = PackedProduct(as_it_is, dense_product_ref, stored_rows, None, gated_product_ref, _takes)
TWINS: Kernels = replace(
    REFERENCE_GPU,
    name="twins",
    packed=PACKED,
    rms_norm=partial(rms_norm_ref),
    layer_norm=partial(layer_norm_ref),
).compared_with(REFERENCE_GPU)
