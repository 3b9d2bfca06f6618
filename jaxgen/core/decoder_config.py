"""Describe what a decoder computes, in small frozen parts. Host only, no jax.

A family of models is a reader of config.json that returns such a description (jaxgen/weights/families); one module,
``jaxgen.models.decoder``, computes all of them. What differs from layer to layer with equal shapes (window, rotary
embedding) is listed by layer, and becomes data next to the stacked parameters.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from jaxgen.core.cache_kind import RowShape
from jaxgen.core.decoder_parts import (
    OPT_UNUSED_POSITIONS,
    Activation,
    AttentionConfig,
    HeadConfig,
    MLPConfig,
    NormConfig,
    PositionConfig,
    RopeConfig,
)
from jaxgen.core.errors import ConfigError
from jaxgen.core.latent_config import LatentConfig
from jaxgen.core.layer_kind import (
    ATTENTION_KINDS,
    CONV_STATE,
    DELTA_INPUTS,
    DELTA_STATES,
    LAYER_KINDS,
    ONE_STACK,
    READ_BY,
    ConvolutionConfig,
    GatedDeltaConfig,
    HeadShape,
    LayerEmbedding,
    LayerKind,
    Stack,
)
from jaxgen.core.model_config import ModelConfig, StateShape
from jaxgen.core.moe_config import MoEConfig

Placement = Literal["pre", "post", "post_sum", "sandwich", "parallel", "parallel_two"]
"""Where a layer's norms are, for attention and then the MLP.

pre: x + f(norm(x)). post: x + norm(f(x)). post_sum: norm(x + f(x)). sandwich: x + norm(f(norm(x))). parallel:
x + attention(n) + mlp(n) with n = norm(x). parallel_two: the same with a norm for each.
"""

_NORMS: dict[Placement, tuple[str, ...]] = {
    "pre": ("attn_norm", "mlp_norm"),
    "post": ("attn_post_norm", "mlp_post_norm"),
    "post_sum": ("attn_norm", "mlp_norm"),
    "sandwich": ("attn_norm", "attn_post_norm", "mlp_norm", "mlp_post_norm"),
    "parallel": ("attn_norm",),
    "parallel_two": ("attn_norm", "mlp_norm"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig(ModelConfig):
    """A decoder. ``family``: the name of the file of jaxgen/weights/families that knows its checkpoints, if one does.

    ``embed_size``: width of the embedding, with projections around the layers if it is not ``hidden_size`` (OPT-350m).
    ``embed_scale``, rounded to their dtype, multiplies embeddings, and ``residual_scale`` what attention and MLP add.
    """

    family: str = ""
    norm: NormConfig
    positions: PositionConfig
    placement: Placement = "pre"
    layer_kinds: tuple[LayerKind, ...] = ()
    """By layer; empty: attention in all layers."""
    attention: AttentionConfig = AttentionConfig()
    global_heads: HeadShape | None = None
    """In layers of that kind and their readers; the fields of ModelConfig are those of the others."""
    latent: LatentConfig | None = None
    """The same: ``head_dim`` is the numbers of a row of the cache, which the one KV head has."""
    reader_inner: int | None = None
    """Width of the MLP in layers that read others' keys and values; None: ``intermediate_size``."""
    layer_embedding: LayerEmbedding | None = None
    convolution: ConvolutionConfig | None = None
    """In place of attention, in layers of that kind."""
    delta: GatedDeltaConfig | None = None
    """The same."""
    mlp: MLPConfig = MLPConfig()
    moe: MoEConfig | None = None
    """In place of an MLP, where there is one, in all layers but these."""
    dense_layers: tuple[int, ...] = ()
    head: HeadConfig = HeadConfig()
    final_norm: bool = True
    embed_size: int | None = None
    embed_scale: float = 1.0
    residual_scale: float = 1.0
    layer_scale: bool = False
    """Whether what a layer passes on is multiplied by a number of the layer."""

    def __post_init__(self) -> None:
        super(DecoderConfig, self).__post_init__()
        by_layer = {"windows": self.windows, "layer_ropes": self.positions.layer_ropes, "layer_kinds": self.layer_kinds}
        for name, values in by_layer.items():
            if values and len(values) != self.num_layers:
                raise ConfigError(f"{name} has {len(values)} entries, but there are {self.num_layers} layers")
        if self.dense_layers and self.moe is None:
            raise ConfigError("dense_layers are the layers without experts: without moe there must be none")
        self._check_heads()
        self._check_readers()

    def _check_heads(self) -> None:
        for kind in ATTENTION_KINDS:
            if len({rope.rotary_dim or self.heads_of(kind).head_dim for rope in self.ropes_of(kind).values()}) > 1:
                raise ConfigError("layers that rotate different numbers of dimensions are not supported")
        if self.global_heads is not None and self.num_heads % self.global_heads.kv_heads:
            raise ConfigError(
                f"num_attention_heads ({self.num_heads}) must be a multiple of num_global_key_value_heads "
                f"({self.global_heads.kv_heads})"
            )
        shapes = set(zip(self.windows or (None,) * self.num_layers, self.cache_rows, strict=True))
        if len({window for window, _ in shapes}) < len(shapes):
            raise ConfigError("layers of the same window must have heads of the same shape")

    def _check_readers(self) -> None:
        for kind, read in READ_BY.items():
            if (of_kind := self.layers_of_kind(kind)) and max(self.layers_of_kind(read), default=-1) > of_kind[0] - 1:
                raise ConfigError(f"layers of kind {kind} must follow all layers of kind {read}")
            if of_kind and not self.layers_of_kind(read):
                raise ConfigError(f"layers of kind {kind} need a layer of kind {read} before them")

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """The stacks of the layers' parameters; empty: all layers are in one."""
        if not self.layer_kinds and not self.dense_layers:
            return ()
        found = set(self._stack_of_layer)
        return tuple([stack for kind in LAYER_KINDS for stack in (Stack(kind), Stack(kind, True)) if stack in found])

    @property
    def _stack_of_layer(self) -> tuple[Stack, ...]:
        kinds = self.layer_kinds or (ONE_STACK.kind,) * self.num_layers
        return tuple([Stack(kind, layer in self.dense_layers) for layer, kind in enumerate(kinds)])

    @property
    def layer_stacks(self) -> tuple[int, ...]:
        """By layer: which of ``stacks`` it is in."""
        stacks = self.stacks
        return tuple(map(stacks.index, self._stack_of_layer)) if stacks else (0,) * self.num_layers

    def layers_in(self, stack: Stack) -> tuple[int, ...]:
        """Return the numbers of the layers in a stack."""
        return tuple([layer for layer, given in enumerate(self._stack_of_layer) if given == stack])

    def layers_of_kind(self, kind: LayerKind) -> tuple[int, ...]:
        """Return the numbers of the layers of a kind."""
        return tuple([layer for layer, given in enumerate(self._stack_of_layer) if given.kind == kind])

    def heads_of(self, kind: LayerKind) -> HeadShape:
        """Return the heads of the attention of a kind of layers."""
        heads = HeadShape(kv_heads=self.num_kv_heads, head_dim=self.head_dim)
        if "global" in (kind, READ_BY.get(kind)) and self.global_heads is not None:
            heads = self.global_heads
        return replace(heads, reads=True) if kind in READ_BY else heads

    def inner_of(self, kind: LayerKind) -> int:
        """Return the width of the MLP in layers of a kind."""
        inner = self.reader_inner if kind in READ_BY else None
        return self.intermediate_size if inner is None else inner

    @property
    def readers(self) -> dict[int, int]:
        """The layers that read the K and V of another layer, and the number of that layer."""
        pairs = [(self.layers_of_kind(kind), self.layers_of_kind(read)) for kind, read in READ_BY.items()]
        return {layer: read[-1] for layers, read in pairs for layer in layers}

    def ropes_of(self, kind: LayerKind) -> dict[int, RopeConfig]:
        """Return the kinds of rotary embedding that layers of a kind have, by their index in ``positions.ropes``."""
        ropes, listed = dict(enumerate(self.positions.ropes)), self.positions.layer_ropes
        used = {listed[layer] for layer in self.layers_of_kind(kind)} if listed else {0}
        return {number: rope for number, rope in ropes.items() if number in used}

    @property
    def cache_rows(self) -> tuple[RowShape, ...]:
        """By layer: the shape of what it keeps of a token, if it has K and V."""
        attention: LayerKind = "attention"
        heads = [(kind, self.heads_of(kind)) for kind in self.layer_kinds or (attention,) * self.num_layers]
        return tuple([RowShape(one.kv_heads, one.head_dim, 1 if kind == "latent" else 2) for kind, one in heads])

    @property
    def states(self) -> tuple[StateShape, ...]:
        """The states of each sequence: in layers with a convolution the last of its inputs, in gated delta nets also
        what these keep, in float32."""
        result = []
        if self.convolution is not None:
            shape = (self.convolution.taps - 1, self.hidden_size)
            result.append(StateShape(CONV_STATE, self.layers_of_kind("conv"), shape, self.dtype))
        if self.delta is not None:
            layers, shape = self.layers_of_kind("delta"), (self.delta.taps - 1, self.delta.channels)
            result.append(StateShape(DELTA_INPUTS, layers, shape, self.dtype))
            kept = zip(DELTA_STATES, self.delta.shapes, strict=True)
            result += [StateShape(name, layers, of_name, "float32") for name, of_name in kept]
        return tuple(result)

    @property
    def layer_norms(self) -> tuple[str, ...]:
        """Names of a layer's norms; ``_post_``: of what attention or MLP adds."""
        of_experts = self.moe is not None and self.moe.norms
        return tuple([name for name in _NORMS[self.placement] if name != "mlp_norm" or not of_experts])

    @property
    def embedding_width(self) -> int:
        """Elements of a token's embedding."""
        return self.embed_size or self.hidden_size

    @property
    def output_size(self) -> int:
        """Elements of a token's final hidden state: the logits are computed at the width of the embedding."""
        return self.embedding_width

    @property
    def generates(self) -> bool:
        """Whether the model continues texts: with a head."""
        return not self.head.absent

    def headless(self) -> Self:
        """Return the description of the model without its head."""
        return replace(self, head=HeadConfig(tied=True, absent=True))

    @property
    def score_scale(self) -> float:
        """The factor of attention scores."""
        return self.head_dim**-0.5 if self.attention.scale is None else self.attention.scale

    @property
    def active_share(self) -> float:
        """The share of the weights that a token is multiplied with; norms and biases are not counted."""
        if self.moe is None:
            return 1.0
        of_heads = sum(2 * (self.num_heads + row.heads) * row.width for row in self.cache_rows)
        shared, num_dense = 3 * (self.moe.shared_inner or 0), len(self.dense_layers)
        with_experts = self.num_layers - num_dense
        always = of_heads + with_experts * (shared + self.moe.experts) + self.vocab_size
        always += num_dense * (3 if self.mlp.gated else 2) * self.intermediate_size
        of_expert = 3 * with_experts * self.moe.inner
        return (always + self.moe.per_token * of_expert) / (always + self.moe.experts * of_expert)

    @property
    def inner_values(self) -> int:
        """The values of a token that its MLP, or its experts with their copies of it, hold at once."""
        if self.moe is None:
            of_layers = 0 if self.layer_embedding is None else self.num_layers * self.layer_embedding.width
            widths = [self.inner_of(stack.kind) for stack in self.stacks]
            return 3 * max(widths, default=self.intermediate_size) + of_layers
        shared = 3 * (self.moe.shared_inner or 0)
        of_experts = self.moe.per_token * (3 * self.moe.inner + 2 * self.hidden_size) + shared
        return max(of_experts, 3 * self.intermediate_size if self.dense_layers else 0)

    def within(self, max_model_len: int) -> Self:
        """Return the description for contexts of at most the given tokens: with the longrope factors for them."""

        def fitted(rope: RopeConfig) -> RopeConfig:
            short = rope.kind == "longrope" and max_model_len <= rope.original_max_position
            return replace(rope, factors=rope.short_factors) if short else rope

        ropes = tuple(map(fitted, self.positions.ropes))
        return replace(self, positions=replace(self.positions, ropes=ropes))

    def of_layers(self, num_layers: int) -> "DecoderConfig":
        """Return the description of a decoder of the first ``num_layers`` layers."""
        positions = replace(self.positions, layer_ropes=self.positions.layer_ropes[:num_layers])
        dense = tuple([layer for layer in self.dense_layers if layer < num_layers])
        parts: dict[str, Any] = {"windows": self.windows[:num_layers], "layer_kinds": self.layer_kinds[:num_layers]}
        return replace(self, num_layers=num_layers, positions=positions, dense_layers=dense, **parts)


def llama_config(
    *,
    rope: RopeConfig,
    norm_eps: float,
    window: int | None = None,
    attention_bias: bool = False,
    mlp_bias: bool = False,
    tie_embeddings: bool = False,
    **sizes: Any,
) -> DecoderConfig:
    """Return the description of a Llama of these sizes, which are the fields of ModelConfig."""
    return DecoderConfig(
        **sizes,
        family="llama",
        windows=() if window is None else (window,) * sizes["num_layers"],
        norm=NormConfig(eps=norm_eps),
        positions=PositionConfig(ropes=(rope,)),
        attention=AttentionConfig(qkv_bias=attention_bias, out_bias=attention_bias),
        mlp=MLPConfig(up_bias=mlp_bias, down_bias=mlp_bias),
        head=HeadConfig(tied=tie_embeddings),
    )


def opt_config(
    *,
    embed_size: int | None = None,
    activation: Activation = "relu",
    pre_norm: bool = True,
    final_norm: bool = True,
    norm_affine: bool = True,
    bias: bool = True,
    tie_embeddings: bool = True,
    **sizes: Any,
) -> DecoderConfig:
    """Return the description of an OPT of these sizes, which are the fields of ModelConfig.

    ``pre_norm`` False is the 350m variant: LayerNorm after each residual sum, and no final norm.
    """
    return DecoderConfig(
        **sizes,
        family="opt",
        norm=NormConfig(kind="layer", eps=1e-5, affine=norm_affine),
        positions=PositionConfig(table_offset=OPT_UNUSED_POSITIONS),
        placement="pre" if pre_norm else "post_sum",
        attention=AttentionConfig(qkv_bias=bias, out_bias=bias),
        mlp=MLPConfig(gated=False, activation=activation, up_bias=bias, down_bias=bias),
        head=HeadConfig(tied=tie_embeddings),
        final_norm=pre_norm and final_norm,
        embed_size=None if embed_size == sizes["hidden_size"] else embed_size,
    )
