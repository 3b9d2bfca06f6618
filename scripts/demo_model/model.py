"""The demonstration model: a small Llama in plain jax, its parameters under Hugging Face's names and shapes."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

QUERY_PIECE = 128
Params = dict[str, Float[Array, "..."]]
"""Hugging Face name -> weight; a projection is [out, in]."""


@dataclass(frozen=True)
class DemoConfig:
    """Shape of the model; the fields bear the names of ``LlamaConfig`` in transformers."""

    vocab_size: int = 2048
    hidden_size: int = 192
    intermediate_size: int = 512
    num_hidden_layers: int = 6
    num_attention_heads: int = 6
    num_key_value_heads: int = 2
    head_dim: int = 32
    max_position_embeddings: int = 2048
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-5


def init_params(config: DemoConfig, key: Array) -> Params:
    """Normal with std 0.02 for the embedding, 1/sqrt(in) for projections; residual outputs start at a small scale."""
    queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    hidden, inner = config.hidden_size, config.intermediate_size
    shapes = {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    params: Params = {"model.embed_tokens.weight": 0.02 * jax.random.normal(key, (config.vocab_size, hidden))}
    for layer in range(config.num_hidden_layers):
        for name, shape in shapes.items():
            key, draw = jax.random.split(key)
            scale = shape[1] ** -0.5
            if name in ("self_attn.o_proj", "mlp.down_proj"):
                scale *= (2 * config.num_hidden_layers) ** -0.5
            params[f"model.layers.{layer}.{name}.weight"] = scale * jax.random.normal(draw, shape)
        for name in ("input_layernorm", "post_attention_layernorm"):
            params[f"model.layers.{layer}.{name}.weight"] = jnp.ones(hidden)
    params["model.norm.weight"] = jnp.ones(hidden)
    return params


def _rms_norm(x: Float[Array, "B T D"], weight: Float[Array, "D"], eps: float) -> Float[Array, "B T D"]:
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return (wide * scale).astype(x.dtype) * weight


def _rope(x: Float[Array, "B T ... H"], theta: float) -> Float[Array, "B T ... H"]:
    """Rotate the two halves of each head, as transformers does, by angles that grow with the position."""
    length, half = x.shape[1], x.shape[-1] // 2
    angles = jnp.arange(length)[:, None] * theta ** (-jnp.arange(half) / half)
    angles = angles.reshape(length, *(1,) * (x.ndim - 3), half)
    cos, sin = jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _causal_attention(
    query: Float[Array, "B K G T H"], key: Float[Array, "B K T H"], value: Float[Array, "B K T H"]
) -> Float[Array, "B K G T H"]:
    """Exact causal attention, by pieces of the queries, each against the keys up to its own end.

    On a CPU that is four times as fast as one masked square: half of it is never computed and a piece stays in cache.
    """
    batch, kv_heads, groups, length, size = query.shape
    outputs = []
    for start in range(0, length, QUERY_PIECE):
        piece = query[:, :, :, start : start + QUERY_PIECE]
        stop = start + piece.shape[3]
        scores = jnp.matmul(
            piece.reshape(batch, kv_heads, -1, size),
            key[:, :, :stop].swapaxes(-1, -2),
            preferred_element_type=jnp.float32,
        ).reshape(batch, kv_heads, groups, -1, stop)
        seen = jnp.arange(start, stop)[:, None] >= jnp.arange(stop)
        chances = jax.nn.softmax(jnp.where(seen, scores * size**-0.5, -jnp.inf), axis=-1).astype(value.dtype)
        mixed = jnp.matmul(chances.reshape(batch, kv_heads, -1, stop), value[:, :, :stop])
        outputs.append(mixed.reshape(piece.shape))
    return jnp.concatenate(outputs, axis=3)


def _attention(x: Float[Array, "B T D"], weights: Params, config: DemoConfig) -> Float[Array, "B T D"]:
    batch, length, _ = x.shape
    kv_heads, size = config.num_key_value_heads, config.head_dim
    query = (x @ weights["self_attn.q_proj"].T).reshape(batch, length, kv_heads, -1, size)
    key = (x @ weights["self_attn.k_proj"].T).reshape(batch, length, kv_heads, size)
    value = (x @ weights["self_attn.v_proj"].T).reshape(batch, length, kv_heads, size)
    query, key = _rope(query, config.rope_theta), _rope(key, config.rope_theta)
    mixed = _causal_attention(query.transpose(0, 2, 3, 1, 4), key.swapaxes(1, 2), value.swapaxes(1, 2))
    return mixed.transpose(0, 3, 1, 2, 4).reshape(batch, length, -1) @ weights["self_attn.o_proj"].T


def forward(params: Params, tokens: Int[Array, "B T"], config: DemoConfig, dtype: jnp.dtype) -> Float[Array, "B T V"]:
    """Logits of every position; projections in ``dtype``, norms, softmax and logits in float32."""
    # Looked up before the rounding: the gradient of a lookup is a sum over all its uses, kept in float32.
    embedding = params["model.embed_tokens.weight"]
    x = embedding[tokens].astype(dtype)
    params = {name: weight.astype(dtype) for name, weight in params.items()}
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}."
        weights = {
            name.removeprefix(prefix).removesuffix(".weight"): weight
            for name, weight in params.items()
            if name.startswith(prefix)
        }
        x = x + _attention(_rms_norm(x, weights["input_layernorm"], config.rms_norm_eps), weights, config)
        y = _rms_norm(x, weights["post_attention_layernorm"], config.rms_norm_eps)
        inner = jax.nn.silu(y @ weights["mlp.gate_proj"].T) * (y @ weights["mlp.up_proj"].T)
        x = x + inner @ weights["mlp.down_proj"].T
    x = _rms_norm(x, params["model.norm.weight"], config.rms_norm_eps)
    return x.astype(jnp.float32) @ embedding.T
