"""How often a step calls Pallas kernels, by what its model has."""

from jaxgen.core import operations
from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.kernels.kernels import Kernels
from jaxgen.kernels.proving.layer_shapes import named_products
from pallas_kernels.gpu.dense_support import num_parts

ATTENTION = 4
"""Of a layer: attention in pieces, their combination, attention of whole contexts, and cache writes."""
EXPERT_PRODUCTS = 2
"""Of a layer with experts: gates and values, and the way back."""


def of_layer(model: DecoderConfig, kernels: Kernels) -> int:
    """Return the calls of a layer."""
    products = sum(_calls(model, kernels, of_layers=True))
    qk_norms = 0 if model.attention.qk_norm is None else 2
    norms = len(model.layer_norms) + qk_norms if operations.NORMS in kernels.own else 0
    return ATTENTION + products + norms + (EXPERT_PRODUCTS if model.moe else 0)


def of_ends(model: DecoderConfig, kernels: Kernels, heads: int = 1) -> int:
    """Return the calls outside the layers. ``heads``: products with the head's weight."""
    norms = int(model.final_norm and operations.NORMS in kernels.own)
    return norms + heads * sum(_calls(model, kernels, of_layers=False))


def _calls(model: DecoderConfig, kernels: Kernels, *, of_layers: bool) -> list[int]:
    """Return the kernels of each product that is not XLA's: one, and one more to add two parts of its sums."""
    packed = kernels.packed
    shapes = [one for path, one in named_products(model) if model.weight_format(path) is None]
    return [
        1 if one.activation is not None else num_parts(one.inputs, one.outputs)
        for one in shapes
        if packed is not None and one.of_layers == of_layers and packed.packs((one.outputs, one.inputs), model.dtype)
    ]
