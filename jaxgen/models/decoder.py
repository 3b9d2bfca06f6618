"""The decoder that a DecoderConfig describes: one module for all families whose layers mix tokens and have an MLP."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxgen.arrays import ArrayLike
from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.layer_kind import ATTENTION_KINDS, ONE_STACK, LayerKind, Stack
from jaxgen.kernels.choice import REFERENCE
from jaxgen.kernels.kernels import Kernels
from jaxgen.models.attention import Attention, plan_attention
from jaxgen.models.batch import StepBatch
from jaxgen.models.gated_delta_net import GatedDeltaNet
from jaxgen.models.kv_cache import KVCache
from jaxgen.models.latent_attention import LatentAttention
from jaxgen.models.layer_embedding import LayerEmbeddings, LayerInput
from jaxgen.models.linear import Embedding, Linear, Shape
from jaxgen.models.mlp import MLP
from jaxgen.models.moe import MoE
from jaxgen.models.norms import Norm, make_norm, normed, summed
from jaxgen.models.positions import Positional
from jaxgen.models.residual import Residual
from jaxgen.models.short_convolution import ShortConvolution
from jaxgen.models.walk import LayerContext, run_layer, walk

Mixer = Attention | LatentAttention | ShortConvolution | GatedDeltaNet
_MIXERS: dict[LayerKind, tuple[str, Callable[..., Mixer]]] = {
    "attention": ("attn", Attention),
    "global": ("attn", partial(Attention, kind="global")),
    "reader": ("attn", partial(Attention, kind="reader")),
    "global_reader": ("attn", partial(Attention, kind="global_reader")),
    "latent": ("attn", LatentAttention),
    "conv": ("conv", ShortConvolution),
    "delta": ("delta", GatedDeltaNet),
}
"""What mixes tokens in layers of a kind, and the name that its parameters have."""


def make_mlp(config: DecoderConfig, of: Stack, rngs: nnx.Rngs, stack: Shape) -> MLP | MoE:
    """Return the MLP of the layers in a stack, or the experts in its place unless they are dense."""
    if config.moe is None or of.dense:
        return MLP(config, of.kind, rngs=rngs, stack=stack)
    about: dict[str, Any] = {"norm": config.norm, "divided": config.num_devices > 1}
    return MoE(config.moe, config.hidden_size, dtype=config.dtype, rngs=rngs, stack=stack, **about)


class DecoderLayers(nnx.Module):
    """A stack of decoder layers of one kind; a slice by ``layer_stack`` is one layer."""

    def __init__(self, config: DecoderConfig, of: Stack = ONE_STACK, *, rngs: nnx.Rngs):
        self.config, self.kind = config, of.kind
        stack = (len(config.layers_in(of)),)

        def norm(name: str) -> Norm | None:
            if name not in config.layer_norms:
                return None
            return make_norm(config.norm, config.hidden_size, dtype=config.dtype, stack=stack)

        self.attn_norm, self.attn_post_norm = norm("attn_norm"), norm("attn_post_norm")
        name, make = _MIXERS[of.kind]
        setattr(self, name, make(config, rngs=rngs, stack=stack))
        self.mlp_norm, self.mlp_post_norm = norm("mlp_norm"), norm("mlp_post_norm")
        self.mlp = make_mlp(config, of, rngs, stack)
        self.embedding = None if config.layer_embedding is None else LayerInput(config, rngs=rngs, stack=stack)
        self.scale = nnx.Param(jnp.ones((*stack, 1), jnp.float32)) if config.layer_scale else None

    def positional(self, positions: Int[Array, "T"]) -> Positional:
        """Return what the layers make of the tokens' positions."""
        return Positional.of(self.config, positions, self.kind) if self.kind in ATTENTION_KINDS else Positional()

    @property
    def mixer(self) -> Mixer:
        """What mixes the tokens of each sequence."""
        mixer: Mixer = getattr(self, _MIXERS[self.kind][0])
        return mixer

    @property
    def input_norm(self) -> Norm | None:
        """The norm of the layer's input before the projections, if there is one."""
        return None if self.config.placement == "post_sum" else self.attn_norm

    def __call__(self, x: Residual, cache: KVCache, at: LayerContext) -> tuple[Residual, KVCache]:
        """Return the layer's output, and the cache with its K and V, or with its states."""
        placement, told = self.config.placement, (at.num_tokens, at.kernels)
        x, read = summed(self.input_norm, x, *told)
        mixed, cache = self.mixer(read, cache, at)
        out = partial(self.mixer.out.added, mixed, at.num_tokens)
        if placement in ("parallel", "parallel_two"):
            attended = self._add(out, None, x, at)
            read = read if placement == "parallel" else normed(self.mlp_norm, x, at)
        elif placement == "post_sum":
            _, attended = summed(self.attn_norm, self._add(out, None, x, at, joins=True), *told)
            total = self._add(partial(self.mlp, attended, at), None, attended, at, joins=True)
            return summed(self.mlp_norm, total, *told)[1], cache
        else:
            joins = self.mlp_norm is not None
            attended, read = summed(self.mlp_norm, self._add(out, self.attn_post_norm, x, at, joins=joins), *told)
        joins = at.joins and self.input_norm is not None and self.embedding is None and self.scale is None
        result = self._add(partial(self.mlp, read, at), self.mlp_post_norm, attended, at, joins=joins)
        result = result if self.embedding is None else self.embedding(result, at)
        if self.scale is not None:
            result = (result.astype(jnp.float32) * self.scale[...]).astype(result.dtype)
        return result, cache

    def keys_values(self, x: Float[Array, "T D"], cache: KVCache, at: LayerContext) -> KVCache:
        """Return the cache with K and V of tokens with these inputs; see ``Layer.keys_values``."""
        mixer = self.mixer
        if not isinstance(mixer, Attention | LatentAttention):
            return cache
        return mixer.keys_values(x, partial(normed, self.input_norm, at=at), cache, at)

    def _add(
        self,
        branch: Callable[..., Any],
        norm: Norm | None,
        x: Float[Array, "T D"],
        at: LayerContext,
        *,
        joins: bool = False,
    ) -> Any:
        """Return x + residual_scale * norm(branch), which is one operation where there is neither norm nor scale.

        ``joins``: whether a norm follows that may add what the branch ends with.
        """
        scale = self.config.residual_scale
        if norm is None and scale == 1.0:
            return branch(residual=x, joins=joins and at.kernels.joins_sums)
        y = normed(norm, branch(residual=None), at)
        return x + (y if scale == 1.0 else (y.astype(jnp.float32) * scale).astype(y.dtype))


class LayerStacks(nnx.Module):
    """The layers of a model with several stacks, each by its name."""

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs):
        self.names = tuple([stack.name for stack in config.stacks])
        for stack in config.stacks:
            setattr(self, stack.name, DecoderLayers(config, stack, rngs=rngs))


class Decoder(nnx.Module):
    """A decoder: from tokens of a StepBatch to hidden states, and from hidden states to logits."""

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs):
        self.config = config
        width, dtype, offset = config.hidden_size, config.dtype, config.positions.table_offset
        narrow, tied = config.embedding_width, config.head.tied
        embedding = partial(Embedding, dtype=dtype, rngs=rngs)
        self.embed = embedding(config.vocab_size, narrow, head=tied)
        self.layer_embedding = None if config.layer_embedding is None else LayerEmbeddings(config, rngs=rngs)
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
        x = self.embedded(batch)
        batch, carry = self.with_layer_inputs(batch, x, cache.kernels), (x, cache)
        joins = self.norm is not None and cache.inputs is None
        x, cache = walk(self.stacks, self.config, batch, cache.kernels, run_layer, carry, joins=joins)
        return self.final(x, batch, cache.kernels), cache

    @property
    def stacks(self) -> tuple[DecoderLayers, ...]:
        """The stacks of its layers' parameters; see ``ModelConfig.layer_stacks``."""
        if isinstance(self.layers, LayerStacks):
            return tuple([getattr(self.layers, name) for name in self.layers.names])
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

    def with_layer_inputs(self, batch: StepBatch, x: Float[Array, "T D"], kernels: Kernels) -> StepBatch:
        """Return the batch with what each layer takes of its tokens, whose embeddings are ``x``."""
        if self.layer_embedding is None:
            return batch
        return replace(batch, layer_inputs=self.layer_embedding(batch, x, kernels))

    def final(self, x: Residual, batch: StepBatch, kernels: Kernels) -> Float[Array, "T E"]:
        """Return the final hidden states from the last layer's output."""
        # On a CPU the twin, so that answers keep the bits that they always had.
        _, x = summed(self.norm, x, batch.num_tokens, kernels if kernels.separate_layers else REFERENCE)
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
