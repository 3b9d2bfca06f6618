"""Read the rotary embedding of config.json, in the spellings of transformers 4 and 5. Host only, no jax."""

import logging
from collections.abc import Callable
from math import log, sqrt
from typing import Any, cast

from jaxgen.core.decoder_parts import RopeConfig, RopeKind
from jaxgen.weights.families.config_fields import JsonFields

logger = logging.getLogger(__name__)

_ORIGINAL = "original_max_position_embeddings"
_SUPPORTED: tuple[RopeKind, ...] = ("default", "linear", "proportional", "llama3", "yarn", "longrope")
_MOST = {"factor": 2**20, "original_max_position": 2**40}
_OFF_BY_ZERO = ("mscale", "mscale_all_dim", "beta_fast", "beta_slow")
"""Numbers of yarn of which transformers reads 0 as none."""
_ALIASES = {"su": "longrope", "mrope": "default"}
"""The three positions of a token, which ``mrope`` rotates by, are equal in text."""
_OF_IMAGES = ("mrope_section", "mrope_interleaved")
"""Which of three positions rotates which number of a head."""
_TYPES = ("rope_type", "type")
"""Names of the field of the type; transformers takes the first that there is."""
_OF_ANY = ("factor", "low_freq_factor", "high_freq_factor")
"""Numbers that files have next to a type that takes none."""
_OF_TYPES = (
    *(*_OF_ANY, "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"),
    *("short_factor", "long_factor"),
)
"""Fields that mean something only with a type."""


def rope_fields(fields: JsonFields, part: str | None = None) -> JsonFields:
    """Return the fields of ``rope_parameters`` or, in the old form, ``rope_scaling``, or those of one part of them."""
    # an old rope_scaling wins over rope_parameters in transformers, too
    name = "rope_scaling" if fields.data.get("rope_scaling") else "rope_parameters"
    data = fields.get(name) or {}
    fields.ignore("rope_scaling", "rope_parameters")
    if not isinstance(data, dict):
        raise fields.error(name, f"must be an object or null, not {data!r}")
    if part is not None and isinstance(data.get(part), dict):
        data = data[part]
    return fields.below(name, data)


def demand_rope(fields: JsonFields) -> None:
    """Raise ConfigError unless the file says how positions rotate: for families whose usual way is an extension."""
    if not rope_fields(fields).data:
        raise fields.error("rope_parameters", "is missing; it must be an object with rope_type, factor and so on")


def read_rope(
    fields: JsonFields,
    max_position: int,
    head_dim: int,
    *,
    theta: float = 10_000.0,
    partial: float | None = None,
    part: str | None = None,
    theta_name: str = "rope_theta",
    partial_name: str = "partial_rotary_factor",
    others: tuple[str, ...] = (),
) -> RopeConfig:
    """Return the rotary embedding from ``rope_parameters`` or, in the old form, ``rope_theta`` and ``rope_scaling``.

    ``theta``, ``partial``: the family's defaults, and the names of their old fields; ``partial`` None: whole heads are
    rotated. ``part``: the type of the layers, where the object has one for each type. ``others``: fields that the
    family reads itself. Raises ConfigError.
    """
    given = rope_fields(fields, part)
    outer = {"rope_theta": fields.get(theta_name), "partial_rotary_factor": fields.get(partial_name)}
    merged = {
        key: value
        for key, value in (outer | dict(given.data)).items()
        if value is not None and not (key in _OFF_BY_ZERO and type(value) in (int, float) and value == 0)
    }
    rope = JsonFields(merged, given.source)
    rope.ignore(*others)
    kind = _kind(rope, merged)
    share = rope.positive("partial_rotary_factor", 1.0 if partial is None else partial)
    if partial is None and share != 1.0:
        raise rope.error("partial_rotary_factor", "other than 1 is not supported")
    if share == 1.0 and head_dim % 2:
        raise fields.error("head_dim", f"must be even for rotary positions, not {head_dim}")
    rotary_dim = int(head_dim * share)
    if not 2 <= rotary_dim <= head_dim or rotary_dim % 2:
        raise rope.error("partial_rotary_factor", f"{share} of head_dim {head_dim} must be even and 2 or more")
    base = rope.positive("rope_theta", theta)
    name_of_type = "rope_type" if "rope_type" in merged else "type"
    try:
        values = _KINDS[kind](rope, fields, max_position, rotary_dim)
    except ArithmeticError as error:
        raise rope.error(name_of_type, f"{kind!r} cannot be computed with these numbers: {error}") from error
    for name, key in (("factor", "factor"), (_ORIGINAL, "original_max_position")):
        if values.get(key, 1) > _MOST[key]:
            raise rope.error(name, f"must be at most {_MOST[key]}")
    rope.ignore(*_TYPES, *_OF_IMAGES, _ORIGINAL)
    _warn_of_unused(rope, kind)
    return RopeConfig(
        theta=base,
        kind=kind,
        rotary_dim=None if rotary_dim == head_dim else rotary_dim,
        **values,
    )


def _kind(rope: JsonFields, data: dict[str, Any]) -> RopeKind:
    """Return the type. A missing type is an error if other fields need one; then it is not the default."""
    names = [name for name in _TYPES if name in data]
    if not names:
        given = {name: data[name] for name in _OF_TYPES if name in data}
        if any(value != 1 for value in given.values()):
            kinds = ", ".join(kind for kind in _SUPPORTED if kind != "default")
            fields = " and ".join(given)
            raise rope.error(
                "rope_type", f"is missing, without which {fields} cannot be read; it must be one of {kinds}"
            )
        return "default"
    for name in names:
        data[name] = _ALIASES.get(str(data[name]), data[name])
    if data[names[0]] != data[names[-1]]:
        logger.warning(
            "%s: rope_type is %r and type %r: the first holds, as by transformers",
            rope.source,
            data[names[0]],
            data[names[-1]],
        )
    return cast(RopeKind, rope.choice(names[0], "default", _SUPPORTED))


def _warn_of_unused(rope: JsonFields, kind: RopeKind) -> None:
    """Tell of fields that nothing reads. Raises ConfigError for one with several values, which say more than a note."""
    for name in sorted(rope.data.keys() - rope.used):
        if isinstance(rope.data[name], dict | list):
            raise rope.error(name, f"is not supported with rope type {kind!r}")
    unused = [
        name
        for name, value in rope.data.items()
        if name not in rope.used and value is not False and not (name in _OF_ANY and value == 1)
    ]
    if unused:
        logger.warning(
            "%s: %s changes nothing with rope type %r, as by transformers", rope.source, " and ".join(unused), kind
        )


def _original(rope: JsonFields, fields: JsonFields, max_position: int) -> int:
    return fields.size_or_null(_ORIGINAL) or rope.size(_ORIGINAL, max_position)


def _plain(rope: JsonFields, fields: JsonFields, max_position: int, rotary_dim: int) -> dict[str, Any]:
    del rope, fields, max_position, rotary_dim
    return {}


def _linear(rope: JsonFields, fields: JsonFields, max_position: int, rotary_dim: int) -> dict[str, Any]:
    del fields, max_position, rotary_dim
    return {"factor": rope.positive("factor")}


def _proportional(rope: JsonFields, fields: JsonFields, max_position: int, rotary_dim: int) -> dict[str, Any]:
    del fields, max_position, rotary_dim
    return {"factor": rope.positive("factor", 1.0)}


def _llama3(rope: JsonFields, fields: JsonFields, max_position: int, rotary_dim: int) -> dict[str, Any]:
    del rotary_dim
    low, high = rope.positive("low_freq_factor"), rope.positive("high_freq_factor")
    if low >= high:
        raise rope.error("low_freq_factor", f"must be less than high_freq_factor ({high}), not {low}")
    return {
        "factor": rope.positive("factor"),
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position": _original(rope, fields, max_position),
    }


def _yarn(rope: JsonFields, fields: JsonFields, max_position: int, rotary_dim: int) -> dict[str, Any]:
    del rotary_dim
    factor = rope.positive("factor")
    given = rope.positive_or_null("attention_factor")
    mscale, mscale_all_dim = rope.positive_or_null("mscale"), rope.positive_or_null("mscale_all_dim")

    def attention(scale: float = 1.0) -> float:
        return 0.1 * scale * log(factor) + 1.0 if factor > 1 else 1.0

    if given is None:
        both = mscale is not None and mscale_all_dim is not None
        given = attention(mscale or 1.0) / attention(mscale_all_dim or 1.0) if both else attention()
    return {
        "factor": factor,
        "original_max_position": _original(rope, fields, max_position),
        "beta_fast": rope.positive("beta_fast", 32.0),
        "beta_slow": rope.positive("beta_slow", 1.0),
        "truncate": rope.boolean("truncate", True),
        "attention_factor": given,
    }


def _longrope(rope: JsonFields, fields: JsonFields, max_position: int, rotary_dim: int) -> dict[str, Any]:
    """The longest context that is served decides once which of the two lists is used.

    transformers uses the long list for a text longer than the original context. It computes all keys again when an
    answer grows past that. Here bits must not depend on how a text is split into chunks. The prefix cache also shares
    keys of a text's beginning with other texts. So one list is used for all texts.
    """
    original = _original(rope, fields, max_position)
    short, long = (rope.numbers(name, rotary_dim // 2) for name in ("short_factor", "long_factor"))
    scale = rope.positive("factor", max_position / original)
    given = rope.positive_or_null("attention_factor")
    if given is None:
        given = sqrt(1.0 + log(scale) / log(original)) if scale > 1 else 1.0
    return {
        "factors": long,
        "short_factors": short,
        "original_max_position": original,
        "attention_factor": given,
    }


_KINDS: dict[RopeKind, Callable[[JsonFields, JsonFields, int, int], dict[str, Any]]] = {
    "default": _plain,
    "linear": _linear,
    "proportional": _proportional,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
