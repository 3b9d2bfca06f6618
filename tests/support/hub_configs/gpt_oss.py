"""Configurations of gpt-oss."""

from tests.support.hub_configs.fields import FULL, SLIDING, YARN, Model, gated, turns

MODELS: dict[str, Model] = {
    "gpt-oss-20b": (
        gated(
            *("GptOssForCausalLM", 201_088, 2880, 2880, 24, 64, 8),
            eps=1e-5,
            context=131_072,
            attention_bias=True,
            experts_per_token=4,
            head_dim=64,
            initial_context_length=4096,
            layer_types=turns([SLIDING, FULL], 24),
            num_experts_per_tok=4,
            num_local_experts=32,
            output_router_logits=False,
            quantization_config={"modules_to_not_convert": ["model.layers.*.self_attn"], "quant_method": "mxfp4"},
            rope_scaling=YARN | {"factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False},
            rope_theta=150_000,
            router_aux_loss_coef=0.9,
            sliding_window=128,
            swiglu_limit=7.0,
        ),
        "20.9 B",
    ),
}
