"""Which parameters are packed, and how: the matrices that products read, where the kernels have a packed product."""

import jax
from flax import nnx

from jaxgen.config import ModelConfig
from jaxgen.kernels import Kernels
from jaxgen.models import PackedParams, abstract_model, abstract_params, dotted
from jaxgen.models.layers import Matrix
from jaxgen.packed_weight import PackedWeight


def pack_params(config: ModelConfig, params: PackedParams, kernels: Kernels) -> PackedParams:
    """The parameters as programs of these kernels read them.

    Takes them one by one out of ``params``, so that no more than one of them is in memory twice. What is packed
    already stays.
    """
    if kernels.packed is None:
        return params
    packed = {}
    matrices = {dotted(path) for path, leaf in nnx.to_flat_state(abstract_model(config)[1]) if isinstance(leaf, Matrix)}
    for path in list(params):
        value = params.pop(path)
        pack = path in matrices and not isinstance(value, PackedWeight)
        packed[path] = PackedWeight.pack(value, kernels.packed) if pack else value
    return packed


def abstract_packed_params(config: ModelConfig, kernels: Kernels) -> PackedParams:
    """Shapes and dtypes of what ``pack_params`` returns."""
    packed: PackedParams = jax.eval_shape(lambda params: pack_params(config, params, kernels), abstract_params(config))
    return packed
