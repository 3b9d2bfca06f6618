"""Gated delta net: a matrix of each head, which tokens change one after another, in place of K and V."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.decoder_parts import NormConfig
from jaxgen.core.layer_kind import DELTA_INPUTS, DELTA_STATES
from jaxgen.kernels.choice import DeltaState
from jaxgen.models.batch import StepBatch
from jaxgen.models.kv_cache import KVCache
from jaxgen.models.linear import Linear, Shape
from jaxgen.models.norms import make_norm
from jaxgen.models.short_convolution import Filter
from jaxgen.models.walk import LayerContext


class GatedDeltaNet(nnx.Module):
    """Queries, keys and values are filtered, then read and change the matrices; see pallas_kernels.gated_delta.

    ``in_proj``: to these and a gate z of each value. What heads read is normed and multiplied by silu(z), and ``out``
    projects it.
    """

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs, stack: Shape):
        options, width, dtype = config.delta, config.hidden_size, config.dtype
        assert options is not None
        self.options, names = options, [state.name for state in config.states]
        self.inputs, self.first = names.index(DELTA_INPUTS), names.index(DELTA_STATES[0])
        self.in_proj = Linear(width, options.channels + options.values, bias=False, dtype=dtype, rngs=rngs, stack=stack)
        self.gates = Linear(width, 2 * options.heads, bias=False, dtype=dtype, rngs=rngs, stack=stack)
        self.filter = Filter(options.taps, options.channels, bias=False, dtype=dtype, rngs=rngs, stack=stack)
        self.a_log = nnx.Param(jnp.zeros((*stack, options.heads), jnp.float32))
        self.dt_bias = nnx.Param(jnp.zeros((*stack, options.heads), jnp.float32))
        self.norm = make_norm(NormConfig(eps=config.norm.eps), options.value_dim, dtype=dtype, stack=stack)
        self.out = Linear(options.values, width, bias=False, dtype=dtype, rngs=rngs, stack=stack)

    def __call__(
        self, x: Float[Array, "T D"], cache: KVCache, at: LayerContext
    ) -> tuple[Float[Array, "T HD"], KVCache]:
        """Return what the heads read, and the cache with the states of the tokens' sequences."""
        batch, options, kernels = at.batch, self.options, at.kernels
        assert isinstance(batch, StepBatch), "only rows have states"
        chunks = at.place, batch.query_starts, batch.context_lens, batch.rows, batch.num_rows
        projected = self.in_proj(x, at.num_tokens)
        b, a = jnp.split(self.gates.in_float32(x, at.num_tokens), 2, axis=1)
        filtered, inputs = kernels.short_convolution(
            projected[:, : options.channels], self.filter.weight[...], None, cache.states[self.inputs], *chunks
        )
        state = DeltaState(*cache.states[self.first : self.first + len(DELTA_STATES)])
        read, state = kernels.gated_delta(filtered, a, b, self.a_log[...], self.dt_bias[...], state, *chunks)
        cache = cache.with_states(self.inputs, inputs)
        for number, array in enumerate(state, self.first):
            cache = cache.with_states(number, array)
        return self._gated(read, projected[:, options.channels :], at), cache

    def _gated(self, read: Float[Array, "T H Dv"], z: Float[Array, "T HD"], at: LayerContext) -> Float[Array, "T HD"]:
        """Return the norm of what each head reads, times its gate."""
        T, H, Dv = read.shape
        normed = self.norm(read.reshape(T * H, Dv), jnp.asarray(at.num_tokens) * H, at.kernels).reshape(T, H * Dv)
        return (normed.astype(jnp.float32) * jax.nn.silu(z.astype(jnp.float32))).astype(normed.dtype)
