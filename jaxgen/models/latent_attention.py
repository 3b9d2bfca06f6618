"""Multi-head latent attention: the cache has one row of a token, which all heads read."""

from dataclasses import replace

import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float

from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.latent_config import LATENT_EPS
from jaxgen.models.attention import RowNorm, attend
from jaxgen.models.kv_cache import KVCache
from jaxgen.models.linear import Linear, Shape
from jaxgen.models.mixed_weight import KernelWeight
from jaxgen.models.norms import make_norm
from jaxgen.models.stacked_weight import StackedWeight
from jaxgen.models.walk import LayerContext


class LatentAttention(nnx.Module):
    """Causal self-attention over latents, see LatentConfig.

    ``down`` gives the queries, or their latent, and the row of the cache. ``keys`` and ``values`` have a matrix for
    each head: from the plain numbers of a query to a latent, and from a latent to a value. A head's query has its
    rotated numbers first, and a row of the cache has them last.
    """

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs, stack: Shape):
        options, size, heads, dtype = config.latent, config.hidden_size, config.num_heads, config.dtype
        assert options is not None
        self.config, self.options = config, options
        queries, rank = heads * options.query, options.query_rank

        def linear(size_in: int, size_out: int, *of_heads: int) -> Linear:
            return Linear(size_in, size_out, bias=False, dtype=dtype, rngs=rngs, stack=(*stack, *of_heads))

        self.down = linear(size, (rank or queries) + options.row)
        norm = replace(config.norm, eps=LATENT_EPS)
        self.q_norm = None if rank is None else make_norm(norm, rank, dtype=dtype, stack=stack)
        self.q_up = None if rank is None else linear(rank, queries)
        self.kv_norm = make_norm(norm, options.rank, dtype=dtype, stack=stack)
        self.keys = linear(options.plain, options.rank, heads)
        self.values = linear(options.rank, options.values, heads)
        self.out = linear(heads * options.values, size)

    def __call__(
        self, x: Float[Array, "T D"], cache: KVCache, at: LayerContext
    ) -> tuple[Float[Array, "T HV"], KVCache]:
        """Return the output of all heads, and the cache with the tokens' rows."""
        projected = self.down(x, at.num_tokens)
        cache = cache.write(at.kind, at.place, self._rows(projected, at), None, at.slots)
        read = attend(self.config, self._queries(projected, at), cache, at, value_dim=self.options.rank)
        return _by_head(read, self.values, at).reshape(len(x), -1), cache

    def keys_values(self, x: Float[Array, "T D"], norm: RowNorm, cache: KVCache, at: LayerContext) -> KVCache:
        """Return the cache with the rows of ``norm(x)``; see ``Layer.keys_values``."""
        rows = self._rows(self.down(norm(x), at.num_tokens), at)
        return cache.write(at.kind, at.place, rows, None, at.slots)

    def _rows(self, projected: Float[Array, "T N"], at: LayerContext) -> Float[Array, "T 1 W"]:
        """Return the latent and the rotated numbers of each token."""
        options = self.options
        first = projected.shape[1] - options.row
        latents = self.kv_norm(projected[:, first : first + options.rank], at.num_tokens, at.kernels)
        rotated = at.kernels.rotated_heads(
            projected[:, first + options.rank :],
            at.positional.angles,
            at.num_tokens,
            first=0,
            heads=1,
            head_dim=options.rotated,
        )
        return jnp.concatenate([latents[:, None], rotated], axis=-1)

    def _queries(self, projected: Float[Array, "T N"], at: LayerContext) -> Float[Array, "T H W"]:
        """Return the queries in the space of latents, and their rotated numbers."""
        options, heads = self.options, self.config.num_heads
        if self.q_up is not None and self.q_norm is not None:
            latents = self.q_norm(projected[:, : options.query_rank], at.num_tokens, at.kernels)
            projected = self.q_up(latents, at.num_tokens)
        queries = at.kernels.rotated_heads(
            projected[:, : heads * options.query],
            at.positional.angles,
            at.num_tokens,
            first=0,
            heads=heads,
            head_dim=options.query,
        )
        rotated, plain = queries[..., : options.rotated], queries[..., options.rotated :]
        return jnp.concatenate([_by_head(plain, self.keys, at), rotated], axis=-1)


def _by_head(x: Float[Array, "T H I"], linear: Linear, at: LayerContext) -> Float[Array, "T H O"]:
    """Return the product of each head's rows with its matrix, rounded to the dtype of x.

    Heads are experts that all tokens go through: a kernel that packs weights multiplies no padding then.
    """
    weight = linear.weight.get_value()
    if not isinstance(weight, KernelWeight):
        weight = weight.data[weight.layer] if isinstance(weight, StackedWeight) else weight
        dimensions = (((2,), (2,)), ((1,), (0,)))
        product = lax.dot_general(
            x, weight, dimensions, precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32
        )
        return product.swapaxes(0, 1).astype(x.dtype)
    T, H, _ = x.shape
    count = jnp.maximum(jnp.asarray(at.num_tokens), 1)
    row = jnp.arange(T * H)
    sorted_rows = x[row % count, jnp.minimum(row // count, H - 1)]
    product = weight.expert_product(sorted_rows, jnp.arange(H + 1, dtype=jnp.int32) * count)
    places = jnp.arange(H) * count + jnp.minimum(jnp.arange(T), count - 1)[:, None]
    return product[places].astype(x.dtype)
