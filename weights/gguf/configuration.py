"""Make config.json of the metadata of a GGUF file. Host only, no jax."""

from typing import Any

from jaxgen.core.errors import ConfigError
from jaxgen.core.model_info import Pooling
from jaxgen.weights.families.config_fields import REQUIRED, JsonFields
from jaxgen.weights.families.family import BOTH_WAYS
from jaxgen.weights.families.registry import without_head
from jaxgen.weights.gguf.architecture import Architecture
from jaxgen.weights.gguf.architectures import architecture_of
from jaxgen.weights.gguf.descriptions import KV_HEADS, RECURRENT, GgufDescription
from jaxgen.weights.gguf.file import GgufFile
from jaxgen.weights.gguf.names import EMBEDDING, HEAD

_POOLING = "pooling_type"
_POOLINGS = {0: None, 1: Pooling.MEAN, 2: Pooling.CLS, 3: Pooling.LAST}
"""Values of ``pooling_type``, by llama.cpp's numbers."""
_RANK = 4
_BY_LAYER = ("attention.sliding_window_pattern", "rope.dimension_sections", RECURRENT)
"""Metadata that are lists in themselves."""
_NO_MODELS = {
    "adapter": "a LoRA adapter: merge it into its model first, and name the result",
    "mmproj": "the part of a model that reads images: name the file of its text",
    "imatrix": "what a quantiser measured: name the file of the model",
}
_EXPERTS, _EXPERTS_INNER = "expert_count", "expert_feed_forward_length"


def config_of(file: GgufFile) -> dict[str, Any]:
    """Return config.json. Raises ConfigError for metadata that are missing, not supported or not known."""
    _check_type(file)
    architecture = architecture_of(file)
    own = own_fields(file, architecture)
    own.must_be("attention.causal", True, BOTH_WAYS)
    own.ignore("vocab_size", "expert_used_count", *architecture.ignored)  # the size is that of the embedding
    config = _common(file, own, architecture)
    config |= {name: own.size(key) for key, name in architecture.sizes.items()}
    config |= {name: own.get(key) for key, name in architecture.copied.items() if own.get(key) is not None}
    modules = {name.split(".", 2)[-1] for name in file.tensors}
    config |= {name: f"{module}.bias" in modules for name, module in architecture.biases.items()}
    config |= architecture.fixed
    if architecture.describe is not None:
        config |= architecture.describe(GgufDescription(file, own, config))
    if _EXPERTS not in own.used:
        own.must_be(_EXPERTS, 0, "models of this architecture have no experts")
    if pooling_of(own) is not None and HEAD not in file.tensors:  # made for embeddings, with a tied head or with none
        config["architectures"] = [without_head(name) for name in config["architectures"]]
    for key, value in sorted(own.data.items()):
        if key not in own.used and value not in (None, False, 0, "", []):
            raise own.error(key, f"is {value!r:.80}, which is not supported: it may mean another computation")
    return config


def own_fields(file: GgufFile, architecture: Architecture) -> JsonFields:
    """Return the metadata of the file's architecture, without its name in front.

    A list of equal values by layer is that value, unless the key is one of ``_BY_LAYER``. Layers without attention have
    no heads, and do not count. Of a list that may differ by layer, the value is the first layer's.
    """
    name = file.fields.data["general.architecture"]
    prefix = f"{name}."
    fields = {key.removeprefix(prefix): value for key, value in file.fields.data.items() if key.startswith(prefix)}
    layers = fields.get("block_count")
    for key, value in fields.items():
        if isinstance(value, list) and len(value) == layers and key not in _BY_LAYER:
            may_be_none = key == KV_HEADS and architecture.without_attention
            given = [item for item in value if item or not may_be_none] or value
            if key not in architecture.by_layer and any(item != given[0] for item in given):
                raise file.fields.error(f"{prefix}{key}", f"differs by layer, which is not supported: {value!r:.80}")
            fields[key] = given[0]
    return file.fields.below(name, fields)


def drafting_layers(own: JsonFields) -> int:
    """Return how many of the last layers only draft tokens."""
    return own.count("nextn_predict_layers", 0)


def _check_type(file: GgufFile) -> None:
    """Raise ConfigError for a file that has something else than a model."""
    kind = file.fields.get("general.type")
    if kind is None and any(name.endswith(".lora_a") for name in file.tensors):
        raise ConfigError(f"{file.path} is {_NO_MODELS['adapter']}")
    if kind in _NO_MODELS:
        raise file.fields.error("general.type", f"is {kind!r}: the file is {_NO_MODELS[kind]}")


def pooling_of(own: JsonFields) -> Pooling | None:
    """Return how a model of embeddings pools; None: the file does not say it. Raises ConfigError."""
    value = own.count(_POOLING, 0)
    if value == _RANK:
        raise own.error(_POOLING, f"is {value} (rank): rerankers are not supported")
    if value not in _POOLINGS:
        ways = ", ".join(f"{number} ({way or 'none'})" for number, way in _POOLINGS.items())
        raise own.error(_POOLING, f"is {value}, which is not supported; supported: {ways}")
    return _POOLINGS[value]


def _common(file: GgufFile, own: JsonFields, architecture: Architecture) -> dict[str, Any]:
    """Return what every architecture has, spelled as by its family."""
    if EMBEDDING not in file.tensors:
        raise ConfigError(f"{file.path}: the tensor {EMBEDDING} is missing")
    hidden_size, heads = own.size("embedding_length"), own.size("attention.head_count")
    head_dim = own.size_or_null("attention.key_length") or hidden_size // heads
    if not architecture.latent:
        own.must_be("attention.value_length", head_dim, "the size of keys")
    fields = {
        "architectures": [architecture.model],
        "model_type": architecture.model_type,
        "dtype": file.dtype(),
        "vocab_size": file.tensors[EMBEDDING].shape[0],
        "hidden_size": hidden_size,
        "intermediate_size": own.size("feed_forward_length", own.data.get(_EXPERTS_INNER, REQUIRED)),
        "num_hidden_layers": own.size("block_count") - drafting_layers(own),
        "num_attention_heads": heads,
        "num_key_value_heads": own.size(KV_HEADS, heads),
        "head_dim": head_dim,
        "max_position_embeddings": own.size("context_length"),
        "rms_norm_eps": own.positive(architecture.eps),
        "tie_word_embeddings": HEAD not in file.tensors,
    }
    if architecture.rope is not None:
        fields["rope_parameters"] = architecture.rope(file, own, head_dim)
    spelled = {name: architecture.spelled.get(name, name) for name in fields}
    return {name: fields[own_name] for own_name, name in spelled.items() if name is not None}
