"""OPT (Zhang et al., arXiv 2205.01068): learned positions, LayerNorm before each sub-layer or, in the 350m variant,
after each residual sum, with projections between a narrower embedding and the stack."""

from collections.abc import Callable
from functools import partial

import jax
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxgen.arrays import ArrayLike
from jaxgen.core.config import OPTConfig
from jaxgen.kernels.choice import REFERENCE
from jaxgen.models.attention import plan_attention
from jaxgen.models.batch import StepBatch
from jaxgen.models.kv_cache import KVCache
from jaxgen.models.layers import Angles, Attention, Embedding, LayerNorm, Linear, Shape, scan_layers

POSITION_OFFSET = 2
"""Unused rows at the start of OPT's position table."""

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "gelu": partial(jax.nn.gelu, approximate=False),
}


class MLP(nnx.Module):
    """residual + down(activation(up(x)))."""

    def __init__(self, config: OPTConfig, *, rngs: nnx.Rngs, stack: Shape):
        width, inner = config.hidden_size, config.intermediate_size
        self.up = Linear(width, inner, bias=config.bias, dtype=config.dtype, rngs=rngs, stack=stack)
        self.down = Linear(inner, width, bias=config.bias, dtype=config.dtype, rngs=rngs, stack=stack)
        self.activation = config.activation

    def __call__(
        self, x: Float[Array, "T D"], num_tokens: Int[ArrayLike, ""], residual: Float[Array, "T D"]
    ) -> Float[Array, "T D"]:
        return self.down(ACTIVATIONS[self.activation](self.up(x, num_tokens)), num_tokens, residual)


class OPTLayers(nnx.Module):
    """All decoder layers, stacked; a slice by ``scan_layers`` is one layer."""

    def __init__(self, config: OPTConfig, *, rngs: nnx.Rngs):
        self.pre_norm = config.pre_norm
        stack = (config.num_layers,)
        norm = partial(LayerNorm, config.hidden_size, affine=config.norm_affine, dtype=config.dtype, stack=stack)
        self.attn_norm = norm()
        self.attn = Attention(config, bias=config.bias, rngs=rngs, stack=stack)
        self.mlp_norm = norm()
        self.mlp = MLP(config, rngs=rngs, stack=stack)

    def angles(self, positions: Int[Array, "T"]) -> Angles | None:
        """Return None: OPT has no rotary embedding."""
        del positions
        return None

    @property
    def input_norm(self) -> LayerNorm | None:
        """The norm of the layer's input before the projections, if there is one."""
        return self.attn_norm if self.pre_norm else None

    def __call__(
        self, x: Float[Array, "T D"], cache: KVCache, index: Int[Array, ""], batch: StepBatch, angles: Angles | None
    ) -> tuple[Float[Array, "T D"], KVCache]:
        """Return the layer's output, and the cache with its K and V in layer ``index``."""
        num_tokens, kernels = batch.num_tokens, cache.kernels
        if self.pre_norm:
            x, cache = self.attn(self.attn_norm(x, num_tokens, kernels), cache, index, batch, angles, x)
            return self.mlp(self.mlp_norm(x, num_tokens, kernels), num_tokens, x), cache
        x, cache = self.attn(x, cache, index, batch, angles, x)
        x = self.attn_norm(x, num_tokens, kernels)
        return self.mlp_norm(self.mlp(x, num_tokens, x), num_tokens, kernels), cache


class OPT(nnx.Module):
    """The decoder: from tokens of a StepBatch to hidden states, and from hidden states to logits."""

    def __init__(self, config: OPTConfig, *, rngs: nnx.Rngs):
        self.config = config
        width, dtype = config.hidden_size, config.dtype
        narrow = config.embed_size != width
        embedding = partial(Embedding, dtype=dtype, rngs=rngs)
        self.embed = embedding(config.vocab_size, config.embed_size, head=config.tie_embeddings)
        self.positions = embedding(config.max_position + POSITION_OFFSET, width, head=False)
        self.project_in = Linear(config.embed_size, width, bias=False, dtype=dtype, rngs=rngs) if narrow else None
        self.layers = OPTLayers(config, rngs=rngs)
        final = config.pre_norm and config.final_norm
        self.norm = LayerNorm(width, affine=config.norm_affine, dtype=dtype) if final else None
        self.project_out = Linear(width, config.embed_size, bias=False, dtype=dtype, rngs=rngs) if narrow else None
        self.lm_head = None if config.tie_embeddings else embedding(config.vocab_size, config.embed_size, head=True)

    def __call__(self, batch: StepBatch, cache: KVCache) -> tuple[Float[Array, "T E"], KVCache]:
        """Return the final hidden states (of the embedding's width) of all tokens, and the cache with their K and V."""
        batch = plan_attention(self.config, cache, batch)
        x, cache = scan_layers(self.layers, self.config.num_layers, self.embedded(batch), cache, batch)
        return self.final(x, batch), cache

    def embedded(self, batch: StepBatch) -> Float[Array, "T D"]:
        """Return the input of the first layer."""
        x = self.embed(batch.tokens)
        if self.project_in is not None:
            x = self.project_in(x, batch.num_tokens)
        return x + self.positions(batch.positions + POSITION_OFFSET)

    def final(self, x: Float[Array, "T D"], batch: StepBatch) -> Float[Array, "T E"]:
        """Return the final hidden states from the last layer's output."""
        if self.norm is not None:
            x = self.norm(x, batch.num_tokens, REFERENCE)
        if self.project_out is not None:
            x = self.project_out(x, batch.num_tokens)
        return x

    def logits(self, hidden: Float[Array, "n E"], num_rows: Int[ArrayLike, ""]) -> Float[Array, "n V"]:
        """Return float32 logits of hidden states, of which only the first ``num_rows`` are needed."""
        head = self.embed if self.lm_head is None else self.lm_head
        return head.logits(hidden, num_rows)
