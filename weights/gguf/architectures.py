"""The architectures of GGUF files that are read: one row of a table for each. Host only, no jax.

A row says what the files of an architecture have in their own way; ``jaxgen.weights.gguf.names`` has the names of all
tensors, ``jaxgen.weights.gguf.configuration`` reads the metadata.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from jaxgen.weights.families.config_fields import REQUIRED, JsonFields
from jaxgen.weights.families.not_served import what_is_near
from jaxgen.weights.gguf import descriptions
from jaxgen.weights.gguf.file import GgufFile
from jaxgen.weights.gguf.names import Names
from jaxgen.weights.gguf.rope import rope_parameters

NOT_CONVERTED = ("qwen35", "qwen35moe", "qwen3next")
"""Architectures that are served, but not from GGUF files."""
Describe = Callable[[descriptions.GgufDescription], dict[str, Any]]
"""Returns the fields of config.json that no row can say."""
Rope = Callable[[GgufFile, JsonFields, int], dict[str, Any]]
"""Returns ``rope_parameters`` of config.json, given the size of a head."""
_RMS, _LAYER = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"
_ENDS = ("</s>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>")


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """How the files of an architecture become a model of Hugging Face: a row of ARCHITECTURES.

    The configuration. ``model``: the value of ``architectures`` in config.json, ``model_type``: that field.
    ``spelled``: fields of config.json that the family calls otherwise, or has not (None). ``eps``: the metadata with
    the epsilon of norms. ``sizes``: further metadata, each the field of config.json that it is; they must be there.
    ``copied``: the same of metadata that may be absent. ``fixed``: fields that hold for every file. ``biases``: fields
    that say whether a module has a bias, with the module. ``rope``: reads the rotary embedding; None: there is none.
    ``ignored``: metadata that change nothing. ``describe``: gives what no row can say. ``without_attention``: whether
    some layers have no attention, which 0 heads of keys and values say.

    The tensors. ``renamed``, ``rotated``: see ``parts_of``.

    The tokenizer. ``ends``: control tokens that end an answer, in addition to the tokens that a file names.
    ``by_position``: whether the tokens of a SentencePiece vocabulary merge in the order of their ids, not of their
    scores. ``strips``: whether text loses the space after a special token.
    """

    model: str
    model_type: str
    spelled: Mapping[str, str | None] = field(default_factory=dict)
    eps: str = _RMS
    sizes: Mapping[str, str] = field(default_factory=dict)
    copied: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    biases: Mapping[str, str] = field(default_factory=dict)
    rope: Rope | None = rope_parameters
    ignored: tuple[str, ...] = ()
    describe: Describe | None = None
    without_attention: bool = False
    renamed: Mapping[str, tuple[Names, ...]] = field(default_factory=dict)
    rotated: bool = False
    end_tokens: tuple[str, ...] = _ENDS
    by_position: bool = False
    strips: bool = False


def architecture_of(file: GgufFile) -> Architecture:
    """Return the architecture of a file. Raises ConfigError for one that cannot be converted."""
    file.fields.choice("general.type", "model", ("model",))
    name = file.fields.data.get("general.architecture")
    if name in NOT_CONVERTED:
        said = f"is {name!r}, which is served from Hugging Face's files alone: name such a model instead"
        raise file.fields.error("general.architecture", said)
    if isinstance(name, str) and name not in ARCHITECTURES and (near := what_is_near(name)):
        raise file.fields.error("general.architecture", f"is {name!r}, {near}")
    return ARCHITECTURES[file.fields.choice("general.architecture", REQUIRED, tuple(ARCHITECTURES))]


_PARTIAL = partial(rope_parameters, partial=True)
_LLAMA_BIASES = {"attention_bias": "attn_q", "mlp_bias": "ffn_gate"}
_OWN_BIAS = {"attention_bias": "attn_q"}
_NO_WINDOW = {"use_sliding_window": False}
_EXPERTS = {"expert_count": "num_experts", "expert_used_count": "num_experts_per_tok"}
_INNER = {"expert_feed_forward_length": "moe_intermediate_size"}
_SHARED = {"expert_shared_feed_forward_length": "shared_expert_intermediate_size"}
_OF_IMAGES = ("rope.dimension_sections", "n_deepstack_layers")
"""Positions of texts are the same in all sections, and layers add nothing to texts."""
_OF_NO_LAYER = (*("ssm.conv_kernel", "ssm.state_size", "ssm.group_count", "ssm.inner_size", "ssm.time_step_rank"),)
"""Of dense models of a family that may have other layers."""
_GEMMA: dict[str, Any] = {
    "sizes": {"attention.sliding_window": "sliding_window"},
    "copied": {"final_logit_softcapping": "final_logit_softcapping"},
    "fixed": {"hidden_activation": "gelu_pytorch_tanh"},
    "end_tokens": (*_ENDS, "<end_of_turn>", "<eos>"),
    "by_position": True,
}
ARCHITECTURES = {
    "llama": Architecture(
        model="LlamaForCausalLM", model_type="llama", biases=_LLAMA_BIASES, describe=descriptions.llama, rotated=True
    ),
    "mistral3": Architecture(
        model="Ministral3ForCausalLM",
        model_type="ministral3",
        fixed={"sliding_window": None},
        rope=descriptions.mistral3_rope,
        describe=descriptions.mistral3,
        rotated=True,
    ),
    "qwen2": Architecture(model="Qwen2ForCausalLM", model_type="qwen2", fixed=_NO_WINDOW),
    "qwen2moe": Architecture(
        model="Qwen2MoeForCausalLM",
        model_type="qwen2_moe",
        sizes=_EXPERTS | _INNER | _SHARED,
        fixed=_NO_WINDOW | {"norm_topk_prob": False},
        biases={"qkv_bias": "attn_q"},
    ),
    "qwen2vl": Architecture(model="Qwen2ForCausalLM", model_type="qwen2", fixed=_NO_WINDOW, ignored=_OF_IMAGES),
    "qwen3": Architecture(model="Qwen3ForCausalLM", model_type="qwen3", fixed=_NO_WINDOW, biases=_OWN_BIAS),
    "qwen3moe": Architecture(
        model="Qwen3MoeForCausalLM",
        model_type="qwen3_moe",
        sizes=_EXPERTS | _INNER,
        fixed=_NO_WINDOW | {"norm_topk_prob": True},
        biases=_OWN_BIAS,
    ),
    "qwen3vl": Architecture(
        model="Qwen3ForCausalLM", model_type="qwen3", fixed=_NO_WINDOW, biases=_OWN_BIAS, ignored=_OF_IMAGES
    ),
    "qwen3vlmoe": Architecture(
        model="Qwen3MoeForCausalLM",
        model_type="qwen3_moe",
        sizes=_EXPERTS | _INNER,
        fixed=_NO_WINDOW | {"norm_topk_prob": True},
        biases=_OWN_BIAS,
        ignored=_OF_IMAGES,
    ),
    "gpt-oss": Architecture(
        model="GptOssForCausalLM",
        model_type="gpt_oss",
        sizes=_EXPERTS | {"expert_count": "num_local_experts", "attention.sliding_window": "sliding_window"},
        biases=_OWN_BIAS,
        rope=partial(rope_parameters, yarn={"truncate": False}),
        describe=descriptions.gpt_oss,
        renamed={"layers.mlp_norm": (("post_attention_norm",),)},
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
    "lfm2": Architecture(
        model="Lfm2ForCausalLM",
        model_type="lfm2",
        spelled={"rms_norm_eps": "norm_eps"},
        sizes={"shortconv.l_cache": "conv_L_cache"},
        describe=descriptions.lfm2,
        without_attention=True,
        renamed={"norm": (("token_embd_norm",), ("output_norm",))},
    ),
    "phi2": Architecture(
        model="PhiForCausalLM",
        model_type="phi",
        spelled={"rms_norm_eps": "layer_norm_eps"},
        eps=_LAYER,
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
        rotated=True,
    ),
    "olmo2": Architecture(model="Olmo2ForCausalLM", model_type="olmo2", biases=_OWN_BIAS, describe=descriptions.olmo2),
    "glm4": Architecture(
        model="Glm4ForCausalLM",
        model_type="glm4",
        biases=_OWN_BIAS,
        rope=_PARTIAL,
        rotated=True,
        end_tokens=("<|endoftext|>", "<|user|>", "<|observation|>"),
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
        rotated=True,
    ),
    "exaone4": Architecture(
        model="Exaone4ForCausalLM",
        model_type="exaone4",
        describe=descriptions.exaone4,
        end_tokens=(*_ENDS, "[|endofturn|]"),
    ),
    "command-r": Architecture(
        model="CohereForCausalLM",
        model_type="cohere",
        spelled={"rms_norm_eps": "layer_norm_eps"},
        eps=_LAYER,
        copied={"logit_scale": "logit_scale"},
        biases=_OWN_BIAS,
        describe=descriptions.command_r,
        rotated=True,
        end_tokens=("<|END_OF_TURN_TOKEN|>", "<EOS_TOKEN>"),
    ),
    "nemotron": Architecture(
        model="NemotronForCausalLM",
        model_type="nemotron",
        spelled={"rms_norm_eps": "norm_eps"},
        eps=_LAYER,
        biases={"attention_bias": "attn_q", "mlp_bias": "ffn_up"},
        rope=_PARTIAL,
        ignored=(_RMS,),
        describe=descriptions.nemotron,
        end_tokens=(*_ENDS, "<extra_id_1>"),
    ),
    "stablelm": Architecture(
        model="StableLmForCausalLM",
        model_type="stablelm",
        spelled={"rms_norm_eps": "layer_norm_eps"},
        eps=_LAYER,
        biases={"use_qkv_bias": "attn_q"},
        rope=_PARTIAL,
        ignored=("use_parallel_residual",),  # which files have as true where a config.json does not say it
        describe=descriptions.stablelm,
    ),
    "starcoder2": Architecture(
        model="Starcoder2ForCausalLM",
        model_type="starcoder2",
        spelled={"rms_norm_eps": "norm_epsilon"},
        eps=_LAYER,
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
        eps=_LAYER,
        rope=None,
    ),
    "gptneox": Architecture(
        model="GPTNeoXForCausalLM",
        model_type="gpt_neox",
        spelled={"rms_norm_eps": "layer_norm_eps"},
        eps=_LAYER,
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
        eps=_LAYER,
        biases={"bias": "attn_qkv"},
        ignored=("tensor_data_layout",),
        describe=descriptions.falcon,
        renamed={"layers.attn_norm": (("attn_norm_2",), ("attn_norm",)), "layers.mlp_norm": (("attn_norm",),)},
    ),
}
"""By ``general.architecture``."""
