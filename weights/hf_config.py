"""Read ``config.json`` of a Hugging Face checkpoint into a ModelConfig. Host only, no jax.

Optional fields that are absent take the defaults of transformers 5. The sizes of the model have no default: a file
without them is refused.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from jaxgen.core.config import DTYPES, DType, LlamaConfig, ModelConfig, OPTConfig, RopeConfig
from jaxgen.core.errors import ConfigError
from jaxgen.weights.files import CONFIG, GENERATION_CONFIG, member, read_json

_ROPE_KEYS = {
    "rope_theta",
    "rope_type",
    "type",
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
    "partial_rotary_factor",
}
_REQUIRED: Any = object()


@dataclass(frozen=True, slots=True)
class _Fields:
    """Typed access to the fields of one JSON object. Raises ConfigError that names the field and the file."""

    data: Mapping[str, Any]
    source: str

    def error(self, name: str, message: str) -> ConfigError:
        return ConfigError(f"{self.source}: {name} {message}")

    def _get(self, name: str, default: Any, types: tuple[type, ...], wanted: str) -> Any:
        value = self.data.get(name, default)
        if value is _REQUIRED:
            raise self.error(name, f"is missing; it must be {wanted}")
        # bool is a subclass of int, but true is no size
        if value is not default and (not isinstance(value, types) or (isinstance(value, bool) and bool not in types)):
            raise self.error(name, f"must be {wanted}, not {value!r}")
        return value

    def size(self, name: str, default: int = _REQUIRED) -> int:
        value: int = self._get(name, default, (int,), "a positive integer")
        if value < 1:
            raise self.error(name, f"must be a positive integer, not {value}")
        return value

    def size_or_null(self, name: str, default: int | None = None) -> int | None:
        if self.data.get(name, default) is None:
            return None
        return self.size(name, _REQUIRED if default is None else default)

    def positive(self, name: str, default: float = _REQUIRED) -> float:
        value = float(self._get(name, default, (int, float), "a positive number"))
        if not 0 < value < float("inf"):
            raise self.error(name, f"must be a positive number, not {value}")
        return value

    def boolean(self, name: str, default: bool) -> bool:
        return bool(self._get(name, default, (bool,), "true or false"))

    def choice(self, name: str, default: str, choices: tuple[str, ...]) -> str:
        value = str(self._get(name, default, (str,), " or ".join(choices)))
        if value not in choices:
            raise self.error(name, f"is {value!r}; supported: {', '.join(choices)}")
        return value


def read_model_config(directory: Path, dtype: Literal["auto"] | DType = "auto") -> ModelConfig:
    """Return the configuration of the checkpoint in ``directory``.

    ``dtype`` "auto": the dtype that config.json names (``dtype``, or ``torch_dtype`` in the old spelling), else
    float32. Raises ConfigError for an architecture, an option or a value that is not supported.
    """
    fields = _Fields(read_json(directory, CONFIG), str(directory / CONFIG))
    if fields.data.get("quantization_config") is not None:
        raise fields.error("quantization_config", "is not supported: the weights must be float32, bfloat16 or float16")
    architectures = fields.data.get("architectures")
    names = architectures if isinstance(architectures, list) else []
    for name in names:
        if isinstance(name, str) and name in ARCHITECTURES:
            return ARCHITECTURES[name](fields, _dtype(fields) if dtype == "auto" else dtype)
    supported = f"supported: {', '.join(ARCHITECTURES)} (docs/usage.md, Models)"
    raise fields.error("architectures", f"is {architectures!r}; {supported}")


def read_eos_token_ids(directory: Path) -> frozenset[int]:
    """Return the token ids that end a text, from generation_config.json, if it exists, and config.json together.

    Each file has an integer, a list of integers, or null; empty when neither names an id.
    """
    ids: set[int] = set()
    for name in (GENERATION_CONFIG, CONFIG):
        if name == GENERATION_CONFIG and not member(directory, name).exists():
            continue
        fields = _Fields(read_json(directory, name), str(directory / name))
        value = fields.data.get("eos_token_id")
        found = value if isinstance(value, list) else [] if value is None else [value]
        for token in found:
            if not isinstance(token, int) or isinstance(token, bool) or token < 0:
                raise fields.error("eos_token_id", f"must be a token id, a list of them or null, not {value!r}")
            ids.add(token)
    return frozenset(ids)


def _dtype(fields: _Fields) -> DType:
    name = "dtype" if fields.data.get("dtype") is not None else "torch_dtype"
    value = fields.data.get(name)
    if value is None:
        return "float32"
    for dtype in DTYPES:
        if value in (dtype, f"torch.{dtype}"):
            return dtype
    raise fields.error(name, f"is {value!r}; supported: {', '.join(DTYPES)} (--dtype chooses another)")


def _rope(fields: _Fields, max_position: int) -> RopeConfig:
    """Return the rotary embedding from ``rope_parameters`` or, in the old form, ``rope_theta`` and ``rope_scaling``."""
    # an old rope_scaling wins over rope_parameters in transformers, too
    name = "rope_scaling" if fields.data.get("rope_scaling") else "rope_parameters"
    data = fields.data.get(name) or {}
    if not isinstance(data, dict):
        raise fields.error(name, f"must be an object or null, not {data!r}")
    inherited = ("rope_theta", "partial_rotary_factor")
    outer = {key: fields.data[key] for key in inherited if fields.data.get(key) is not None}
    rope = _Fields(outer | {key: value for key, value in data.items() if value is not None}, f"{fields.source}: {name}")
    kind_name = "rope_type" if "rope_type" in rope.data else "type"
    kind = cast(Literal["default", "linear", "llama3"], rope.choice(kind_name, "default", tuple(_ROPE_KINDS)))
    if unknown := sorted(set(rope.data) - _ROPE_KEYS):
        raise rope.error(unknown[0], f"is not supported with rope type {kind!r}")
    if rope.positive("partial_rotary_factor", 1.0) != 1.0:
        raise rope.error("partial_rotary_factor", "other than 1 is not supported")
    theta = rope.positive("rope_theta", 10_000.0)
    return RopeConfig(theta=theta, kind=kind, **_ROPE_KINDS[kind](rope, fields, max_position))


def _llama3_rope(rope: _Fields, fields: _Fields, max_position: int) -> dict[str, Any]:
    low, high = rope.positive("low_freq_factor"), rope.positive("high_freq_factor")
    if low >= high:
        raise rope.error("low_freq_factor", f"must be less than high_freq_factor ({high}), not {low}")
    key = "original_max_position_embeddings"
    original = fields.size_or_null(key) or rope.size(key, max_position)
    return {
        "factor": rope.positive("factor"),
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position": original,
    }


_ROPE_KINDS: dict[str, Callable[[_Fields, _Fields, int], dict[str, Any]]] = {
    "default": lambda _rope, _fields, _max_position: {},
    "linear": lambda rope, _fields, _max_position: {"factor": rope.positive("factor")},
    "llama3": _llama3_rope,
}


def _head_dim(fields: _Fields, hidden_size: int, num_heads: int) -> int:
    if (given := fields.size_or_null("head_dim")) is not None:
        return given
    if hidden_size % num_heads:
        raise fields.error("hidden_size", f"({hidden_size}) must be a multiple of num_attention_heads ({num_heads})")
    return hidden_size // num_heads


def _llama_family(
    fields: _Fields,
    dtype: DType,
    *,
    num_kv_heads: int | None,
    max_position: int,
    sliding_window: int | None = None,
    attention_bias: bool = False,
    mlp_bias: bool = False,
) -> LlamaConfig:
    hidden_size, num_heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    head_dim = _head_dim(fields, hidden_size, num_heads)
    if head_dim % 2:
        raise fields.error("head_dim", f"must be even for rotary positions, not {head_dim}")
    fields.choice("hidden_act", "silu", ("silu",))
    return LlamaConfig(
        vocab_size=fields.size("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.size("intermediate_size"),
        num_layers=fields.size("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads or num_heads,
        head_dim=head_dim,
        max_position=max_position,
        dtype=dtype,
        sliding_window=sliding_window,
        norm_eps=fields.positive("rms_norm_eps", 1e-6),
        rope=_rope(fields, max_position),
        tie_embeddings=fields.boolean("tie_word_embeddings", False),
        attention_bias=attention_bias,
        mlp_bias=mlp_bias,
    )


def _llama(fields: _Fields, dtype: DType) -> LlamaConfig:
    return _llama_family(
        fields,
        dtype,
        num_kv_heads=fields.size_or_null("num_key_value_heads"),
        max_position=fields.size("max_position_embeddings", 2048),
        attention_bias=fields.boolean("attention_bias", False),
        mlp_bias=fields.boolean("mlp_bias", False),
    )


def _mistral(fields: _Fields, dtype: DType) -> LlamaConfig:
    return _llama_family(
        fields,
        dtype,
        num_kv_heads=fields.size_or_null("num_key_value_heads", 8),
        max_position=fields.size("max_position_embeddings", 131_072),
        sliding_window=fields.size_or_null("sliding_window", 4096),
    )


def _opt(fields: _Fields, dtype: DType) -> OPTConfig:
    hidden_size, num_heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    pre_norm = fields.boolean("do_layer_norm_before", True)
    return OPTConfig(
        vocab_size=fields.size("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.size("ffn_dim"),
        num_layers=fields.size("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=_head_dim(fields, hidden_size, num_heads),
        max_position=fields.size("max_position_embeddings", 2048),
        dtype=dtype,
        embed_size=fields.size_or_null("word_embed_proj_dim") or hidden_size,
        activation=cast(Literal["relu", "gelu"], fields.choice("activation_function", "relu", ("relu", "gelu"))),
        pre_norm=pre_norm,
        final_norm=pre_norm and not fields.boolean("_remove_final_layer_norm", False),
        norm_affine=fields.boolean("layer_norm_elementwise_affine", True),
        bias=fields.boolean("enable_bias", True),
        tie_embeddings=fields.boolean("tie_word_embeddings", True),
    )


ARCHITECTURES: dict[str, Callable[[_Fields, DType], ModelConfig]] = {
    "LlamaForCausalLM": _llama,
    "MistralForCausalLM": _mistral,
    "OPTForCausalLM": _opt,
}
