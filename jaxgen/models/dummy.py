"""Make random parameters of a model on the device, in the layout of its kernels: a server without weight files, to
measure speed and memory."""

from functools import partial
from math import prod

import jax
import jax.numpy as jnp
from flax import nnx

from jaxgen.core.mixed_weight import PartFormat
from jaxgen.core.model_config import ModelConfig
from jaxgen.core.plain_weight import PlainFormat
from jaxgen.core.quantization import FLOATS
from jaxgen.kernels.kernels import Kernels
from jaxgen.models.mixed_weight import map_parts
from jaxgen.models.model import PackedParams, abstract_params, dotted, initial_state
from jaxgen.models.placement import placed_formats, placing
from jaxgen.models.quantized_weight import Codes

SEED = 0
_UNIFORM_STD = 12**-0.5
"""Standard deviation of numbers that are uniform in a range of 1."""
_E2M1_STD = 2.9
"""Standard deviation of a random code of FP4 as a number, nearly."""


def dummy_params(config: ModelConfig, kernels: Kernels) -> PackedParams:
    """Return random parameters as ``load_params`` returns those of a checkpoint. The same seed gives the same bits.

    Largest first: a stack of layers is in memory twice while its layers are taken apart.
    """
    place, formats = placing(config, kernels), placed_formats(config, kernels)
    shapes = {path: leaf.shape for path, leaf in abstract_params(config).items()}
    result: PackedParams = {}
    for path in sorted(shapes, key=lambda path: (-prod(shapes[path]), path)):
        form = formats.get(path)
        value = _numbers(config, path) if form is None else map_parts(partial(_codes, path), shapes[path], form)
        result[path] = jax.block_until_ready(place(path, value))
    return {path: result[path] for path in shapes}


@partial(jax.jit, static_argnums=(0, 1))
def _numbers(config: ModelConfig, path: str) -> jax.Array:
    """Return the parameter as a new model has it."""
    leaves = {dotted(name): leaf for name, leaf in nnx.to_flat_state(initial_state(config, SEED))}
    value: jax.Array = leaves[path][...]
    return value


@partial(jax.jit, static_argnums=(0, 1, 2))
def _codes(path: str, shape: tuple[int, ...], form: PartFormat) -> Codes | jax.Array:
    """Return random codes of finite numbers, or numbers; their products with a row of unit length have unit length,
    nearly."""
    key = jax.random.fold_in(jax.random.key(SEED), hash_of(path))
    if isinstance(form, PlainFormat):
        return jax.random.normal(key, shape, jnp.dtype(form.dtype)) * shape[-1] ** -0.5
    arrays = form.arrays(shape)
    size, _ = arrays["codes"]
    if form.floats and form.bits == 8:
        numbers = jax.random.normal(key, size, jnp.bfloat16).astype(FLOATS[form.bits])
        codes, std = jax.lax.bitcast_convert_type(numbers, jnp.uint8), 1.0
    else:
        codes = jax.random.bits(key, size, jnp.uint8)
        std = _E2M1_STD if form.floats else 2.0**form.bits * _UNIFORM_STD
    scale = shape[-1] ** -0.5 / std
    lowest = -form.zero * scale
    fills = {"scales": scale, "block_scales": scale, "minimums": lowest, "block_minimums": lowest, "zeros": form.zero}
    parts: dict[str, jax.Array] = {
        name: jnp.full(of_groups, 1 if dtype == jnp.int8 else fills[name], dtype)
        for name, (of_groups, dtype) in arrays.items()
        if name in fills
    }
    order = jnp.broadcast_to(jnp.arange(shape[-1]), arrays["order"][0]) if form.ordered else None
    return Codes(codes, order=order, **parts)


def hash_of(path: str) -> int:
    """Return a number of 31 bits for a parameter's path, the same in every process."""
    return int.from_bytes(path.encode(), "big") % (2**31 - 1)
