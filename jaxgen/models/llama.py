"""Llama 1 to 3 and Mistral: RMSNorm, rotary positions, grouped-query attention, gated SiLU MLP.

Mistral differs only in ``sliding_window``, which attention takes from the configuration.
"""

from functools import partial

from flax import nnx
from jaxtyping import Array, Float, Int

from jaxgen.arrays import ArrayLike
from jaxgen.core.config import LlamaConfig
from jaxgen.kernels.choice import REFERENCE, Kernels
from jaxgen.models.attention import plan_attention
from jaxgen.models.batch import StepBatch
from jaxgen.models.kv_cache import KVCache
from jaxgen.models.layers import (
    Angles,
    Attention,
    Embedding,
    Linear,
    RMSNorm,
    Shape,
    rotary_angles,
    scan_layers,
)


class GatedMLP(nnx.Module):
    """residual + down(silu(gate(x)) * up(x)); gate and up are one product."""

    def __init__(self, config: LlamaConfig, *, rngs: nnx.Rngs, stack: Shape):
        width, inner = config.hidden_size, config.intermediate_size
        self.gate_up = Linear(width, 2 * inner, bias=config.mlp_bias, dtype=config.dtype, rngs=rngs, stack=stack)
        self.down = Linear(inner, width, bias=config.mlp_bias, dtype=config.dtype, rngs=rngs, stack=stack)

    def __call__(
        self, x: Float[Array, "T D"], num_tokens: Int[ArrayLike, ""], kernels: Kernels, residual: Float[Array, "T D"]
    ) -> Float[Array, "T D"]:
        gate_up = self.gate_up.in_float32(x, num_tokens)
        return self.down(kernels.gated_silu(gate_up, num_tokens, dtype=x.dtype), num_tokens, residual)


class LlamaLayers(nnx.Module):
    """All decoder layers, stacked; a slice by ``scan_layers`` is one layer."""

    def __init__(self, config: LlamaConfig, *, rngs: nnx.Rngs):
        self.config = config
        stack = (config.num_layers,)
        norm = partial(RMSNorm, config.hidden_size, eps=config.norm_eps, dtype=config.dtype, stack=stack)
        self.attn_norm = norm()
        self.attn = Attention(config, bias=config.attention_bias, rngs=rngs, stack=stack)
        self.mlp_norm = norm()
        self.mlp = GatedMLP(config, rngs=rngs, stack=stack)

    def angles(self, positions: Int[Array, "T"]) -> Angles | None:
        """Return the rotary angles of queries and keys, which are the same in all layers."""
        return rotary_angles(self.config.rope, self.config.head_dim, positions)

    @property
    def input_norm(self) -> RMSNorm | None:
        """The norm of the layer's input before the projections."""
        return self.attn_norm

    def __call__(
        self, x: Float[Array, "T D"], cache: KVCache, index: Int[Array, ""], batch: StepBatch, angles: Angles | None
    ) -> tuple[Float[Array, "T D"], KVCache]:
        """Return the layer's output, and the cache with its K and V in layer ``index``."""
        num_tokens, kernels = batch.num_tokens, cache.kernels
        x, cache = self.attn(self.attn_norm(x, num_tokens, kernels), cache, index, batch, angles, x)
        return self.mlp(self.mlp_norm(x, num_tokens, kernels), num_tokens, kernels, x), cache


class Llama(nnx.Module):
    """The decoder: from tokens of a StepBatch to hidden states, and from hidden states to logits."""

    def __init__(self, config: LlamaConfig, *, rngs: nnx.Rngs):
        self.config = config
        embedding = partial(Embedding, config.vocab_size, config.hidden_size, dtype=config.dtype, rngs=rngs)
        self.embed = embedding(head=config.tie_embeddings)
        self.layers = LlamaLayers(config, rngs=rngs)
        self.norm = RMSNorm(config.hidden_size, eps=config.norm_eps, dtype=config.dtype)
        self.lm_head = None if config.tie_embeddings else embedding(head=True)

    def __call__(self, batch: StepBatch, cache: KVCache) -> tuple[Float[Array, "T D"], KVCache]:
        """Return the final hidden states of all tokens, and the cache with their K and V."""
        batch = plan_attention(self.config, cache, batch)
        x, cache = scan_layers(self.layers, self.config.num_layers, self.embedded(batch), cache, batch)
        return self.final(x, batch), cache

    def embedded(self, batch: StepBatch) -> Float[Array, "T D"]:
        """Return the input of the first layer."""
        return self.embed(batch.tokens)

    def final(self, x: Float[Array, "T D"], batch: StepBatch) -> Float[Array, "T D"]:
        """Return the final hidden states from the last layer's output."""
        return self.norm(x, batch.num_tokens, REFERENCE)

    def logits(self, hidden: Float[Array, "n D"], num_rows: Int[ArrayLike, ""]) -> Float[Array, "n V"]:
        """Return float32 logits of hidden states, of which only the first ``num_rows`` are needed."""
        head = self.embed if self.lm_head is None else self.lm_head
        return head.logits(hidden, num_rows)
