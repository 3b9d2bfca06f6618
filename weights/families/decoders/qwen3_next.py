"""Qwen3-Next and Qwen3-Coder-Next: what Qwen3.5 with experts is, in matrices with rows in another order."""

from jaxgen.weights.families.decoders.deepseek import with_experts
from jaxgen.weights.families.decoders.qwen3_5 import IGNORED, read_with_experts
from jaxgen.weights.families.decoders.qwen_moe import without_experts
from jaxgen.weights.families.family import DecoderConfig, DecoderNames, DType, Family, JsonFields, Parameter, replace
from jaxgen.weights.families.row_orders import delta_by_key_head, gated_queries, gates_by_key_head

_OF_NETS = {"linear_attn.in_proj_qkvz": delta_by_key_head, "linear_attn.in_proj_ba": gates_by_key_head}
_NAMES = DecoderNames(
    delta_in=("linear_attn.in_proj_qkvz",),
    delta_gates=("linear_attn.in_proj_ba",),
    rows={"self_attn.q_proj": gated_queries, **_OF_NETS},
    norm_plus=1.0,
)


def read_qwen3_next(fields: JsonFields, dtype: DType) -> DecoderConfig:
    """Return the description."""
    renormalise = fields.boolean("norm_topk_prob", True)
    config = read_with_experts(fields, dtype, 512, 10, renormalise=renormalise, inner=5632)
    assert config.moe is not None
    return with_experts(replace(config, moe=None), config.moe, without_experts(fields, config.num_layers))


def parameters(config: DecoderConfig) -> tuple[Parameter, ...]:
    """Return the table of parameters; without gated delta nets there are no rows of theirs."""
    rows = {name: rows for name, rows in _NAMES.rows.items() if config.delta is not None or name not in _OF_NETS}
    return replace(_NAMES, rows=rows).table(config)


FAMILY = Family(
    name="qwen3_next", read={"Qwen3NextForCausalLM": read_qwen3_next}, parameters=parameters, ignored=IGNORED
)
