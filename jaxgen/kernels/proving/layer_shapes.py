"""The products and norms of a model's steps, by their shapes. Host only, no jax."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jaxgen.core.config import ModelConfig
from jaxgen.core.decoder_config import DecoderConfig, NormConfig
from jaxgen.core.moe_config import MoEConfig


@dataclass(frozen=True, slots=True)
class ProductShape:
    """A product with a weight [outputs, inputs] that is numbers. ``activation``: of a gated product, whose outputs are
    gates and as many others; None: there is none. ``of_layers``: whether each layer has one."""

    inputs: int
    outputs: int
    activation: str | None = None
    of_layers: bool = True


@dataclass(frozen=True, slots=True)
class NormShape:
    """A norm of rows of ``width`` numbers. ``weight``: dtype of its weight, or None. ``bias``: whether it has one."""

    kind: str
    width: int
    weight: str | None
    bias: bool

    @classmethod
    def of(cls, norm: NormConfig, width: int, dtype: str) -> "NormShape":
        """Return the shape of a model's norm."""
        weight = "float32" if norm.scale_in_float32 else dtype
        return cls(norm.kind, width, weight if norm.affine else None, bias=norm.kind == "layer" and norm.affine)


def read_shapes(kind: type[Any], values: list[dict[str, Any]]) -> tuple[Any, ...]:
    """Return the shapes that ``dataclasses.asdict`` has told, and JSON has carried."""
    return tuple(kind(**fields) for fields in values)


def products_of(model: ModelConfig) -> tuple[ProductShape, ...]:
    """Return the products of a model with weights that are numbers, each shape once."""
    if not isinstance(model, DecoderConfig):
        return ()
    plain = (shape for path, shape in named_products(model) if model.weight_format(path) is None)
    return tuple(dict.fromkeys(plain))


def named_products(model: DecoderConfig) -> Iterator[tuple[str, ProductShape]]:
    """Yield each product with the path of its weight."""
    width, heads, kv_heads = model.hidden_size, model.num_heads, model.num_kv_heads
    yield "layers.attn.qkv.weight", ProductShape(width, (heads + 2 * kv_heads) * model.head_dim)
    yield "layers.attn.out.weight", ProductShape(heads * model.head_dim, width)
    if model.moe is not None:
        yield from _beside_experts(model.moe, width)
    elif model.mlp.gated:
        inner, activation = model.intermediate_size, None if model.mlp.up_bias else model.mlp.activation
        yield "layers.mlp.gate_up.weight", ProductShape(width, 2 * inner, activation)
        yield "layers.mlp.down.weight", ProductShape(inner, width)
    else:
        yield "layers.mlp.up.weight", ProductShape(width, model.intermediate_size)
        yield "layers.mlp.down.weight", ProductShape(model.intermediate_size, width)
    table = "embed.weight" if model.head.tied else "lm_head.weight"
    yield table, ProductShape(model.embedding_width, model.vocab_size, of_layers=False)


def _beside_experts(moe: MoEConfig, width: int) -> Iterator[tuple[str, ProductShape]]:
    yield "layers.mlp.router.weight", ProductShape(width, moe.experts)
    if moe.shared_inner is not None:
        yield "layers.mlp.shared.gate_up.weight", ProductShape(width, 2 * moe.shared_inner, moe.activation)
        yield "layers.mlp.shared.down.weight", ProductShape(moe.shared_inner, width)


def norms_of(model: ModelConfig) -> tuple[NormShape, ...]:
    """Return the norms of a model, each shape once."""
    return tuple(dict.fromkeys(_norms(model))) if isinstance(model, DecoderConfig) else ()


def _norms(model: DecoderConfig) -> Iterator[NormShape]:
    yield NormShape.of(model.norm, model.hidden_size, model.dtype)
    options, width = model.attention, model.head_dim
    if options.qk_norm is None:
        return
    if options.qk_norm_heads:  # the weights of heads multiply afterwards; of a norm without bias they are ones
        yield NormShape(options.qk_norm.kind, width, "float32" if options.qk_norm.kind == "rms" else None, bias=False)
        return
    for heads in (model.num_heads, model.num_kv_heads):
        yield NormShape.of(options.qk_norm, heads * width if options.qk_norm_rows else width, model.dtype)
