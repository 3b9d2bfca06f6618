"""Find the texts that a JSON schema allows, as regular expressions of llguidance, which are matched without quotes."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from jaxgen.server.tool_calls.typed_values import Schemas

_MOST = 16
"""Most alternatives of one value; further ones are left out."""
_DEEPEST = 64
_LONGEST = 10_000
"""Longest bound of a text's length that is kept to: each character of it is a state."""
_DATE, _TIME = r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])", r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
_ZONE = r"(\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_BYTE = r"(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_FORMATS = {
    "date": _DATE,
    "time": _TIME + _ZONE,
    "date-time": f"{_DATE}T{_TIME}{_ZONE}",
    "uuid": r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "email": r"[A-Za-z0-9_+-]+(\.[A-Za-z0-9_+-]+)*@[A-Za-z0-9]+(-[A-Za-z0-9]+)*(\.[A-Za-z0-9]+(-[A-Za-z0-9]+)*)+",
    "ipv4": rf"{_BYTE}(\.{_BYTE}){{3}}",
}
_NOT_REGULAR = re.compile(r"\(\?[=!<]|\\[1-9bBk]")
"""Look-around, references back and borders of words, of which llguidance has none."""


@dataclass(frozen=True, slots=True)
class AllowedTexts:
    """Some texts. ``values``: these, others than texts as JSON; None: any. ``patterns``: regular expressions that all
    match the whole text."""

    values: tuple[str, ...] | None = None
    patterns: tuple[str, ...] = ()


def texts_of(schema: Any, schemas: Schemas) -> list[AllowedTexts]:
    """Return alternatives that together are the texts which the schema allows; none where it allows no text."""
    if "string" not in schemas.kinds(schema):
        return []
    return _Finding(schemas).texts(schema, 0) or [AllowedTexts()]


class _Finding:
    def __init__(self, schemas: Schemas) -> None:
        self._schemas = schemas
        self._known: dict[int, list[AllowedTexts]] = {}

    def texts(self, schema: Any, depth: int) -> list[AllowedTexts]:
        if not isinstance(schema, Mapping) or depth > _DEEPEST:
            return [] if schema is False else [AllowedTexts()]
        if id(schema) not in self._known:
            self._known[id(schema)] = []  # for a reference that leads back here
            self._known[id(schema)] = self._find(schema, depth + 1)
        return self._known[id(schema)]

    def _find(self, schema: Mapping[str, Any], depth: int) -> list[AllowedTexts]:
        if "string" not in self._schemas.kinds(schema):
            return []
        texts = [_own(schema)]
        if "$ref" in schema:
            texts = _both(texts, self.texts(self._schemas.follow(schema["$ref"]), depth))
        for word in ("allOf", "anyOf", "oneOf"):
            branches = schema.get(word)
            if isinstance(branches, list) and branches:
                each = [self.texts(branch, depth) for branch in branches]
                for alternatives in each if word == "allOf" else [[text for some in each for text in some]]:
                    texts = _both(texts, alternatives)
        return texts


def _own(schema: Mapping[str, Any]) -> AllowedTexts:
    """Return what a schema says itself of a text."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    texts = tuple(map(_written, values)) if isinstance(values, list) else None
    patterns = [*_bounds(schema.get("minLength"), schema.get("maxLength"))]
    if isinstance(pattern := schema.get("pattern"), str) and (whole := whole_pattern(pattern)):
        patterns.append(whole)
    if isinstance(named := schema.get("format"), str) and named in _FORMATS:
        patterns.append(_FORMATS[named])
    return AllowedTexts(texts, tuple(patterns))


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _bounds(least: Any, most: Any) -> list[str]:
    least, most = (bound if isinstance(bound, int) and 0 <= bound <= _LONGEST else None for bound in (least, most))
    if not least and most is None:
        return []
    return [f"(?s:.{{{least or 0},{'' if most is None else most}}})"]


def whole_pattern(pattern: str) -> str | None:
    """Return a schema's pattern, which may match anywhere in a text, as one of the whole text; None: it cannot be."""
    if _NOT_REGULAR.search(pattern):
        return None
    try:
        re.compile(pattern)
    except (re.error, OverflowError):
        return None
    begins, inner = pattern.startswith("^"), pattern.removeprefix("^")
    ends = inner.endswith("$") and not inner.endswith("\\$")
    inner = inner.removesuffix("$") if ends else inner
    if re.search(r"(?<!\\)(?<!\[)[\^$]", inner) or ((begins or ends) and "|" in inner):
        return None
    return f"{'' if begins else '(?s:.*)'}({inner}){'' if ends else '(?s:.*)'}"


def _both(ones: list[AllowedTexts], others: list[AllowedTexts]) -> list[AllowedTexts]:
    """Return the texts that are among both."""
    result = []
    for texts, other in islice(((texts, other) for texts in ones for other in others), _MOST):
        values = texts.values if other.values is None else other.values
        if texts.values is not None and other.values is not None:
            values = tuple(value for value in texts.values if value in other.values)
        result.append(AllowedTexts(values, tuple(dict.fromkeys(texts.patterns + other.patterns))))
    return list(dict.fromkeys(result))
