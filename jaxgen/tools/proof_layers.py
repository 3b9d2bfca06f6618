"""Products, norms and rotations of served steps, compared with float64. Products are timed next to XLA's."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jaxgen.kernels.choice import REFERENCE
from jaxgen.kernels.gpu_proof import prove_add_norm, prove_gated_product, prove_norm, prove_product, prove_rotation
from jaxgen.kernels.kernels import Kernels
from jaxgen.kernels.proving.layer_shapes import ProductShape
from jaxgen.kernels.proving.verdict import ServedShapes
from jaxgen.models.packed_weight import plain_product
from jaxgen.tools.proof_step import COUNTS

TIMED_ROWS = 64, 256, 1024
MOST_RATIO = 1 / 0.85
"""Largest ratio of times, ours to XLA's, with which our products are used."""
_LAYERS = 4
"""Weights of a product in a timed program: together more than the L2 cache holds."""
_CALLS, _TRIES = 10, 5


class TooSlowError(Exception):
    """XLA's kernels are faster."""


def check_products(shapes: ServedShapes, kernels: Kernels) -> str:
    """Return the times of products in words. Raises AssertionError if one is wrong, and TooSlowError."""
    product = kernels.packed
    assert product is not None, "there is one"
    budgets: dict[str, Any] = {"budgets": shapes.token_budgets, "counts": COUNTS, "dtype": shapes.dtype}
    plain = [one for one in shapes.products if one.form is None]
    taken = [one for one in plain if product.packs((one.outputs, one.inputs), shapes.dtype)]
    for one in taken:
        sizes: dict[str, Any] = {"inputs": one.inputs, "outputs": one.outputs, **budgets}
        if one.activation is not None and product.gated_product is not None:
            prove_gated_product(product.gated_product, activation=one.activation, **sizes)
        else:
            prove_product(product.product, **sizes)

    def seconds(products: list[ProductShape], rows: int, dtype: str, *, own: bool) -> float:
        return Timed(tuple(products), rows, dtype).seconds(_own(kernels) if own else _xla)

    return judged_times([one for one in taken if one.of_layers], shapes, seconds)


def check_norms(shapes: ServedShapes, kernels: Kernels) -> None:
    """Raise AssertionError if a norm is wrong."""
    for one in shapes.norms:
        norm = kernels.rms_norm if one.kind == "rms" else kernels.layer_norm
        about: dict[str, Any] = {"kind": one.kind, "width": one.width, "weight": one.weight, "bias": one.bias}
        about |= {"dtype": shapes.dtype, "budgets": shapes.token_budgets, "counts": COUNTS}
        prove_norm(norm, **about)
        adding = kernels.add_rms_norm if one.kind == "rms" else kernels.add_layer_norm
        if one.adds and adding is not None:
            prove_add_norm(adding, **about)


def check_rotation(shapes: ServedShapes, kernels: Kernels) -> None:
    """Raise AssertionError if queries, keys or values are wrong where one kernel makes and writes them."""
    assert kernels.rotate_write is not None, "there is one"
    assert shapes.rotation is not None, "the model has a description"
    heads: dict[str, Any] = {"heads": shapes.heads, "kv_heads": shapes.kv_heads, "head_dim": shapes.head_dim}
    budgets: dict[str, Any] = {"budgets": shapes.token_budgets, "counts": COUNTS, "dtype": shapes.dtype}
    budgets |= {"block_size": shapes.block_size, "codes": shapes.codes}
    for plan in {None, kernels.plan_attention}:
        prove_rotation(kernels.rotate_write, plan, **heads, **asdict(shapes.rotation), **budgets)


def judged_times(products: list[ProductShape], shapes: ServedShapes, seconds: Callable[..., float]) -> str:
    """Return in words how long the products of a layer take, of XLA's time; raise TooSlowError if that is too long.

    ``seconds``: (products, rows, dtype, own=...) -> the time of our products, or of XLA's. Empty without products.
    """
    if not products:
        return ""
    ratios = {}
    for rows in sorted({min(rows, max(shapes.token_budgets)) for rows in TIMED_ROWS}):
        own, xla = (seconds(products, rows, shapes.dtype, own=own) for own in (True, False))
        ratios[rows] = own / xla
    words = " and ".join(f"{ratio:.2f} of XLA's time at {rows} rows" for rows, ratio in ratios.items())
    if max(ratios.values()) > MOST_RATIO:
        raise TooSlowError(f"they take {words}, at most {MOST_RATIO:.2f} is worth it")
    return words


Multiply = Callable[[ProductShape, jax.Array, jax.Array | list[jax.Array], int], jax.Array]
"""(shape, rows, a stack of weights or the weights, layer) -> the product with the layer's weight."""


@dataclass(frozen=True)
class Timed:
    """The products of some layers, one after another, with ``rows`` rows each."""

    products: tuple[ProductShape, ...]
    rows: int
    dtype: str

    def seconds(self, multiply: Multiply) -> float:
        """Return the least time of the products, after one that is not counted."""
        xs = [jnp.ones((self.rows, one.inputs), self.dtype) for one in self.products]
        stacks = [jnp.full((_LAYERS, one.outputs, one.inputs), one.inputs**-0.5, self.dtype) for one in self.products]
        weights = [list(stack) for stack in stacks] if multiply is _xla else stacks

        @jax.jit
        def program(xs: list[jax.Array], weights: list[Any]) -> list[jax.Array]:
            given = list(zip(self.products, xs, weights, strict=True))
            return [multiply(one, x, weight, layer) for layer in range(_LAYERS) for one, x, weight in given]

        del stacks
        return least_seconds(partial(program, xs, weights))


def least_seconds(call: Callable[[], Any]) -> float:
    """Return the least time of a call of a program, of some that are dispatched together."""
    jax.block_until_ready(call())
    found = []
    for _ in range(_TRIES):
        began = time.perf_counter()
        for _ in range(_CALLS):
            last = call()
        jax.block_until_ready(last)
        found.append((time.perf_counter() - began) / _CALLS)
    return min(found)


def _own(kernels: Kernels) -> Multiply:
    packed = kernels.packed
    assert packed is not None, "there is one"

    def multiply(one: ProductShape, x: jax.Array, weight: Any, layer: int) -> jax.Array:
        given = x, weight, jnp.int32(layer), jnp.int32(len(x))
        if one.activation is not None and packed.gated_product is not None:
            gated: jax.Array = packed.gated_product(*given, activation=one.activation, dtype=x.dtype)
            return gated
        y: jax.Array = packed.product(*given, out_features=one.outputs, dtype=x.dtype)
        return y

    return multiply


def _xla(one: ProductShape, x: jax.Array, weight: Any, layer: int) -> jax.Array:
    wide = plain_product(x, weight[layer])
    if one.activation is None:
        return wide.astype(x.dtype)
    gated: jax.Array = REFERENCE.gated(wide, jnp.int32(len(x)), activation=one.activation, dtype=x.dtype)
    return gated
