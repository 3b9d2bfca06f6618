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
from jaxgen.weights.families.tensors import Parameter

Names = tuple[str, ...]
EMBEDDING, HEAD = "token_embd.weight", "output.weight"
_IN_LAYER = "layers."
_QKV = "layers.attn.qkv"
_QK_NORMS = ("layers.attn.q_norm", "layers.attn.k_norm")
_ROTATED = (interleaved_queries, interleaved_keys)
NAMES: dict[str, tuple[Names, ...]] = {
    "embed": (("token_embd",),),
    "positions": (("position_embd",),),
    "norm": (("output_norm",),),
    "lm_head": (("output",),),
    "layers.attn_norm": (("attn_norm",),),
    _QKV: (("attn_q", "attn_k", "attn_v"), ("attn_qkv",)),
    "layers.attn.q_norm": (("attn_q_norm",),),
    "layers.attn.k_norm": (("attn_k_norm",),),
    "layers.attn.sinks": (("attn_sinks.weight",),),
    "layers.attn.out": (("attn_output",),),
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
    "layers.mlp_post_norm": (("post_ffw_norm",),),
}
"""By the path of a parameter without its last part, or by all of the path: the tensors whose rows, one after another,
are its rows.

Where files differ, the first that are there hold."""


def _a_log(values: Array) -> Array:
    """Return logarithms of what a gated delta net multiplies its steps by, which is below 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        result: Array = np.log(np.negative(values))
    return result


_MADE: dict[str, Callable[[Array], Array]] = {"layers.delta.a_log": _a_log}
"""By path: makes the parameter of what the file has in its place."""


@dataclass(frozen=True, slots=True)
class Part:
    """Where ``GgufTensors`` finds a source of a parameter: the rows of the tensors ``names``, one after another.

    ``shapes``: of the tensors. ``index``: what is taken of each, one expert or some rows; empty: all. ``order``: the
    file's row for each row of the source, ``inputs``: the file's input for each; None: they are in the same order.
    ``made``: makes the numbers of the file's; None: they are the same.
    """

    names: Names
    shapes: tuple[tuple[int, ...], ...]
    index: Index
    order: tuple[int, ...] | None
    inputs: tuple[int, ...] | None = None
    made: Callable[[Array], Array] | None = None


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
) -> dict[str, Part]:
    """Return where each source of the model's parameters is, by its name in a Hugging Face checkpoint.

    ``stored``: names of the file's tensors. ``renamed``: entries of NAMES that the architecture has instead. Rows that
    ``orders`` does not name are in the order of the parameter, whatever a Hugging Face checkpoint has.
    """
    table, result = NAMES | dict(renamed), {}
    for parameter in parameters(config):
        whole = path_without_stack(parameter.path)
        path, _, kind = whole.rpartition(".")
        if whole in table:
            path, kind = whole, ""
        count = len(parameter.sources)
        for piece, (source, index) in enumerate(parameter.pieces()):
            before, number = _block(parameter, index[0]) if path.startswith(_IN_LAYER) else "", piece % count
            ways = {tuple(f"{before}{name}.{kind}".rstrip(".") for name in names): names for names in table[path]}
            names = _present([way for way in ways if 1 in (count, len(way)) or count == len(way)], stored)
            part = _part(config, parameter, path, index, number, names)
            result[source.name] = _in_order(config, orders, part, path, parameter, number, ways[names])
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
