"""The decoder that a DecoderConfig describes: one module for all families whose layers mix tokens and have an MLP."""

from collections.abc import Callable
from functools import partial

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxgen.arrays import ArrayLike
from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.layer_kind import LayerKind
from jaxgen.kernels.choice import REFERENCE
from jaxgen.kernels.kernels import Kernels
from jaxgen.models.attention import Attention, plan_attention
from jaxgen.models.batch import StepBatch
from jaxgen.models.gated_delta_net import GatedDeltaNet
from jaxgen.models.kv_cache import KVCache
from jaxgen.models.linear import Embedding, Linear, Shape
from jaxgen.models.mlp import MLP
from jaxgen.models.moe import MoE
from jaxgen.models.norms import Norm, make_norm, normed
from jaxgen.models.positions import Positional
from jaxgen.models.short_convolution import ShortConvolution
from jaxgen.models.walk import LayerContext, run_layer, walk

Mixer = Attention | ShortConvolution | GatedDeltaNet
_MIXERS: dict[LayerKind, tuple[str, type[Mixer]]] = {
    "attention": ("attn", Attention),
    "conv": ("conv", ShortConvolution),
    "delta": ("delta", GatedDeltaNet),
}
"""What mixes tokens in layers of a kind, and the name that its parameters have."""


def make_mlp(config: DecoderConfig, rngs: nnx.Rngs, stack: Shape) -> MLP | MoE:
    """Return the MLP of the layers, or the experts in its place."""
    if config.moe is None:
        return MLP(config, rngs=rngs, stack=stack)
    return MoE(config.moe, config.hidden_size, dtype=config.dtype, rngs=rngs, stack=stack)


class DecoderLayers(nnx.Module):
    """A stack of decoder layers of one kind; a slice by ``layer_stack`` is one layer."""

    def __init__(self, config: DecoderConfig, kind: LayerKind = "attention", *, rngs: nnx.Rngs):
        self.config, self.kind = config, kind
        stack = (len(config.layers_of_kind(kind)),)

        def norm(name: str) -> Norm | None:
            if name not in config.layer_norms:
                return None
            return make_norm(config.norm, config.hidden_size, dtype=config.dtype, stack=stack)

        self.attn_norm, self.attn_post_norm = norm("attn_norm"), norm("attn_post_norm")
        name, make = _MIXERS[kind]
        setattr(self, name, make(config, rngs=rngs, stack=stack))
        self.mlp_norm, self.mlp_post_norm = norm("mlp_norm"), norm("mlp_post_norm")
        self.mlp = make_mlp(config, rngs, stack)

    def positional(self, positions: Int[Array, "T"]) -> Positional:
        """Return what the layers make of the tokens' positions."""
        return Positional.of(self.config, positions)

    @property
    def mixer(self) -> Mixer:
        """What mixes the tokens of each sequence."""
        mixer: Mixer = getattr(self, _MIXERS[self.kind][0])
        return mixer

    @property
    def input_norm(self) -> Norm | None:
        """The norm of the layer's input before the projections, if there is one."""
        return None if self.config.placement == "post_sum" else self.attn_norm

    def __call__(self, x: Float[Array, "T D"], cache: KVCache, at: LayerContext) -> tuple[Float[Array, "T D"], KVCache]:
        """Return the layer's output, and the cache with its K and V, or with its states."""
        placement, add = self.config.placement, partial(self._add, at=at)
        read = normed(self.input_norm, x, at)
        mixed, cache = self.mixer(read, cache, at)
        attended = add(partial(self.mixer.out, mixed, at.num_tokens), self.attn_post_norm, x)
        if placement == "post_sum":
            attended = normed(self.attn_norm, attended, at)
            return normed(self.mlp_norm, add(partial(self.mlp, attended, at), None, attended), at), cache
        if placement == "parallel_two":
            read = normed(self.mlp_norm, x, at)
        elif placement != "parallel":
            read = normed(self.mlp_norm, attended, at)
        return add(partial(self.mlp, read, at), self.mlp_post_norm, attended), cache

    def keys_values(self, x: Float[Array, "T D"], cache: KVCache, at: LayerContext) -> KVCache:
        """Return the cache with K and V of tokens with these inputs; see ``Layer.keys_values``."""
        mixer = self.mixer
        if not isinstance(mixer, Attention):
            return cache
        return mixer.keys_values(x, partial(normed, self.input_norm, at=at), cache, at)

    def _add(
        self,
        branch: Callable[..., Float[Array, "T D"]],
        norm: Norm | None,
        x: Float[Array, "T D"],
        at: LayerContext,
    ) -> Float[Array, "T D"]:
        """Return x + residual_scale * norm(branch), which is one operation where there is neither norm nor scale."""
        scale = self.config.residual_scale
        if norm is None and scale == 1.0:
            return branch(residual=x)
        y = normed(norm, branch(residual=None), at)
        return x + (y if scale == 1.0 else (y.astype(jnp.float32) * scale).astype(y.dtype))


class LayerStacks(nnx.Module):
    """The layers of a model with several kinds: a stack for each, by its name."""

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs):
        self.kinds = config.stacks
        for kind in self.kinds:
            setattr(self, kind, DecoderLayers(config, kind, rngs=rngs))


class Decoder(nnx.Module):
    """A decoder: from tokens of a StepBatch to hidden states, and from hidden states to logits."""

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs):
        self.config = config
        width, dtype, offset = config.hidden_size, config.dtype, config.positions.table_offset
        narrow, tied = config.embedding_width, config.head.tied
        embedding = partial(Embedding, dtype=dtype, rngs=rngs)
        self.embed = embedding(config.vocab_size, narrow, head=tied)
        self.positions = None if offset is None else embedding(config.max_position + offset, width, head=False)
        linear = partial(Linear, bias=False, dtype=dtype, rngs=rngs)
        self.project_in = None if narrow == width else linear(narrow, width)
        self.project_out = None if narrow == width else linear(width, narrow)
        self.layers = (LayerStacks if config.stacks else DecoderLayers)(config, rngs=rngs)
        self.norm = make_norm(config.norm, width, dtype=dtype) if config.final_norm else None
        self.lm_head = None if tied else embedding(config.vocab_size, narrow, head=True, bias=config.head.bias)

    def __call__(self, batch: StepBatch, cache: KVCache) -> tuple[Float[Array, "T E"], KVCache]:
        """Return the final hidden states (of the embedding's width) of all tokens, and the cache with their K and V."""
        batch = plan_attention(self.config, cache, batch)
        carry = self.embedded(batch), cache
        x, cache = walk(self.stacks, self.config, batch, cache.kernels, run_layer, carry)
        return self.final(x, batch, cache.kernels), cache

    @property
    def stacks(self) -> tuple[DecoderLayers, ...]:
        """The stacks of its layers' parameters; see ``ModelConfig.layer_stacks``."""
        if isinstance(self.layers, LayerStacks):
            return tuple([getattr(self.layers, kind) for kind in self.layers.kinds])
        return (self.layers,)

    def embedded(self, batch: StepBatch) -> Float[Array, "T D"]:
        """Return the input of the first layer."""
        x = self.embed(batch.tokens)
        if self.config.embed_scale != 1.0:
            x = x * jnp.asarray(self.config.embed_scale, x.dtype)
        if self.project_in is not None:
            x = self.project_in(x, batch.num_tokens)
        if self.positions is not None:
            x = x + self.positions(batch.positions + (self.config.positions.table_offset or 0))
        return x

    def final(self, x: Float[Array, "T D"], batch: StepBatch, kernels: Kernels) -> Float[Array, "T E"]:
        """Return the final hidden states from the last layer's output."""
        if self.norm is not None:
            # On a CPU the twin, so that answers keep the bits that they always had.
            x = self.norm(x, batch.num_tokens, kernels if kernels.separate_layers else REFERENCE)
        if self.project_out is not None:
            x = self.project_out(x, batch.num_tokens)
        return x

    @property
    def _head(self) -> Embedding:
        return self.embed if self.lm_head is None else self.lm_head

    def head_products(self, hidden: Float[Array, "n E"], num_rows: Int[ArrayLike, ""]) -> Float[Array, "n V"]:
        """Return the head's products of hidden states in float32, of which only the first ``num_rows`` are needed."""
        return self._head.products(hidden, num_rows)

    def logits(self, products: Float[Array, "n V"]) -> Float[Array, "n V"]:
        """Return the logits of the head's products: with its bias, its scale and its soft cap."""
        options = self.config.head
        logits = self._head.biased(products)
        if options.scale != 1.0:
            logits = logits * options.scale
        return logits if options.soft_cap is None else options.soft_cap * jnp.tanh(logits / options.soft_cap)
