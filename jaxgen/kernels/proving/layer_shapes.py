"""The products and norms of a model's steps, by their shapes. Host only, no jax."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.decoder_parts import NormConfig
from jaxgen.core.latent_config import LatentConfig
from jaxgen.core.layer_kind import ONE_STACK, Stack, path_in_stack
from jaxgen.core.mixed_weight import MixedFormat
from jaxgen.core.model_config import ModelConfig
from jaxgen.core.moe_config import MoEConfig
from jaxgen.core.quantization import PLAIN_BITS, WeightFormat


@dataclass(frozen=True, slots=True)
class ProductShape:
    """A product with a weight [outputs, inputs].

    ``activation``: of a gated product, whose outputs are gates and as many others; None: there is none. ``of_layers``:
    whether each layer has one. ``form``: that of a quantized weight, as programs for GPUs read it; None: it is numbers.
    """

    inputs: int
    outputs: int
    activation: str | None = None
    of_layers: bool = True
    form: WeightFormat | None = None

    @classmethod
    def read(cls, values: dict[str, Any]) -> "ProductShape":
        """Return the shape that ``dataclasses.asdict`` has told, and JSON has carried."""
        form = values["form"]
        return cls(**values | {"form": None if form is None else WeightFormat(**form)})


@dataclass(frozen=True, slots=True)
class NormShape:
    """A norm of rows of ``width`` numbers. ``weight``: dtype of its weight, or None. ``bias``: whether it has one.
    ``adds``: whether it may add parts of a product to its rows first."""

    kind: str
    width: int
    weight: str | None
    bias: bool
    adds: bool = False

    @classmethod
    def of(cls, norm: NormConfig, width: int, dtype: str, *, adds: bool = False) -> "NormShape":
        """Return the shape of a model's norm."""
        weight, has_bias = "float32" if norm.scale_in_float32 else dtype, norm.kind == "layer" and norm.affine
        return cls(norm.kind, width, weight if norm.affine else None, bias=has_bias, adds=adds)


@dataclass(frozen=True, slots=True)
class RotationShape:
    """What queries and keys go through between their projection and attention.

    ``pairs``: rotary pairs of a head. ``norm``: dtype of the weight of each head's RMS norm, or None. ``gated``:
    whether gates follow the queries. ``scaled``: whether queries have a scale by position.
    """

    pairs: int
    norm: str | None = None
    gated: bool = False
    scaled: bool = False

    @classmethod
    def of(cls, model: DecoderConfig) -> "RotationShape":
        """Return the shape of a model's rotation; ``rotation_trouble`` says which models have others."""
        ropes, options = model.positions.ropes, model.attention
        pairs = (ropes[0].rotary_dim or model.head_dim) // 2 if ropes else 0
        norm = None if options.qk_norm is None else NormShape.of(options.qk_norm, model.head_dim, model.dtype).weight
        return cls(pairs, norm, options.output_gate, model.positions.query_scale is not None)


def rotation_trouble(model: DecoderConfig) -> str | None:
    """Return why a model's queries, keys and values are not what ``RotationShape`` says, or None."""
    options = model.attention
    if model.latent is not None:
        return "keys and values are made of latents"
    if model.global_heads is not None or model.readers:
        return "layers have heads of several shapes, or read the keys of others"
    if options.v_norm:
        return "values have a norm"
    if options.qk_norm is None:
        return None
    if options.qk_norm_rows:
        return "norms of queries and keys are over all heads together"
    if options.qk_norm_heads:
        return "norms of queries and keys have a weight for each head"
    if options.qk_norm.kind != "rms" or not options.qk_norm.affine:
        return "norms of queries and keys are not RMS norms with a weight"
    return None


def read_shapes(kind: type[Any], values: list[dict[str, Any]]) -> tuple[Any, ...]:
    """Return the shapes that ``dataclasses.asdict`` has told, and JSON has carried."""
    return tuple(kind(**fields) for fields in values)


def products_of(model: ModelConfig) -> tuple[ProductShape, ...]:
    """Return the products of a model with weights that are numbers, each shape once."""
    return tuple(one for one in _products(model) if one.form is None)


def coded_products_of(model: ModelConfig) -> tuple[ProductShape, ...]:
    """Return the products of a model with quantized weights other than experts', each shape and format once."""
    return tuple(one for one in _products(model) if one.form is not None)


def _products(model: ModelConfig) -> dict[ProductShape, None]:
    if not isinstance(model, DecoderConfig):
        return {}
    return dict.fromkeys(one for path, shape in named_products(model) for one in parts_of(model, path, shape))


def parts_of(model: ModelConfig, path: str, shape: ProductShape) -> Iterator[ProductShape]:
    """Yield the products of which one is made: one, or one for each part of a weight in several formats."""
    form = model.weight_format(path)
    if not isinstance(form, MixedFormat):
        placed = None if form is None else form.placed(integers=PLAIN_BITS, floats=True)
        yield replace(shape, form=placed)
        return
    for kind in form.kinds:
        activation = shape.activation if len(kind) == 1 else None
        for part in kind:
            coded = part.form.placed(integers=PLAIN_BITS, floats=True) if isinstance(part.form, WeightFormat) else None
            yield replace(shape, outputs=part.outputs, activation=activation, form=coded)


def named_products(model: DecoderConfig) -> Iterator[tuple[str, ProductShape]]:
    """Yield each product with the path of its weight."""
    for stack in model.stacks or (ONE_STACK,):
        for path, shape in products_of_layer(model, stack):
            yield path_in_stack(path, stack) if model.stacks else path, shape
    table = "embed.weight" if model.head.tied else "lm_head.weight"
    yield table, ProductShape(model.embedding_width, model.vocab_size, of_layers=False)


def products_of_layer(model: DecoderConfig, stack: Stack) -> Iterator[tuple[str, ProductShape]]:
    """Yield each product of a layer with the path of its weight, as if all layers were in this stack."""
    width = model.hidden_size
    if stack.kind == "conv":
        yield "layers.conv.in_proj.weight", ProductShape(width, 3 * width)
        yield "layers.conv.out.weight", ProductShape(width, width)
    elif stack.kind == "delta":
        nets = model.delta
        assert nets is not None, "layers of this kind have it"
        yield "layers.delta.in_proj.weight", ProductShape(width, nets.channels + nets.values)
        yield "layers.delta.gates.weight", ProductShape(width, 2 * nets.heads)
        yield "layers.delta.out.weight", ProductShape(nets.values, width)
    elif stack.kind == "latent":
        assert model.latent is not None, "layers of this kind have it"
        yield from _of_latents(model.latent, width, model.num_heads)
    else:
        heads, of_kind = model.num_heads, model.heads_of(stack.kind)
        projected = heads * (2 if model.attention.output_gate else 1) + of_kind.projections * of_kind.kv_heads
        yield "layers.attn.qkv.weight", ProductShape(width, projected * of_kind.head_dim)
        yield "layers.attn.out.weight", ProductShape(heads * of_kind.head_dim, width)
    if model.moe is not None and not stack.dense:
        yield from _beside_experts(model.moe, width)
    else:
        yield from _of_mlp(model, stack)


def _of_mlp(model: DecoderConfig, stack: Stack) -> Iterator[tuple[str, ProductShape]]:
    width, inner = model.hidden_size, model.inner_of(stack.kind)
    if model.mlp.gated:
        activation = None if model.mlp.up_bias else model.mlp.activation
        yield "layers.mlp.gate_up.weight", ProductShape(width, 2 * inner, activation)
    else:
        yield "layers.mlp.up.weight", ProductShape(width, inner)
    yield "layers.mlp.down.weight", ProductShape(inner, width)


def _of_latents(latent: LatentConfig, width: int, heads: int) -> Iterator[tuple[str, ProductShape]]:
    queries, rank = heads * latent.query, latent.query_rank
    yield "layers.attn.down.weight", ProductShape(width, (rank or queries) + latent.row)
    if rank is not None:
        yield "layers.attn.q_up.weight", ProductShape(rank, queries)
    yield "layers.attn.out.weight", ProductShape(heads * latent.values, width)


def _beside_experts(moe: MoEConfig, width: int) -> Iterator[tuple[str, ProductShape]]:
    yield "layers.mlp.router.weight", ProductShape(width, moe.experts)
    if moe.shared_inner is not None:
        yield "layers.mlp.shared.gate_up.weight", ProductShape(width, 2 * moe.shared_inner, moe.activation)
        yield "layers.mlp.shared.down.weight", ProductShape(moe.shared_inner, width)


def norms_of(model: ModelConfig) -> tuple[NormShape, ...]:
    """Return the norms of a model, each shape once."""
    return tuple(dict.fromkeys(_norms(model))) if isinstance(model, DecoderConfig) else ()


def _norms(model: DecoderConfig) -> Iterator[NormShape]:
    adds = model.placement not in ("post", "sandwich")  # there products have a norm before they are added
    yield NormShape.of(model.norm, model.hidden_size, model.dtype, adds=adds)
    if model.latent is not None:
        for rank in {model.latent.rank, model.latent.query_rank} - {None}:
            yield NormShape.of(model.norm, rank or 0, model.dtype)
    if model.delta is not None:
        yield NormShape.of(NormConfig(eps=model.norm.eps), model.delta.value_dim, model.dtype)
    options, width = model.attention, model.head_dim
    if options.qk_norm is None:
        return
    if options.qk_norm_heads:  # the weights of heads multiply afterwards; of a norm without bias they are ones
        yield NormShape(options.qk_norm.kind, width, "float32" if options.qk_norm.kind == "rms" else None, bias=False)
        return
    for heads in (model.num_heads, model.num_kv_heads):
        yield NormShape.of(options.qk_norm, heads * width if options.qk_norm_rows else width, model.dtype)
