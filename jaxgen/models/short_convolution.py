"""Gated short convolution: projections around a filter over neighbours, which a layer has in place of attention."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.layer_kind import CONV_STATE
from jaxgen.models.batch import StepBatch
from jaxgen.models.kv_cache import KVCache
from jaxgen.models.linear import Linear, Shape, normal
from jaxgen.models.walk import LayerContext


class Filter(nnx.Module):
    """The taps of each channel, [*stack, taps, channels], the last that of the token itself."""

    def __init__(self, taps: int, channels: int, *, bias: bool, dtype: str, rngs: nnx.Rngs, stack: Shape):
        self.weight = nnx.Param(normal(rngs, (*stack, taps, channels), dtype))
        self.bias = nnx.Param(jnp.zeros((*stack, channels), jnp.dtype(dtype))) if bias else None


class ShortConvolution(nnx.Module):
    """Mixes each token with those before it by a filter; see pallas_kernels.short_convolution.

    The output is what ``out`` projects.
    """

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs, stack: Shape):
        options, width, dtype = config.convolution, config.hidden_size, config.dtype
        assert options is not None
        self.which = [state.name for state in config.states].index(CONV_STATE)
        self.in_proj = Linear(width, 3 * width, bias=options.bias, dtype=dtype, rngs=rngs, stack=stack)
        self.filter = Filter(options.taps, width, bias=options.bias, dtype=dtype, rngs=rngs, stack=stack)
        self.out = Linear(width, width, bias=options.bias, dtype=dtype, rngs=rngs, stack=stack)

    def __call__(self, x: Float[Array, "T D"], cache: KVCache, at: LayerContext) -> tuple[Float[Array, "T D"], KVCache]:
        """Return the filtered tokens, and the cache with the states of their sequences."""
        batch, bias = at.batch, self.filter.bias
        assert isinstance(batch, StepBatch), "only rows have states"
        out, states = at.kernels.short_convolution(
            self.in_proj(x, at.num_tokens),
            self.filter.weight[...],
            None if bias is None else bias[...],
            cache.states[self.which],
            at.place,
            batch.query_starts,
            batch.context_lens,
            batch.rows,
            batch.num_rows,
        )
        return out, cache.with_states(self.which, states)
