"""Parts of the description of a decoder: what its embeddings, norms, attention, MLP and head compute.

Host only, no jax.
"""

from dataclasses import dataclass
from typing import Literal

OPT_UNUSED_POSITIONS = 2
"""Rows at the start of OPT's position table."""
Activation = Literal["relu", "relu2", "silu", "gelu", "gelu_tanh", "swiglu_clipped"]
"""gelu: exact; gelu_tanh: its approximation by tanh; swiglu_clipped: that of gpt-oss, for gated MLPs only."""
RopeKind = Literal["default", "linear", "proportional", "llama3", "yarn", "longrope"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding (Su et al., arXiv 2104.09864) and the extension of its context.

    linear: positions divided by ``factor`` (arXiv 2306.15595). proportional: the same, and rotated numbers have the
    frequencies of a head that is rotated whole (Gemma 4). llama3: long wavelengths divided by ``factor``, with a smooth
    band between low and high frequency factors. yarn: dimensions that turn less than
    ``beta_slow`` times in the original context are divided by ``factor``, and dimensions that turn more than
    ``beta_fast`` times are kept (arXiv 2309.00071). longrope: each frequency divided by its own of ``factors`` (arXiv
    2402.13753).
    """

    theta: float = 10_000.0
    kind: RopeKind = "default"
    rotary_dim: int | None = None
    """The first numbers of a head, which are rotated; None: all."""
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    """Whether yarn's first and last blended dimensions are rounded to whole ones."""
    factors: tuple[float, ...] = ()
    short_factors: tuple[float, ...] = ()
    """longrope's in place of ``factors`` where no context is longer than the original one."""
    attention_factor: float = 1.0
    """Cosine and sine are multiplied by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NormConfig:
    """``kind`` rms: x / rms(x) * weight; layer: (x - mean) / std * weight + bias.

    ``scale_in_float32``: the weight is float32, and multiplied before the result is rounded (Gemma, OLMo 2, Nemotron).
    Otherwise it has the model's dtype, and an RMS norm rounds x / rms(x) first (Llama). ``affine`` False: neither
    weight nor bias.
    """

    kind: Literal["rms", "layer"] = "rms"
    eps: float
    scale_in_float32: bool = False
    affine: bool = True
    bias: bool = True
    """Of a LayerNorm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfig:
    """``scale``: of scores; None: 1 / sqrt(head_dim). ``soft_cap`` c: scores become c * tanh(score / c).

    ``sinks``: each query head has a score that takes part in its softmax without a value (gpt-oss). ``output_gate``:
    what a head reads is multiplied by a sigmoid of further outputs of the projection, behind those of the queries
    (Qwen3-Next).
    """

    qkv_bias: bool = False
    out_bias: bool = False
    scale: float | None = None
    soft_cap: float | None = None
    sinks: bool = False
    output_gate: bool = False
    qk_norm: NormConfig | None = None
    """Of queries and keys before their rotation."""
    v_norm: bool = False
    """Whether the values of each head are divided by their root mean square, as ``qk_norm`` but without a weight."""
    qk_norm_rows: bool = False
    """Whether it is over all heads of a token together, not over each head."""
    qk_norm_heads: bool = False
    """Whether each head has a weight of its own, [heads, head_dim], multiplied in float32; there is no bias then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryScale:
    """Queries at position p are multiplied by 1 + beta * ln(1 + floor(p / original_max_position)) (Ministral 3)."""

    beta: float
    original_max_position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionConfig:
    """A model's positions: by rotary embedding, by a learned table, or in some layers not at all.

    ``ropes``: the kinds of rotary embedding; ``layer_ropes``: the index into them by layer, None for a layer without;
    empty: the first in all layers, or none if there is none. All rotate as many dimensions. ``table_offset``: unused
    rows at the start of a learned table; None: there is no table.
    """

    ropes: tuple[RopeConfig, ...] = ()
    layer_ropes: tuple[int | None, ...] = ()
    table_offset: int | None = None
    query_scale: QueryScale | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MLPConfig:
    """down(activation(gate(x)) * up(x)) if ``gated`` (arXiv 2002.05202), else down(activation(up(x)))."""

    gated: bool = True
    activation: Activation = "silu"
    up_bias: bool = False
    down_bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadConfig:
    """The head, from final hidden states to logits. ``scale``: logits are multiplied by it; ``soft_cap`` c: then c *
    tanh(x / c).

    ``tied``: the embedding's weight is the head's. ``absent``: the model has no head and is for embeddings alone; it is
    ``tied`` then, since the one program has a head.
    """

    tied: bool = False
    absent: bool = False
    bias: bool = False
    scale: float = 1.0
    soft_cap: float | None = None
