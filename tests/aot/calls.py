"""How often a step calls Pallas kernels, by what its model has."""

from collections.abc import Iterable
from functools import partial

from jaxgen.core import operations
from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.layer_kind import ONE_STACK, Stack
from jaxgen.kernels.code_support import code_trouble
from jaxgen.kernels.kernels import Kernels
from jaxgen.kernels.proving.layer_shapes import ProductShape, named_products, parts_of, products_of_layer
from pallas_kernels.gpu.dense_support import num_parts

ATTENTION = 4
"""Of a layer: attention in pieces, their combination, attention of whole contexts, and cache writes, with the norms of
queries and keys if rotations are a kernel's."""
DELTA_NET = 2
"""Of a layer that is a gated delta net: its tokens, and the keys that it keeps."""
JOINED = tuple(f"layers.{name}.weight" for name in ("attn.out", "conv.out", "delta.out", "mlp.down"))
"""Products whose parts the next norm may add."""
EXPERT_PRODUCTS = 2
"""Of a layer with experts: gates and values, and the way back."""


def of_layer(model: DecoderConfig, kernels: Kernels, stack: Stack = ONE_STACK) -> int:
    """Return the calls of a layer in a stack."""
    products, kind = sum(_calls(model, kernels, products_of_layer(model, stack))), stack.kind
    qk_norms = 0 if model.attention.qk_norm is None or operations.ROTATION in kernels.own else 2
    norms_of_kind = {"attention": qk_norms, "conv": 0, "delta": 1}[kind]
    norms = len(model.layer_norms) + norms_of_kind if operations.NORMS in kernels.own else 0
    nets = DELTA_NET if operations.DELTA_NETS in kernels.own else 0
    mixing = {"attention": ATTENTION, "conv": 0, "delta": nets}[kind]
    return mixing + products + norms + (EXPERT_PRODUCTS if model.moe and not stack.dense else 0)


def of_layers(model: DecoderConfig, kernels: Kernels) -> int:
    """Return the calls of all layers."""
    return sum(len(model.layers_in(stack)) * of_layer(model, kernels, stack) for stack in model.stacks or (ONE_STACK,))


def of_ends(model: DecoderConfig, kernels: Kernels, heads: int = 1) -> int:
    """Return the calls outside the layers. ``heads``: products with the head's weight."""
    norms = int(model.final_norm and operations.NORMS in kernels.own)
    of_head = ((path, one) for path, one in named_products(model) if not one.of_layers)
    return plans(model, kernels) + norms + heads * sum(_calls(model, kernels, of_head))


def plans(model: DecoderConfig, kernels: Kernels) -> int:
    """Return the kernels that make plans of attention: on Hopper one for each window."""
    if not isinstance(kernels.plan_attention, partial) or not kernels.plan_attention.keywords["in_kernel"]:
        return 0
    return len(set(model.windows) or {None})


def _calls(model: DecoderConfig, kernels: Kernels, products: Iterable[tuple[str, ProductShape]]) -> list[int]:
    """Return the kernels of each product that is not XLA's: one, and one more to add two parts, unless a norm does."""
    packed = kernels.packed
    joined = JOINED if model.placement == "pre" and not model.attention.out_bias and kernels.joins_sums else ()
    shapes = [(path, part) for path, one in products for part in parts_of(model, path, one)]
    return [
        1 if path in joined or one.activation is not None else num_parts(one.inputs, one.outputs)
        for path, one in shapes
        if packed is not None and packed.packs((one.outputs, one.inputs), model.dtype)
        if one.form is None or code_trouble(one, model.dtype, fp8_inputs=model.fp8_inputs) is None
    ]
