"""Close the objects of a JSON schema: the keys that it names are then the only ones.

JSON Schema lets an object have other keys than ``properties`` names, so a model may add keys without end. A closed
schema allows a part of what the schema allows, never more. Schemas about the same object are closed together, around
the keys that any of them names: the branches of an allOf, the target of a $ref, and the keywords next to them. Branches
of an anyOf are closed one by one, each with the keywords next to the anyOf. docs/structured.md has the
rule for users.

References lead to definitions made here: the same definition may be a whole object here and a part of one there.
"""

import json
from collections import deque
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from jaxgen.server.requests.schema_facts import (
    ANY_KEY,
    IN_PLACE,
    NOTHING,
    Claims,
    Facts,
    NotFollowedError,
    Schema,
    has_schemas,
    listed,
    names,
    with_parts,
)
from jaxgen.text.grammar_compiler import MAX_LENGTH

_SAYS_NOTHING = {"$defs", "definitions", "title", "description", "default", "examples"}
_APART = {
    "properties": ("properties", "additionalProperties"),
    "patternProperties": ("patternProperties", "additionalProperties"),
    "additionalProperties": ("properties", "patternProperties", "additionalProperties"),
    "items": ("items", "prefixItems"),
    "prefixItems": ("items", "prefixItems"),
}
"""Keywords of one schema that are not about the same values."""


type _Change = Callable[[Schema, Claims], Schema]


@lru_cache(64)
def closed_schema(text: str) -> str:
    """Return the JSON text of the closed schema. Raises TooMuchWorkError.

    A schema with references other than plain paths from its root (``#/$defs/name``) stays as it is.
    """
    if len(text) > MAX_LENGTH:
        return text  # which the compiler refuses
    schema = json.loads(text)
    if '"properties"' not in text:
        return text
    try:
        return json.dumps(_Closing(schema).run())
    except (NotFollowedError, RecursionError):
        return text


class _Closing:
    """Closes one schema."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._facts = Facts(root)
        self._names: dict[tuple[str, str, Claims], str] = {}
        self._waiting: deque[Callable[[], None]] = deque()
        self._made: dict[str, Schema] = {}

    def run(self) -> Schema:
        result = self._close(self._root, NOTHING)
        while self._waiting:  # not by recursion: references may be a long chain
            self._waiting.popleft()()
        return {**result, "$defs": self._made} if self._made else result

    def _close(self, schema: Schema, beside: Claims) -> Schema:
        """Return the schema, its object closed around the keys that it names and the keys in ``beside``."""
        if not has_schemas(schema):
            return schema
        if schema.keys() - _SAYS_NOTHING == {"$ref"}:
            return {"$ref": self._reference(schema["$ref"], "closed", beside)}
        result = self._open(schema, beside)
        keys = self._facts.bounds(schema, beside)
        if keys is None:
            return result
        result.pop("unevaluatedProperties", None)  # which is false, or the keys would not be known
        if keys <= set(names(schema.get("properties"))):
            return {**result, "additionalProperties": False}
        # The last of an allOf, so that the keys come in an answer in the order in which the others name them.
        bounds: Schema = {"properties": dict.fromkeys(sorted(keys), True), "additionalProperties": False}
        return {**result, "allOf": [*listed(result, "allOf"), bounds]}

    def _open(self, schema: Schema, beside: Claims) -> Schema:
        """Return the schema, its object not closed, but those within it."""
        if not has_schemas(schema):
            return schema
        self._facts.spend()
        known: dict[str, Claims] = {}
        siblings = self._facts.beside_each(listed(schema, "allOf"))

        def others(keyword: str) -> Claims:
            if keyword not in known:
                apart = _APART.get(keyword, (keyword,))
                known[keyword] = self._facts.join(beside, self._facts.claims_beside(schema, *apart))
            return known[keyword]

        def part(keyword: str, place: str, inner: Schema) -> Schema:
            if not has_schemas(inner):
                return inner
            if keyword == "allOf":
                return self._open(inner, self._facts.join(others(keyword), siblings[id(inner)]))
            if keyword in IN_PLACE:
                return self._branch(schema, keyword, inner, others(keyword))
            places = others(keyword).places
            if place in places or ANY_KEY in places or (place == ANY_KEY and places):
                return self._as_written(inner)  # another schema is about this value too
            return self._close(inner, NOTHING)

        result = with_parts(schema, part)
        if "$ref" in schema:
            result["$ref"] = self._reference(schema["$ref"], "open", others("$ref"))
        return result

    def _branch(self, schema: dict[str, Any], keyword: str, branch: Schema, beside: Claims) -> Schema:
        """Return a branch of an anyOf or oneOf. ``beside``: the meaning of the other keywords."""
        one_by_one = keyword == "anyOf" or self._facts.are_apart(listed(schema, keyword), beside)
        return self._close(branch, beside) if one_by_one else self._open(branch, beside)

    def _as_written(self, schema: Schema, _: Claims = NOTHING) -> Schema:
        if not isinstance(schema, dict):
            return schema
        self._facts.spend()
        result = with_parts(schema, lambda _keyword, _place, inner: self._as_written(inner))
        if "$ref" in schema:
            result["$ref"] = self._reference(schema["$ref"], "written", NOTHING)
        return result

    def _reference(self, path: Any, form: str, beside: Claims) -> str:
        """Return a reference to what is at ``path``, in a form in which it will be among the definitions."""
        target = self._facts.follow(path)
        name = self._names.setdefault((path, form, beside), str(len(self._names) + 1))
        if name not in self._made:
            self._made[name] = True
            forms: dict[str, _Change] = {"closed": self._close, "open": self._open, "written": self._as_written}
            change = forms[form]
            self._waiting.append(partial(self._define, name, change, target, beside))
        return f"#/$defs/{name}"

    def _define(self, name: str, change: _Change, target: Schema, beside: Claims) -> None:
        self._made[name] = change(target, beside)
