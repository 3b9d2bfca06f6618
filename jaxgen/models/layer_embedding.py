"""Embeddings of tokens for each layer: made at the start of a step, and added by each layer to what it passes on."""

from math import sqrt

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxgen.arrays import ArrayLike
from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.kernels.kernels import Kernels
from jaxgen.models.batch import StepBatch
from jaxgen.models.linear import Embedding, Linear, Shape
from jaxgen.models.norms import make_norm, normed
from jaxgen.models.walk import LayerContext


class LayerEmbeddings(nnx.Module):
    """For each layer the mean, times the root of 2, of a token's row of a table and a projection of its embedding."""

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs):
        options = config.layer_embedding
        assert options is not None
        self.num_layers, self.width, self.dtype = config.num_layers, options.width, config.dtype
        size = config.num_layers * options.width
        self.table = Embedding(options.vocab_size, size, head=False, dtype=config.dtype, rngs=rngs)
        self.project = Linear(config.hidden_size, size, bias=False, dtype=config.dtype, rngs=rngs)
        self.norm = make_norm(config.norm, options.width, dtype=config.dtype)

    def __call__(self, batch: StepBatch, x: Float[Array, "T D"], kernels: Kernels) -> Float[Array, "L T d"]:
        """Return what each layer takes of the tokens, whose embeddings are ``x``."""
        num_tokens: Int[ArrayLike, ""] = batch.num_tokens
        shape = len(x), self.num_layers, self.width
        projected = (self.project.in_float32(x, num_tokens) * x.shape[1] ** -0.5).astype(x.dtype)
        rows = projected.reshape(-1, self.width)
        projected = self.norm(rows, jnp.asarray(num_tokens) * self.num_layers, kernels).reshape(shape)
        looked_up = self.table(batch.tokens).reshape(shape) * jnp.asarray(sqrt(self.width), x.dtype)
        both = (projected + looked_up) * jnp.asarray(sqrt(0.5), x.dtype)
        return both.swapaxes(0, 1)


class LayerInput(nnx.Module):
    """x + norm(out(activation(gate(x)) * what the layer takes of the token))."""

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs, stack: Shape):
        options, width, dtype = config.layer_embedding, config.hidden_size, config.dtype
        assert options is not None
        self.activation = config.mlp.activation
        self.gate = Linear(width, options.width, bias=False, dtype=dtype, rngs=rngs, stack=stack)
        self.out = Linear(options.width, width, bias=False, dtype=dtype, rngs=rngs, stack=stack)
        self.norm = make_norm(config.norm, width, dtype=dtype, stack=stack)

    def __call__(self, x: Float[Array, "T D"], at: LayerContext) -> Float[Array, "T D"]:
        """Return what the layer passes on, with what it takes of the tokens."""
        given, num_tokens = at.batch.layer_inputs, at.num_tokens
        assert given is not None, "the decoder has made them"
        gate = self.gate.in_float32(x, num_tokens)
        gate = at.kernels.activate(gate, num_tokens, activation=self.activation, dtype=x.dtype)
        return x + normed(self.norm, self.out(gate * given[at.number], num_tokens), at)
