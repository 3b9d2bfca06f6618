"""Where the parameters of a model are in a GGUF file, by llama.cpp's names of tensors. Host only, no jax.

https://github.com/ggml-org/llama.cpp/blob/master/gguf-py/gguf/constants.py
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.layer_kind import path_without_stack
from jaxgen.core.quantization import Index
from jaxgen.weights.families.decoder_names import Rows
from jaxgen.weights.families.parameters import Array, parameters
from jaxgen.weights.families.row_orders import interleaved_keys, interleaved_queries
from jaxgen.weights.families.tensors import HeadRows, Parameter, Source

Names = tuple[str, ...]
Key = tuple[str, HeadRows | None]
EMBEDDING, HEAD = "token_embd.weight", "output.weight"
_IN_LAYER = "layers."
_QKV = "layers.attn.qkv"
_QK_NORMS = ("layers.attn.q_norm", "layers.attn.k_norm")
_KEYS_AND_VALUES = "attn_kv_b"
"""Of files of before April 2025: rows by head, as a Hugging Face checkpoint has them."""
_ROTATED = (interleaved_queries, interleaved_keys)
NAMES: dict[str, tuple[Names, ...]] = {
    "embed": (("token_embd",),),
    "positions": (("position_embd",),),
    "norm": (("output_norm",),),
    "lm_head": (("output",),),
    "layers.attn_norm": (("attn_norm",),),
    "layer_embedding.table": (("per_layer_token_embd",),),
    "layer_embedding.project": (("per_layer_model_proj",),),
    "layer_embedding.norm": (("per_layer_proj_norm",),),
    _QKV: (("attn_q", "attn_k", "attn_v"), ("attn_qkv",), ("attn_q", "attn_k")),
    "layers.reader.attn.qkv": (("attn_q",),),
    "layers.global_reader.attn.qkv": (("attn_q",),),
    "layers.attn.q_norm": (("attn_q_norm",),),
    "layers.attn.k_norm": (("attn_k_norm",),),
    "layers.attn.sinks": (("attn_sinks.weight",),),
    "layers.attn.out": (("attn_output",),),
    "layers.attn.down": (("attn_q", "attn_kv_a_mqa"), ("attn_q_a", "attn_kv_a_mqa")),
    "layers.attn.q_up": (("attn_q_b",),),
    "layers.attn.kv_norm": (("attn_kv_a_norm",),),
    "layers.attn.keys": (("attn_k_b",), (_KEYS_AND_VALUES,)),
    "layers.attn.values": (("attn_v_b",), (_KEYS_AND_VALUES,)),
    "layers.conv.in_proj": (("shortconv.in_proj",),),
    "layers.conv.filter": (("shortconv.conv",),),
    "layers.conv.out": (("shortconv.out_proj",),),
    "layers.delta.in_proj": (("attn_qkv", "attn_gate"), ("ssm_in",)),
    "layers.delta.gates": (("ssm_beta", "ssm_alpha"), ("ssm_ba",)),
    "layers.delta.filter": (("ssm_conv1d",),),
    "layers.delta.a_log": (("ssm_a",),),
    "layers.delta.dt_bias": (("ssm_dt.bias",),),
    "layers.delta.norm": (("ssm_norm",),),
    "layers.delta.out": (("ssm_out",),),
    "layers.attn_post_norm": (("post_attention_norm",),),
    "layers.mlp_norm": (("ffn_norm",),),
    "layers.mlp.gate_up": (("ffn_gate", "ffn_up"), ("ffn_up",)),
    "layers.mlp.up": (("ffn_up",),),
    "layers.mlp.down": (("ffn_down",),),
    "layers.mlp.router": (("ffn_gate_inp",),),
    "layers.mlp.correction": (("exp_probs_b.bias",),),
    "layers.mlp.experts.gate_up": (("ffn_gate_exps", "ffn_up_exps"), ("ffn_gate_up_exps",)),
    "layers.mlp.experts.down": (("ffn_down_exps",),),
    "layers.mlp.shared.gate_up": (("ffn_gate_shexp", "ffn_up_shexp"),),
    "layers.mlp.shared.down": (("ffn_down_shexp",),),
    "layers.mlp.shared_gate": (("ffn_gate_inp_shexp",),),
    "layers.mlp.norms.shared": (("ffn_norm",),),
    "layers.mlp.norms.shared_post": (("post_ffw_norm_1",),),
    "layers.mlp.norms.router.weight": (("ffn_gate_inp.scale",),),
    "layers.mlp.norms.experts": (("pre_ffw_norm_2",),),
    "layers.mlp.norms.experts_post": (("post_ffw_norm_2",),),
    "layers.mlp.norms.expert_scale": (("ffn_down_exps.scale",),),
    "layers.mlp_post_norm": (("post_ffw_norm",),),
    "layers.embedding.gate": (("inp_gate",),),
    "layers.embedding.out": (("proj",),),
    "layers.embedding.norm": (("post_norm",),),
    "layers.scale": (("layer_output_scale.weight",),),
}
"""By the path of a parameter without its last part, or by all of the path: the tensors whose rows, one after another,
are its rows. A path with its stack goes before one without.

Where files differ, the first that are there hold."""


def _a_log(values: Array) -> Array:
    """Return logarithms of what a gated delta net multiplies its steps by, which is below 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        result: Array = np.log(np.negative(values))
    return result


_MADE: dict[str, Callable[[Array], Array]] = {"layers.delta.a_log": _a_log}
"""By path: makes the parameter of what the file has in its place."""
UNREAD = ("attn_k.", "attn_v.", "attn_k_norm.")
"""Beginnings of tensors of a layer that reads the keys and values of another: files may have them."""


@dataclass(frozen=True, slots=True)
class Part:
    """Where ``GgufTensors`` finds a source of a parameter: the rows of the tensors ``names``, one after another.

    ``shapes``: of the tensors. ``index``: what is taken of each, one expert or some rows; empty: all. ``order``: the
    file's row for each row of the source, ``inputs``: the file's input for each; None: they are in the same order.
    ``made``: makes the numbers of the file's; None: they are the same. ``of_heads``: which rows of each head are the
    source's; None: all.
    """

    names: Names
    shapes: tuple[tuple[int, ...], ...]
    index: Index
    order: tuple[int, ...] | None
    inputs: tuple[int, ...] | None = None
    made: Callable[[Array], Array] | None = None
    of_heads: HeadRows | None = None


def key_of(source: Source) -> Key:
    """Return what tells a source apart, also from another of the same tensor of a Hugging Face checkpoint."""
    return source.name, source.of_heads


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What files of an architecture have in an order of their own.

    ``rotated``: whether rows of queries and keys whose rotary pairs belong together are neighbours. ``rows``,
    ``inputs``: the file's row, or input, for each of a tensor, by its name without its block.
    """

    rotated: bool = False
    rows: Mapping[str, Rows] = field(default_factory=dict)
    inputs: Mapping[str, Rows] = field(default_factory=dict)


IN_ORDER = Orders()
"""Of architectures whose files have everything in the order of the parameters."""


def parts_of(
    config: DecoderConfig, stored: Collection[str], renamed: Mapping[str, tuple[Names, ...]], orders: Orders
) -> dict[Key, Part]:
    """Return where each source of the model's parameters is, by ``key_of``.

    ``stored``: names of the file's tensors. ``renamed``: entries of NAMES that the architecture has instead. Rows that
    ``orders`` does not name are in the order of the parameter, whatever a Hugging Face checkpoint has.
    """
    table, result = NAMES | dict(renamed), {}
    for parameter in parameters(config):
        whole = path_without_stack(parameter.path)
        path, _, kind = whole.rpartition(".")
        if whole in table:
            path, kind = whole, ""
        ways = table.get(parameter.path.rpartition(".")[0]) or table[path]
        count = len(parameter.sources)
        for piece, (source, index) in enumerate(parameter.pieces()):
            before, number = _block(parameter, index[0]) if path.startswith(_IN_LAYER) else "", piece % count
            given = {tuple(f"{before}{name}.{kind}".rstrip(".") for name in names): names for names in ways}
            names = _present([way for way in given if 1 in (count, len(way)) or count == len(way)], stored)
            part = _part(config, parameter, path, index, number, names)
            result[key_of(source)] = _in_order(config, orders, part, path, parameter, number, given[names])
    return result


def _in_order(
    config: DecoderConfig, orders: Orders, part: Part, path: str, parameter: Parameter, number: int, names: Names
) -> Part:
    """Return a part with the orders of its rows and inputs. ``names``: those of its tensors, as NAMES has them."""
    count, order = len(parameter.sources), part.order
    if orders.rotated and path == _QKV and count == len(_ROTATED) + 1:
        order = _ROTATED[number](config) if number < len(_ROTATED) else None
    if orders.rotated and path in _QK_NORMS:
        order = _ROTATED[_QK_NORMS.index(path)](config)[: parameter.shape[-1]]  # that of the first head is that of all
    if len(names) == count:
        name = names[number].removesuffix(".bias")
        rows, inputs = orders.rows.get(name), orders.inputs.get(name)
        order = order if rows is None else rows(config)
        part = replace(part, inputs=None if inputs is None else inputs(config))
    return replace(part, order=order, made=_MADE.get(path))


def _block(parameter: Parameter, layer: int | slice) -> str:
    """Return how the names of a layer's tensors begin."""
    assert isinstance(layer, int)
    return f"blk.{parameter.number(layer)}."


def _present(ways: list[Names], stored: Collection[str]) -> Names:
    """Return the first names that are all in the file; without any, the first."""
    return next((names for names in ways if all(name in stored for name in names)), ways[0])


def _part(config: DecoderConfig, parameter: Parameter, path: str, index: Index, number: int, names: Names) -> Part:
    """Return where the source ``number`` of a parameter is. ``index``: its own in the parameter."""
    if (source := parameter.sources[number]).is_filter:
        return Part(names, ((source.shape[0], source.shape[2]),), (), None)
    if source.of_heads is not None and names[0].endswith(f"{_KEYS_AND_VALUES}.weight"):
        return Part(names, (source.shape,), (), None, of_heads=source.of_heads)
    layers, experts = (0 if size is None else 1 for size in (parameter.num_layers, parameter.num_experts))
    stacked, (rows, *rest) = parameter.shape[layers : layers + experts], parameter.shape[layers + experts :]
    of_expert, own = index[layers:-1], index[-1]
    assert isinstance(own, slice)
    if len(names) == len(parameter.sources):
        return Part((names[number],), ((*stacked, own.stop - own.start, *rest),), of_expert, None)
    if len(names) == 1:
        return Part(names, ((*stacked, rows, *rest),), (*of_expert, own), None)
    sizes = _sizes(config, path, rows, len(names))
    return Part(names, tuple((*stacked, size, *rest) for size in sizes), of_expert, None)


def _sizes(config: DecoderConfig, path: str, rows: int, count: int) -> tuple[int, ...]:
    """Return the rows of each of several tensors that make one source."""
    if path == "layers.delta.in_proj" and config.delta is not None:
        return config.delta.channels, config.delta.values
    return (rows // count,) * count
