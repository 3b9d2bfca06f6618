"""Mixtral (arXiv 2401.04088): Mistral with experts in place of its MLP."""

from dataclasses import replace
from typing import Any

from jaxgen.core.config import DType
from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.moe_config import MoEConfig
from jaxgen.weights.config_fields import Fields
from jaxgen.weights.decoder_names import DecoderNames
from jaxgen.weights.families.llama import read_llama
from jaxgen.weights.family import MOE_TRAINING, Family


def read_mixtral(fields: Fields, dtype: DType) -> DecoderConfig:
    """Return the description."""
    defaults: dict[str, Any] = {"kv_heads": 8, "default_window": None, "rms_norm_eps": 1e-5, "theta": 1_000_000.0}
    config = read_llama(fields, dtype, biases=False, window=True, **defaults)
    moe = MoEConfig(
        experts=fields.size("num_local_experts", 8),
        per_token=fields.size("num_experts_per_tok", 2),
        inner=config.intermediate_size,
    )
    return replace(config, family="mixtral", moe=moe)


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
