"""gpt-oss (arXiv 2508.10925): experts in place of the MLP, biases everywhere, and a window in every other layer.

Each query head has a score (a sink) that takes part in its softmax without a value.
"""

from jaxgen.weights.families.family import (
    MOE_TRAINING,
    AttentionConfig,
    DecoderConfig,
    DecoderNames,
    DType,
    Family,
    HeadConfig,
    JsonFields,
    MoEConfig,
    NormConfig,
    Parameter,
    PositionConfig,
    Source,
    demand_rope,
    read_layer_types,
    read_rope,
    read_sizes,
    windows_of,
)


def read_gpt_oss(fields: JsonFields, dtype: DType) -> DecoderConfig:
    """Return the description."""
    sizes = read_sizes(fields, dtype, max_position=131_072, kv_heads=8, head_dim=64)
    fields.choice("hidden_act", "silu", ("silu",))
    fields.must_be("swiglu_limit", 7.0)
    fields.must_be("swiglu_alpha", 1.702)
    bias = fields.boolean("attention_bias", True)
    types = read_layer_types(fields, sizes["num_layers"], lambda layer: layer % 2 == 0)
    demand_rope(fields)
    rope = read_rope(fields, sizes["max_position"], sizes["head_dim"], theta=150_000.0)
    return DecoderConfig(
        **sizes,
        windows=windows_of(types, fields.size_or_null("sliding_window", 128)),
        norm=NormConfig(eps=fields.positive("rms_norm_eps", 1e-5), scale_in_float32=True),
        positions=PositionConfig(ropes=(rope,)),
        attention=AttentionConfig(qkv_bias=bias, out_bias=bias, sinks=True),
        moe=MoEConfig(
            experts=fields.size("num_local_experts", 128),
            per_token=fields.size("num_experts_per_tok", 4),
            inner=sizes["intermediate_size"],
            scoring="softmax_after_topk",
            router_bias=True,
            expert_bias=True,
            activation="swiglu_clipped",
        ),
        head=HeadConfig(tied=fields.boolean("tie_word_embeddings", False)),
    )


class _Names(DecoderNames):
    def experts(self, config: DecoderConfig, moe: MoEConfig) -> list[Parameter]:
        """Tensors have all experts, as [in, out], with gate and up in turns."""
        E, width, inner = moe.experts, config.hidden_size, moe.inner
        in_turns = (*range(0, 2 * inner, 2), *range(1, 2 * inner, 2))
        result = []
        for path, sizes, rows in (("gate_up", (width, 2 * inner), in_turns), ("down", (inner, width), None)):
            name = f"{self.layer}.mlp.experts.{path}_proj"
            weight = Source(name, (E, *sizes), transposed=True, rows=rows)
            bias = Source(f"{name}_bias", (E, sizes[1]), rows=rows, is_bias=True)
            result.append(Parameter(f"layers.mlp.experts.{path}.weight", (weight,), config.num_layers, E))
            result.append(Parameter(f"layers.mlp.experts.{path}.bias", (bias,), config.num_layers, E))
        return result


FAMILY = Family(
    name="gpt_oss",
    read={"GptOssForCausalLM": read_gpt_oss},
    parameters=_Names(router="mlp.router").table,
    ignored=(*MOE_TRAINING, "experts_per_token", "initial_context_length", "swiglu_limit", "layer_types"),
)
