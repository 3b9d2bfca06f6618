"""Where the parameters of a model are in a GGUF file, by llama.cpp's names of tensors. Host only, no jax.

https://github.com/ggml-org/llama.cpp/blob/master/gguf-py/gguf/constants.py
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.layer_kind import path_without_stack
from jaxgen.core.quantization import Index
from jaxgen.weights.families.parameters import parameters
from jaxgen.weights.families.row_orders import interleaved_keys, interleaved_queries
from jaxgen.weights.families.tensors import Parameter

Names = tuple[str, ...]
EMBEDDING, HEAD = "token_embd.weight", "output.weight"
_IN_LAYER = "layers."
_QKV = "layers.attn.qkv"
_QK_NORMS = ("layers.attn.q_norm", "layers.attn.k_norm")
NAMES: dict[str, tuple[Names, ...]] = {
    "embed": (("token_embd",),),
    "positions": (("position_embd",),),
    "norm": (("output_norm",),),
    "lm_head": (("output",),),
    "layers.attn_norm": (("attn_norm",),),
    _QKV: (("attn_q", "attn_k", "attn_v"), ("attn_qkv",)),
    "layers.attn.q_norm": (("attn_q_norm",),),
    "layers.attn.k_norm": (("attn_k_norm",),),
    "layers.attn.sinks": (("attn_sinks",),),
    "layers.attn.out": (("attn_output",),),
    "layers.conv.in_proj": (("shortconv.in_proj",),),
    "layers.conv.filter": (("shortconv.conv",),),
    "layers.conv.out": (("shortconv.out_proj",),),
    "layers.attn_post_norm": (("post_attention_norm",),),
    "layers.mlp_norm": (("ffn_norm",),),
    "layers.mlp.gate_up": (("ffn_gate", "ffn_up"), ("ffn_up",)),
    "layers.mlp.up": (("ffn_up",),),
    "layers.mlp.down": (("ffn_down",),),
    "layers.mlp.router": (("ffn_gate_inp",),),
    "layers.mlp.experts.gate_up": (("ffn_gate_exps", "ffn_up_exps"), ("ffn_gate_up_exps",)),
    "layers.mlp.experts.down": (("ffn_down_exps",),),
    "layers.mlp.shared.gate_up": (("ffn_gate_shexp", "ffn_up_shexp"),),
    "layers.mlp.shared.down": (("ffn_down_shexp",),),
    "layers.mlp.shared_gate": (("ffn_gate_inp_shexp",),),
    "layers.mlp_post_norm": (("post_ffw_norm",),),
}
"""By the path of a parameter without its last part: the tensors whose rows, one after another, are its rows.

Where files differ, the first that are there hold."""


@dataclass(frozen=True, slots=True)
class Part:
    """Where ``GgufTensors`` finds a source of a parameter: the rows of the tensors ``names``, one after another.

    ``shape``: of each of the tensors. ``index``: what is taken of each, one expert or some rows; empty: all.
    ``order``: the file's row for each row of the source; None: they are in the same order.
    """

    names: Names
    shape: tuple[int, ...]
    index: Index
    order: tuple[int, ...] | None


def parts_of(
    config: DecoderConfig, stored: Collection[str], renamed: Mapping[str, tuple[Names, ...]], *, rotated: bool
) -> dict[str, Part]:
    """Return where each source of the model's parameters is, by its name in a Hugging Face checkpoint.

    ``stored``: names of the file's tensors. ``renamed``: entries of NAMES that the architecture has instead.
    ``rotated``: whether rows of queries and keys whose rotary pairs belong together are neighbours in the file. All
    other rows are there in the order of the parameter, whatever a Hugging Face checkpoint has.
    """
    table, result = NAMES | dict(renamed), {}
    orders = (interleaved_queries(config), interleaved_keys(config), None) if rotated else (None,)
    for parameter in parameters(config):
        whole = path_without_stack(parameter.path)
        path, _, kind = whole.rpartition(".")
        if path not in table:  # a vector that is not a weight of a module
            path, kind = whole, "weight"
        count = len(parameter.sources)
        for piece, (source, index) in enumerate(parameter.pieces()):
            before, number = _block(parameter, index[0]) if path.startswith(_IN_LAYER) else "", piece % count
            ways = [tuple(f"{before}{name}.{kind}" for name in names) for names in table[path]]
            names = _present([way for way in ways if 1 in (count, len(way)) or count == len(way)], stored)
            order = orders[number] if path == _QKV and count == len(orders) else None
            if rotated and path in _QK_NORMS:
                order = orders[_QK_NORMS.index(path)]
                assert order is not None
                order = order[: parameter.shape[-1]]  # that of the first head is that of all
            result[source.name] = _part(parameter, index, number, names, order)
    return result


def _block(parameter: Parameter, layer: int | slice) -> str:
    """Return how the names of a layer's tensors begin."""
    assert isinstance(layer, int)
    return f"blk.{parameter.number(layer)}."


def _present(ways: list[Names], stored: Collection[str]) -> Names:
    """Return the first names that are all in the file; without any, the first."""
    return next((names for names in ways if all(name in stored for name in names)), ways[0])


def _part(parameter: Parameter, index: Index, number: int, names: Names, order: tuple[int, ...] | None) -> Part:
    """Return where the source ``number`` of a parameter is. ``index``: its own in the parameter."""
    if (source := parameter.sources[number]).is_filter:
        return Part(names, (source.shape[0], source.shape[2]), (), None)
    layers, experts = (0 if size is None else 1 for size in (parameter.num_layers, parameter.num_experts))
    stacked, (rows, *rest) = parameter.shape[layers : layers + experts], parameter.shape[layers + experts :]
    of_expert, own = index[layers:-1], index[-1]
    assert isinstance(own, slice)
    if len(names) == len(parameter.sources):
        return Part((names[number],), (*stacked, own.stop - own.start, *rest), of_expert, order)
    if len(names) == 1:
        return Part(names, (*stacked, rows, *rest), (*of_expert, own), order)
    return Part(names, (*stacked, rows // len(names), *rest), of_expert, order)
