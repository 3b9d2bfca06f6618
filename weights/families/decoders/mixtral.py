"""Mixtral (arXiv 2401.04088): Mistral with experts in place of its MLP."""

from jaxgen.weights.families.decoders.llama import read_mistral
from jaxgen.weights.families.family import (
    MOE_TRAINING,
    DecoderConfig,
    DecoderNames,
    DType,
    Family,
    JsonFields,
    MoEConfig,
    replace,
)


def read_mixtral(fields: JsonFields, dtype: DType) -> DecoderConfig:
    """Return the description."""
    config = read_mistral(fields, dtype, window=None, eps=1e-5, theta=1_000_000.0)
    moe = MoEConfig(
        experts=fields.size("num_local_experts", 8),
        per_token=fields.size("num_experts_per_tok", 2),
        inner=config.intermediate_size,
    )
    return replace(config, moe=moe)


FAMILY = Family(
    name="mixtral",
    read={"MixtralForCausalLM": read_mixtral},
    parameters=DecoderNames(
        router="block_sparse_moe.gate",
        expert_gate_up=("block_sparse_moe.experts.{expert}.w1", "block_sparse_moe.experts.{expert}.w3"),
        expert_down="block_sparse_moe.experts.{expert}.w2",
    ).table,
    ignored=MOE_TRAINING,
)
