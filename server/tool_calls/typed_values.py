"""Give a value that a model wrote without quotes the type that a JSON schema names."""

import json
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from math import isfinite
from typing import Any

from jaxgen.server.tool_calls.lenient_json import as_json, as_number
from jaxgen.server.tool_calls.references import looks_plain, pointed, with_plain_references

_DEEPEST = 64
"""References and alternatives within each other that are followed."""

_TYPES: dict[str, tuple[type, ...]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "object": (dict,),
    "array": (list,),
    "string": (str,),
}
KINDS = frozenset(_TYPES)
QUOTED = re.compile(r'\s*"(?:[^"\\]|\\.)*"\s*', re.DOTALL)
"""Matches a text in quotes."""
TEXT: Mapping[str, Any] = {"type": "string"}
"""The schema of a value of which nothing is known."""


class Schemas:
    """Answers questions about the schemas of one tool's arguments; each schema is looked at once for a question."""

    def __init__(self, root: Any) -> None:
        """``root``: the schema of the arguments, in which references are found."""
        self.root = root if looks_plain(root) else with_plain_references(root, lenient=True)
        self._kinds: dict[int, tuple[Any, frozenset[str] | None]] = {}
        """By the id of a schema: the schema, which must live as long, and its kinds."""
        self._members: dict[str, Any] = {}

    def follow(self, reference: Any) -> Any:
        """Return what a reference within the root leads to, as ``#/$defs/name``; None: nothing."""
        try:
            return pointed(self.root, reference)
        except LookupError:
            return None

    def kinds(self, schema: Any) -> frozenset[str]:
        """Return the names of the JSON types that a schema allows; all where it says nothing."""
        return self._kinds_of(schema, 0) or KINDS

    def is_text(self, schema: Any) -> bool:
        """Whether a value of this schema can only be a text."""
        return self.kinds(schema) == {"string"}

    def allows(self, value: Any, schema: Any) -> bool:
        """Whether a schema allows a value, by its type, its bounds as a number, and by ``enum`` and ``const``; what is
        in it is not looked at."""
        return self._allows(value, schema, {}, 0)

    def member(self, key: str) -> Any:
        """Return the schema of one argument: TEXT where nothing is said of it."""
        if key not in self._members:
            schema = self._member(key, self.root, set())
            self._members[key] = TEXT if schema is None else schema
        return self._members[key]

    def _kinds_of(self, schema: Any, depth: int) -> frozenset[str] | None:
        """Return the kinds; None: nothing is known, as of a schema that refers to itself alone."""
        if not isinstance(schema, Mapping) or depth > _DEEPEST:
            return None
        if id(schema) not in self._kinds:
            self._kinds[id(schema)] = schema, None  # for a reference that leads back here
            claims = [kinds for kinds in self._said(schema, depth) if kinds is not None]
            self._kinds[id(schema)] = schema, frozenset.intersection(*claims) if claims else None
        return self._kinds[id(schema)][1]

    def _said(self, schema: Mapping[str, Any], depth: int) -> Iterable[frozenset[str] | None]:
        """Yield the kinds by each keyword, which hold together."""
        nullable = frozenset({"null"} if schema.get("nullable") is True else ())
        named = schema.get("type")
        if isinstance(named, str | list):
            names = {name for name in ([named] if isinstance(named, str) else named) if isinstance(name, str)}
            yield (frozenset(names & KINDS) or KINDS) | nullable
        values = _values(schema)
        if values is not None:
            yield frozenset[str]().union(*map(kinds_of_value, values)) | nullable
        if "$ref" in schema:
            yield self._kinds_of(self.follow(schema["$ref"]), depth + 1)
        for part in _listed(schema, "allOf"):
            yield self._kinds_of(part, depth + 1)
        for word in ("anyOf", "oneOf"):
            if branches := _listed(schema, word):
                kinds = [
                    self._kinds_of(branch, depth + 1) if isinstance(branch, Mapping) else KINDS for branch in branches
                ]
                known = [of_branch for of_branch in kinds if of_branch is not None]
                yield frozenset[str]().union(*known) | nullable if known else None

    def _allows(self, value: Any, schema: Any, known: dict[int, bool], depth: int) -> bool:
        if not isinstance(schema, Mapping):
            return schema is not False
        if id(schema) not in known:
            known[id(schema)] = depth < _DEEPEST  # for a reference that leads back here
            known[id(schema)] = self._allows_anew(value, schema, known, depth + 1)
        return known[id(schema)]

    def _allows_anew(self, value: Any, schema: Mapping[str, Any], known: dict[int, bool], depth: int) -> bool:
        def allowed(part: Any) -> bool:
            return self._allows(value, part, known, depth)

        if value is None and schema.get("nullable") is True:
            return True
        if not any(_is(value, kind) for kind in self.kinds(schema)):
            return False
        values = _values(schema)
        return (
            (values is None or any(_same(value, listed) for listed in values))
            and _within_bounds(value, schema)
            and ("$ref" not in schema or allowed(self.follow(schema["$ref"])))
            and all(map(allowed, _listed(schema, "allOf")))
            and all(any(map(allowed, _listed(schema, word))) for word in ("anyOf", "oneOf") if _listed(schema, word))
        )

    def _member(self, key: str, schema: Any, seen: set[int]) -> Any:
        """Return what a schema, and the schemas that hold with it, say of a member; None: nothing."""
        if not isinstance(schema, Mapping) or id(schema) in seen or len(seen) > _DEEPEST * _DEEPEST:
            return None
        seen.add(id(schema))
        properties, more = schema.get("properties"), schema.get("additionalProperties")
        own = None
        if isinstance(properties, Mapping) and key in properties:
            own = properties[key]
        elif isinstance(more, Mapping):
            own = more
        parts = [own, *(self._member(key, part, seen) for part in _listed(schema, "allOf"))]
        if "$ref" in schema:
            parts.append(self._member(key, self.follow(schema["$ref"]), seen))
        for word in ("anyOf", "oneOf"):
            schemas = [self._member(key, branch, seen) for branch in _listed(schema, word)]
            parts.append(_one_of([member for member in schemas if member is not None], "anyOf"))
        return _one_of([part for part in parts if part is not None], "allOf")


def typed(text: str, schema: Any, schemas: Schemas) -> str:
    """Return the JSON of the value that ``text`` means: a value that the schema allows, else a text.

    Values are JSON, or as Python writes them. A text in quotes is read as the value in it where the schema allows that,
    unless it allows texts alone.
    """
    stripped = text.strip()
    kinds = schemas.kinds(schema)
    ways = [stripped, as_json(stripped)]
    value, _ = _read(ways[1])
    if "string" not in kinds:
        ways += [as_number(stripped), stripped.lower()]
        if isinstance(value, str):
            ways += [value.strip(), as_json(value.strip()), as_number(value.strip())]
    for written in dict.fromkeys(ways):
        value, is_json = _read(written)
        may_be = not isinstance(value, str) or (QUOTED.fullmatch(text) and kinds != {"string"})
        if is_json and may_be and schemas.allows(value, schema):
            return written
    return json.dumps(text, ensure_ascii=False)


def _read(text: str) -> tuple[Any, bool]:
    """Return the value of a JSON text, and whether it is one."""
    try:
        return json.loads(text, parse_constant=_refuse), True
    except (ValueError, RecursionError):
        return None, False


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _within_bounds(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether a value, if it is a number, is within a schema's bounds, and a multiple as it says."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return True

    def bound(keyword: str) -> float | None:
        number = schema.get(keyword)
        return number if isinstance(number, int | float) and not isinstance(number, bool) else None

    least, most = bound("minimum"), bound("maximum")
    above, below, step = bound("exclusiveMinimum"), bound("exclusiveMaximum"), bound("multipleOf")
    return (
        (least is None or (value > least if schema.get("exclusiveMinimum") is True else value >= least))
        and (most is None or (value < most if schema.get("exclusiveMaximum") is True else value <= most))
        and (above is None or value > above)
        and (below is None or value < below)
        and (not step or not isfinite(value) or Decimal(str(value)) % Decimal(str(step)) == 0)
    )


def _one_of(schemas: list[Any], word: str) -> Any:
    """Return a schema of several that hold together, or one by one; None: there are none."""
    return None if not schemas else schemas[0] if len(schemas) == 1 else {word: schemas}


def _values(schema: Mapping[str, Any]) -> list[Any] | None:
    """Return the values that a schema lists; None: it lists none."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return values if isinstance(values, list) else None


def _listed(schema: Mapping[str, Any], keyword: str) -> list[Any]:
    schemas = schema.get(keyword)
    return schemas if isinstance(schemas, list) else []


def _same(value: Any, other: Any) -> bool:
    """Whether two JSON values are equal: true is not 1."""
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)


def kinds_of_value(value: Any) -> frozenset[str]:
    """Return the names of the JSON types that a value has: 3 is an integer and a number."""
    return frozenset(kind for kind in KINDS if _is(value, kind))


def _is(value: Any, kind: str) -> bool:
    """Whether a value is of a JSON type; true and false are not numbers, and 3.0 is an integer."""
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[kind])
