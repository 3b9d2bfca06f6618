"""Leave out of a JSON schema what no grammar can hold, so that the rest of it holds."""

from typing import Any

from jaxgen.server.tool_calls.references import DATA, LISTS, MAPS, SCHEMAS, with_plain_references
from jaxgen.server.tool_calls.typed_values import KINDS, Schemas
from jaxgen.server.tool_calls.value_texts import whole_pattern

_FORMATS = frozenset(
    ("date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid", "unknown")
)
"""Formats of texts that llguidance knows. JSON Schema lets all others be annotations."""
_FURTHEST = 2**62
"""Bounds beyond are left out: they say that a number has 64 bits, and llguidance fails on some of them."""
_LONGEST = 2**31 - 1
_BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_COUNTS = frozenset({"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"})
_IN_PLACE = frozenset({"$ref", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas"})
"""Keywords by which other schemas say something of the same value."""
_KINDS_OF_VALUES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(MAPS, (dict,)),
    **dict.fromkeys(LISTS, (list,)),
    **dict.fromkeys(SCHEMAS, (dict, bool)),
    **dict.fromkeys(_COUNTS, (int,)),
    **dict.fromkeys(_BOUNDS, (int, float)),
    "items": (dict, bool, list),
    "multipleOf": (int, float),
    "type": (str, list),
    "enum": (list,),
    "required": (list,),
    "pattern": (str,),
    "format": (str,),
    "$ref": (str,),
}


def for_grammar(schema: Any, *, lenient: bool) -> Any:
    """Return the schema without annotations that would be refused: unknown formats, keywords that are null, bounds of
    64 bits. ``{"not": {}}`` becomes false, ``nullable`` a type, and each reference a plain path.

    ``lenient``: also without what JSON Schema forbids, and patterns and references that cannot be followed; of tools,
    which callers often have from others. Raises UnresolvedReferenceError.
    """
    schema = with_plain_references(schema, lenient=lenient)
    return _Cleaning(schema, lenient=lenient).cleaned(schema)


class _Cleaning:
    def __init__(self, root: Any, *, lenient: bool) -> None:
        self._schemas = Schemas(root)
        self._lenient = lenient

    def cleaned(self, schema: Any) -> Any:
        if not isinstance(schema, dict):
            return {} if self._lenient and not isinstance(schema, bool) else schema
        if schema.get("not") in ({}, True) and "not" in schema:
            return False
        result = {key: self._value(key, value) for key, value in schema.items() if self._stays(key, value)}
        if schema.get("nullable") is True:
            _allow_null(result)
        _settle_what_is_left(result)
        return result

    def _stays(self, keyword: str, value: Any) -> bool:
        if keyword in DATA:
            return keyword != "enum" or not (value is None or (self._lenient and not value))
        if value is None or keyword == "$schema":
            return False
        if keyword == "format" and isinstance(value, str):
            return value in _FORMATS
        if keyword in _BOUNDS and isinstance(value, int | float) and abs(value) > _FURTHEST:
            return False
        return not self._lenient or self._is_followed(keyword, value)

    def _is_followed(self, keyword: str, value: Any) -> bool:
        """Whether llguidance does not refuse the whole schema for this value of a keyword."""
        expected = _KINDS_OF_VALUES.get(keyword)
        if keyword in ("exclusiveMinimum", "exclusiveMaximum") and isinstance(value, bool):
            return True
        if keyword in _COUNTS:
            return _is_count(value)
        if expected is not None and (
            not isinstance(value, expected) or (isinstance(value, bool) and bool not in expected)
        ):
            return False
        match keyword:
            case "type":
                return not KINDS.isdisjoint([value] if isinstance(value, str) else [*filter(_is_text, value)])
            case "pattern":
                return whole_pattern(value) is not None
            case "$ref":
                return self._schemas.follow(value) is not None
            case "multipleOf":
                return bool(value > 0)
            case "anyOf" | "oneOf":
                return bool(value)
        return True

    def _value(self, keyword: str, value: Any) -> Any:
        if keyword in MAPS and isinstance(value, dict):
            return {name: self.cleaned(schema) for name, schema in value.items()}
        if (keyword in LISTS or keyword == "items") and isinstance(value, list):
            return [self.cleaned(schema) for schema in value]
        if keyword in SCHEMAS and isinstance(value, dict):
            return self.cleaned(value)
        if keyword in _COUNTS and _is_count(value):
            return min(int(value), _LONGEST)
        if self._lenient and keyword == "type" and isinstance(value, list):
            return [kind for kind in value if isinstance(kind, str) and kind in KINDS]
        if self._lenient and keyword == "required" and isinstance(value, list):
            return [name for name in value if isinstance(name, str)]
        return value


def _is_count(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e18 and value == int(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _allow_null(schema: dict[str, Any]) -> None:
    """Add null to the types and the values that a schema lists, as OpenAPI 3.0 has it."""
    named = schema.get("type")
    if isinstance(named, str | list):
        names = [named] if isinstance(named, str) else named
        schema["type"] = [*names, *({"null"} - {name for name in names if isinstance(name, str)})]
    if isinstance(values := schema.get("enum"), list):
        schema["enum"] = [*values, *([] if None in values else [None])]
    for word in ("anyOf", "oneOf"):
        if isinstance(branches := schema.get(word), list):
            schema[word] = [*branches, {"type": "null"}]


def _settle_what_is_left(schema: dict[str, Any]) -> None:
    """Replace ``unevaluatedProperties`` and ``unevaluatedItems`` by keywords that grammars know, where no other schema
    is about the same value."""
    items = "additionalItems" if isinstance(schema.get("items"), list) else "items"
    for word, known in (("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", items)):
        if schema.get(word) in (True, {}):
            del schema[word]
        elif word in schema and _IN_PLACE.isdisjoint(schema):
            schema.setdefault(known, schema.pop(word))
