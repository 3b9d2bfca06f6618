"""Products of served steps with quantized weights, compared with float64, and timed next to XLA's."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxgen.kernels.choice import REFERENCE, REFERENCE_GPU, GroupedCodes
from jaxgen.kernels.code_support import code_trouble
from jaxgen.kernels.gpu_proof import prove_coded_product
from jaxgen.kernels.kernels import Kernels, QuantizedProduct
from jaxgen.kernels.proving.layer_shapes import ProductShape
from jaxgen.kernels.proving.verdict import ServedShapes
from jaxgen.tools.proof_layers import judged_times, least_seconds
from jaxgen.tools.proof_step import COUNTS


def check_coded_products(shapes: ServedShapes, kernels: Kernels) -> str:
    """Return the times of products in words; empty: there are none. Raises AssertionError and TooSlowError."""
    about: dict[str, Any] = {"dtype": shapes.dtype, "fp8_inputs": shapes.fp8_inputs}
    coded = [one for one in shapes.products if one.form is not None and code_trouble(one, **about) is None]
    for one in coded:
        prove_coded_product(kernels, one, shapes.dtype, shapes.token_budgets, COUNTS)
    return judged_times([one for one in coded if one.of_layers], shapes, partial(_seconds, kernels))


def _seconds(kernels: Kernels, products: list[ProductShape], rows: int, dtype: str, *, own: bool) -> float:
    """Return the least time of products with ``rows`` rows, of these kernels or of XLA."""
    weights, kinds = [], [_product_of(kernels if own else REFERENCE_GPU, one) for one in products]
    for one, product in zip(products, kinds, strict=True):
        weights.append(_weight(one, product))
    xs = [jnp.ones((rows, one.inputs), dtype) for one in products]

    @jax.jit
    def program(xs: list[jax.Array], weights: list[Any]) -> list[jax.Array]:
        given = zip(products, kinds, xs, weights, strict=True)
        return [_multiply(one, product, x, weight) for one, product, x, weight in given]

    return least_seconds(partial(program, xs, weights))


def _product_of(kernels: Kernels, one: ProductShape) -> QuantizedProduct:
    assert one.form is not None, "it is quantized"
    product = kernels.floats if one.form.floats else kernels.quantized
    assert product is not None, "GPUs multiply all codes"
    return product


def _weight(one: ProductShape, product: QuantizedProduct) -> GroupedCodes:
    """Return a weight of equal numbers."""
    form = one.form
    assert form is not None, "it is quantized"
    codes = jnp.ones((1, one.outputs, one.inputs), jnp.uint8)
    scales = jnp.full((1, one.outputs, form.num_groups(one.inputs)), one.inputs**-0.5, form.scale_dtype)
    return GroupedCodes(product.pack_codes(codes, bits=form.bits), product.pack_groups(scales))


def _multiply(one: ProductShape, product: QuantizedProduct, x: jax.Array, weight: GroupedCodes) -> jax.Array:
    form, given = one.form, (x, weight, jnp.int32(0), jnp.int32(len(x)))
    assert form is not None, "it is quantized"
    group = form.group or one.inputs
    if one.activation is not None and product.gated_product is not None:
        gated: jax.Array = product.gated_product(*given, group=group, activation=one.activation, dtype=x.dtype)
        return gated
    about: dict[str, Any] = {"bits": form.bits, "group": group, "out_features": one.outputs}
    wide: jax.Array = product.product(*given, **about)
    if one.activation is None:
        return wide.astype(x.dtype)
    result: jax.Array = REFERENCE.gated(wide, given[-1], activation=one.activation, dtype=x.dtype)
    return result
