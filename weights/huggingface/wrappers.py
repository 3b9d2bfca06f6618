"""Models of more than text, whose text model is served: how config.json describes it. Host only, no jax."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from jaxgen.weights.families.config_fields import JsonFields, text_part
from jaxgen.weights.families.registry import ARCHITECTURES

_OUTER = (
    *("architectures", "dtype", "torch_dtype", "tie_word_embeddings", "quantization_config", "eos_token_id"),
    *("is_causal", "auto_map"),
)
"""Fields of the whole model that hold for its text too."""
_TIED = "tie_word_embeddings"
_OF_IMAGES = (
    *("vision_config", "image_token_id", "video_token_id", "image_token_index", "video_token_index"),
    *("vision_start_token_id", "vision_end_token_id", "vision_token_id"),
)
"""Fields among those of the text that texts alone do not need."""


@dataclass(frozen=True, kw_only=True)
class Wrapper:
    """``text``: the architecture of the text, where the file names no other's ``model_type``.

    ``field``: the field of config.json that describes the text. ``flat``: its fields may also be those of the file
    itself. ``defaults``: of fields of the text that it may lack. ``ignored``: fields of the text that change nothing in
    what is computed.
    """

    text: str
    field: str = "text_config"
    flat: bool = False
    defaults: Mapping[str, Any] = MappingProxyType({})
    ignored: tuple[str, ...] = ()


_RESAMPLER = ("perceiver_config", "pixel_shuffle_factor")
_QWEN2 = Wrapper(text="Qwen2ForCausalLM")
_LLAMA = Wrapper(text="LlamaForCausalLM")

WRAPPERS: dict[str, Wrapper] = {
    "Gemma3ForConditionalGeneration": Wrapper(text="Gemma3ForCausalLM"),
    "Gemma4ForConditionalGeneration": Wrapper(text="Gemma4ForCausalLM"),
    "Gemma4UnifiedForConditionalGeneration": Wrapper(text="Gemma4UnifiedForCausalLM"),
    "Idefics3ForConditionalGeneration": Wrapper(text="LlamaForCausalLM", ignored=_RESAMPLER),
    "InternVLChatModel": Wrapper(text="Qwen2ForCausalLM", field="llm_config"),
    "InternVLForConditionalGeneration": _QWEN2,
    "Lfm2VlForConditionalGeneration": Wrapper(text="Lfm2ForCausalLM"),
    "LlavaForConditionalGeneration": _LLAMA,
    "LlavaNextForConditionalGeneration": _LLAMA,
    "LlavaOnevisionForConditionalGeneration": _QWEN2,
    "Mistral3ForConditionalGeneration": Wrapper(text="MistralForCausalLM"),
    "Qwen2VLForConditionalGeneration": Wrapper(text="Qwen2ForCausalLM", flat=True),
    "Qwen2_5_VLForConditionalGeneration": Wrapper(text="Qwen2ForCausalLM", flat=True),
    "Qwen3VLForConditionalGeneration": Wrapper(text="Qwen3ForCausalLM"),
    "Qwen3VLMoeForConditionalGeneration": Wrapper(text="Qwen3MoeForCausalLM", defaults={"norm_topk_prob": True}),
    "Qwen3_5ForConditionalGeneration": Wrapper(text="Qwen3_5ForCausalLM", ignored=("language_model_only",)),
    "Qwen3_5MoeForConditionalGeneration": Wrapper(text="Qwen3_5MoeForCausalLM", ignored=("language_model_only",)),
    "SmolVLMForConditionalGeneration": Wrapper(text="LlamaForCausalLM", ignored=_RESAMPLER),
}
"""By the entry of ``architectures``."""

_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
_OMITTED: dict[str, tuple[int, ...]] = {
    "LlamaForCausalLM": (32_000, 4096, 11_008, 32, 32),
    "MistralForCausalLM": (32_000, 4096, 14_336, 32, 32),
    "Qwen2ForCausalLM": (151_936, 4096, 22_016, 32, 32),
    "Qwen3ForCausalLM": (151_936, 4096, 22_016, 32, 32),
}
"""Sizes of transformers' classes: the text's part of a file leaves out fields with equal values."""


def text_of(name: str, fields: JsonFields, head: Collection[str]) -> tuple[str, JsonFields]:
    """Return the architecture and the fields of the text in a wrapper of this name.

    ``head``: names of tensors, of which that of a head settles ``tie_word_embeddings`` where the file contradicts
    itself. Raises ConfigError for a text that is not served.
    """
    wrapper, text = WRAPPERS[name], text_part(fields.data)
    if text is None and not wrapper.flat:
        raise fields.error(wrapper.field, f"must be an object, not {fields.data.get(wrapper.field)!r}")
    given = fields.data if text is None else text
    inside = fields if text is None else fields.below(wrapper.field, given)
    architecture = wrapper.text if text is None else _architecture(name, wrapper, inside)
    outer = {field: fields.data[field] for field in _OUTER if fields.data.get(field) is not None}
    sizes = dict(zip(_SIZES, _OMITTED.get(architecture, ()), strict=False))
    data = sizes | dict(wrapper.defaults) | outer | dict(given)
    if [outer.get(_TIED), given.get(_TIED)] in ([True, False], [False, True]):
        # transformers 4 took the text's, transformers 5 takes the whole model's
        data[_TIED] = not any("lm_head" in tensor for tensor in head)
    text_fields = JsonFields(data, inside.source)
    text_fields.ignore(*_OF_IMAGES, *wrapper.ignored)
    return architecture, text_fields


def _architecture(name: str, wrapper: Wrapper, text: JsonFields) -> str:
    """Return the architecture that the text's ``model_type`` means."""
    kind = text.data.get("model_type")
    if kind is None or _squeezed(str(kind)) == _squeezed(name):
        return wrapper.text
    architecture = next((name for name in ARCHITECTURES if _squeezed(name) == _squeezed(str(kind))), None)
    if architecture is None:
        raise text.error("model_type", f"is {kind!r}, which is not supported as the text model of {name}")
    return architecture


def _squeezed(name: str) -> str:
    """Return the name of a kind of model, whether it is an architecture or a ``model_type``."""
    bare = name.removesuffix("ForCausalLM").removesuffix("ForConditionalGeneration").removesuffix("_text")
    return bare.replace("_", "").lower()
