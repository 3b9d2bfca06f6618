"""The architectures of GGUF files that are read: one row of a table for each. Host only, no jax.

A row says what the files of an architecture have in their own way; ``jaxgen.weights.gguf.names`` has the names of all
tensors, ``jaxgen.weights.gguf.configuration`` reads the metadata.
"""

from functools import partial
from typing import Any

from jaxgen.weights.families.config_fields import REQUIRED
from jaxgen.weights.families.not_served import what_is_near
from jaxgen.weights.families.row_orders import (
    delta_by_key_head,
    gated_queries,
    gates_by_key_head,
    tiled_channels,
    tiled_heads,
    tiled_values,
)
from jaxgen.weights.gguf import descriptions, gemma4
from jaxgen.weights.gguf.architecture import AFTER_ATTENTION, ENDS, GLM_ENDS, LAYER, OF_IMAGES, RMS, Architecture
from jaxgen.weights.gguf.corrected import CORRECTED
from jaxgen.weights.gguf.file import GgufFile
from jaxgen.weights.gguf.names import Orders
from jaxgen.weights.gguf.rope import rope_parameters


def architecture_of(file: GgufFile) -> Architecture:
    """Return the architecture of a file. Raises ConfigError for one that cannot be converted."""
    file.fields.choice("general.type", "model", ("model",))
    name = file.fields.data.get("general.architecture")
    if isinstance(name, str) and name not in ARCHITECTURES and (near := what_is_near(name)):
        raise file.fields.error("general.architecture", f"is {name!r}, {near}")
    return ARCHITECTURES[file.fields.choice("general.architecture", REQUIRED, tuple(ARCHITECTURES))]


_ROTATED = Orders(rotated=True)
_PARTIAL = partial(rope_parameters, partial=True)
_LLAMA_BIASES = {"attention_bias": "attn_q", "mlp_bias": "ffn_gate"}
_OWN_BIAS = {"attention_bias": "attn_q"}
_NO_WINDOW = {"use_sliding_window": False}
_EXPERTS = {"expert_count": "num_experts", "expert_used_count": "num_experts_per_tok"}
_INNER = {"expert_feed_forward_length": "moe_intermediate_size"}
_SHARED = {"expert_shared_feed_forward_length": "shared_expert_intermediate_size"}
_OF_NO_LAYER = (*("ssm.conv_kernel", "ssm.state_size", "ssm.group_count", "ssm.inner_size", "ssm.time_step_rank"),)
"""Of dense models of a family that may have other layers."""
_NETS: dict[str, Any] = {
    "sizes": {
        "ssm.conv_kernel": "linear_conv_kernel_dim",
        "ssm.state_size": "linear_key_head_dim",
        "ssm.group_count": "linear_num_key_heads",
        "ssm.time_step_rank": "linear_num_value_heads",
    },
    "biases": _OWN_BIAS,
    "rope": _PARTIAL,
    "ignored": OF_IMAGES,
    "describe": descriptions.gated_delta_nets,
    "renamed": AFTER_ATTENTION,
}
_NETS_WITH_EXPERTS = _NETS | {"sizes": _NETS["sizes"] | _EXPERTS | _INNER | _SHARED}
_TILED = Orders(
    rows={
        "attn_q": gated_queries,
        "attn_qkv": tiled_channels,
        "attn_gate": tiled_values,
        "ssm_conv1d": tiled_channels,
        **dict.fromkeys(("ssm_beta", "ssm_alpha", "ssm_a", "ssm_dt"), tiled_heads),
    },
    inputs={"ssm_out": tiled_values},
)
"""Files have the first value heads of all key heads, then the second ones, and so on."""
_BY_KEY_HEAD = Orders(rows={"attn_q": gated_queries, "ssm_in": delta_by_key_head, "ssm_ba": gates_by_key_head})
_GEMMA_4: dict[str, Any] = {
    "sizes": {"attention.sliding_window": "sliding_window"},
    "copied": {"final_logit_softcapping": "final_logit_softcapping"},
    "fixed": {"hidden_activation": "gelu_pytorch_tanh"},
}
_GEMMA = _GEMMA_4 | {"end_tokens": (*ENDS, "<end_of_turn>", "<eos>"), "by_position": True}
ARCHITECTURES = {
    **CORRECTED,
    "llama": Architecture(
        model="LlamaForCausalLM", model_type="llama", biases=_LLAMA_BIASES, describe=descriptions.llama, orders=_ROTATED
    ),
    "mistral3": Architecture(
        model="Ministral3ForCausalLM",
        model_type="ministral3",
        fixed={"sliding_window": None},
        rope=descriptions.mistral3_rope,
        describe=descriptions.mistral3,
        orders=_ROTATED,
    ),
    "qwen2": Architecture(model="Qwen2ForCausalLM", model_type="qwen2", fixed=_NO_WINDOW),
    "qwen2moe": Architecture(
        model="Qwen2MoeForCausalLM",
        model_type="qwen2_moe",
        sizes=_EXPERTS | _INNER | _SHARED,
        fixed=_NO_WINDOW | {"norm_topk_prob": False},
        biases={"qkv_bias": "attn_q"},
    ),
    "qwen2vl": Architecture(model="Qwen2ForCausalLM", model_type="qwen2", fixed=_NO_WINDOW, ignored=OF_IMAGES),
    "qwen3": Architecture(model="Qwen3ForCausalLM", model_type="qwen3", fixed=_NO_WINDOW, biases=_OWN_BIAS),
    "qwen3moe": Architecture(
        model="Qwen3MoeForCausalLM",
        model_type="qwen3_moe",
        sizes=_EXPERTS | _INNER,
        fixed=_NO_WINDOW | {"norm_topk_prob": True},
        biases=_OWN_BIAS,
    ),
    "qwen3vl": Architecture(
        model="Qwen3ForCausalLM", model_type="qwen3", fixed=_NO_WINDOW, biases=_OWN_BIAS, ignored=OF_IMAGES
    ),
    "qwen3vlmoe": Architecture(
        model="Qwen3MoeForCausalLM",
        model_type="qwen3_moe",
        sizes=_EXPERTS | _INNER,
        fixed=_NO_WINDOW | {"norm_topk_prob": True},
        biases=_OWN_BIAS,
        ignored=OF_IMAGES,
    ),
    "qwen35": Architecture(model="Qwen3_5ForCausalLM", model_type="qwen3_5_text", orders=_TILED, **_NETS),
    "qwen35moe": Architecture(
        model="Qwen3_5MoeForCausalLM", model_type="qwen3_5_moe_text", orders=_TILED, **_NETS_WITH_EXPERTS
    ),
    "qwen3next": Architecture(
        model="Qwen3NextForCausalLM", model_type="qwen3_next", orders=_BY_KEY_HEAD, **_NETS_WITH_EXPERTS
    ),
    "gpt-oss": Architecture(
        model="GptOssForCausalLM",
        model_type="gpt_oss",
        sizes=_EXPERTS | {"expert_count": "num_local_experts", "attention.sliding_window": "sliding_window"},
        biases=_OWN_BIAS,
        rope=partial(rope_parameters, yarn={"truncate": False}),
        describe=descriptions.gpt_oss,
        renamed=AFTER_ATTENTION,
        # <|end|> ends a message, of which an answer has several.
        end_tokens=("<|return|>", "<|call|>", "<|endoftext|>"),
    ),
    "gemma2": Architecture(model="Gemma2ForCausalLM", model_type="gemma2", describe=descriptions.gemma2, **_GEMMA),
    "gemma3": Architecture(
        model="Gemma3ForCausalLM",
        model_type="gemma3_text",
        rope=partial(rope_parameters, theta=REQUIRED),
        describe=descriptions.gemma3,
        **_GEMMA,
    ),
    "gemma4": Architecture(
        model="Gemma4ForCausalLM",
        model_type="gemma4_text",
        biases=_OWN_BIAS,
        rope=gemma4.rope,
        describe=gemma4.describe,
        by_layer=gemma4.BY_LAYER,
        renamed={"layers.mlp.shared.gate_up": (("ffn_gate", "ffn_up"),), "layers.mlp.shared.down": (("ffn_down",),)},
        end_tokens=("<turn|>", "<eos>", "<|tool_response>"),
        **_GEMMA_4,
    ),
    "lfm2": Architecture(
        model="Lfm2ForCausalLM",
        model_type="lfm2",
        spelled={"rms_norm_eps": "norm_eps"},
        sizes={"shortconv.l_cache": "conv_L_cache"},
        describe=descriptions.lfm2,
        without_attention=True,
        renamed={"norm": (("token_embd_norm",), ("output_norm",))},
    ),
    "lfm2moe": Architecture(
        model="Lfm2MoeForCausalLM",
        model_type="lfm2_moe",
        spelled={"rms_norm_eps": "norm_eps"},
        sizes={"shortconv.l_cache": "conv_L_cache", **_EXPERTS, **_INNER},
        copied={
            "leading_dense_block_count": "num_dense_layers",
            "expert_weights_scale": "routed_scaling_factor",
            "expert_weights_norm": "norm_topk_prob",
        },
        describe=descriptions.lfm2_moe,
        without_attention=True,
        renamed={"norm": (("token_embd_norm",), ("output_norm",))},
    ),
    "phi2": Architecture(
        model="PhiForCausalLM",
        model_type="phi",
        spelled={"rms_norm_eps": "layer_norm_eps"},
        eps=LAYER,
        rope=_PARTIAL,
    ),
    "phi3": Architecture(
        model="Phi3ForCausalLM", model_type="phi3", rope=_PARTIAL, describe=descriptions.phi3, strips=True
    ),
    "smollm3": Architecture(
        model="SmolLM3ForCausalLM",
        model_type="smollm3",
        fixed=_NO_WINDOW | {"no_rope_layer_interval": 4},
        biases=_LLAMA_BIASES,
        orders=_ROTATED,
    ),
    "olmo2": Architecture(model="Olmo2ForCausalLM", model_type="olmo2", biases=_OWN_BIAS, describe=descriptions.olmo2),
    "glm4": Architecture(
        model="Glm4ForCausalLM",
        model_type="glm4",
        biases=_OWN_BIAS,
        rope=_PARTIAL,
        orders=_ROTATED,
        end_tokens=GLM_ENDS,
    ),
    "granite": Architecture(
        model="GraniteForCausalLM",
        model_type="granite",
        copied={
            "attention.scale": "attention_multiplier",
            "embedding_scale": "embedding_multiplier",
            "residual_scale": "residual_multiplier",
            "logit_scale": "logits_scaling",
        },
        biases=_LLAMA_BIASES,
        ignored=_OF_NO_LAYER,
        describe=descriptions.granite,
        orders=_ROTATED,
    ),
    "exaone4": Architecture(
        model="Exaone4ForCausalLM",
        model_type="exaone4",
        describe=descriptions.exaone4,
        end_tokens=(*ENDS, "[|endofturn|]"),
    ),
    "command-r": Architecture(
        model="CohereForCausalLM",
        model_type="cohere",
        spelled={"rms_norm_eps": "layer_norm_eps"},
        eps=LAYER,
        copied={"logit_scale": "logit_scale"},
        biases=_OWN_BIAS,
        describe=descriptions.command_r,
        orders=_ROTATED,
        end_tokens=("<|END_OF_TURN_TOKEN|>", "<EOS_TOKEN>"),
    ),
    "nemotron": Architecture(
        model="NemotronForCausalLM",
        model_type="nemotron",
        spelled={"rms_norm_eps": "norm_eps"},
        eps=LAYER,
        biases={"attention_bias": "attn_q", "mlp_bias": "ffn_up"},
        rope=_PARTIAL,
        ignored=(RMS,),
        describe=descriptions.nemotron,
        end_tokens=(*ENDS, "<extra_id_1>"),
    ),
    "stablelm": Architecture(
        model="StableLmForCausalLM",
        model_type="stablelm",
        spelled={"rms_norm_eps": "layer_norm_eps"},
        eps=LAYER,
        biases={"use_qkv_bias": "attn_q"},
        rope=_PARTIAL,
        ignored=("use_parallel_residual",),  # which files have as true where a config.json does not say it
        describe=descriptions.stablelm,
    ),
    "starcoder2": Architecture(
        model="Starcoder2ForCausalLM",
        model_type="starcoder2",
        spelled={"rms_norm_eps": "norm_epsilon"},
        eps=LAYER,
        fixed={"sliding_window": None},
        biases={"use_bias": "attn_q"},
    ),
    "gpt2": Architecture(
        model="GPT2LMHeadModel",
        model_type="gpt2",
        spelled={
            "hidden_size": "n_embd",
            "intermediate_size": "n_inner",
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "num_key_value_heads": None,
            "max_position_embeddings": "n_positions",
            "rms_norm_eps": "layer_norm_epsilon",
        },
        eps=LAYER,
        rope=None,
    ),
    "gptneox": Architecture(
        model="GPTNeoXForCausalLM",
        model_type="gpt_neox",
        spelled={"rms_norm_eps": "layer_norm_eps"},
        eps=LAYER,
        copied={"use_parallel_residual": "use_parallel_residual"},
        biases={"attention_bias": "attn_qkv"},
        rope=_PARTIAL,
    ),
    "falcon": Architecture(
        model="FalconForCausalLM",
        model_type="falcon",
        spelled={
            "intermediate_size": "ffn_hidden_size",
            "num_key_value_heads": "num_kv_heads",
            "rms_norm_eps": "layer_norm_epsilon",
        },
        eps=LAYER,
        biases={"bias": "attn_qkv"},
        ignored=("tensor_data_layout",),
        describe=descriptions.falcon,
        renamed={"layers.attn_norm": (("attn_norm_2",), ("attn_norm",)), "layers.mlp_norm": (("attn_norm",),)},
    ),
}
"""By ``general.architecture``."""
