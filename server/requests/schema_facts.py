"""Find out what a JSON schema says of its objects: the keys that it names, and which of its parts hold together."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from jaxgen.server.tool_calls.references import pointed

type Schema = Any
"""A dict or a bool, or whatever a caller has put in its place."""
type Keys = frozenset[str] | None
"""Names of keys; None: any key."""

IN_PLACE = ("allOf", "anyOf", "oneOf")
"""Keywords whose schemas are about the same value as the schema that has them."""
ANY_KEY = "*"
"""Place of a schema that may be about any key of an object."""

_MAPS = ("properties", "patternProperties")
_LISTS = (*IN_PLACE, "prefixItems")
_VALUES = ("items", "additionalItems", "additionalProperties")
_WITH_SCHEMAS = {*_MAPS, *_LISTS, *_VALUES, "$ref", "$defs", "definitions"}
_NAMES_ALL_KEYS = {"patternProperties", "propertyNames", "const", "enum"}
_DEFINITIONS = ("$defs", "definitions")


MAX_WORK = 100_000
"""Most steps of work on one schema; one of 90,000 characters with 3,000 schemas takes some 20,000."""


class NotFollowedError(Exception):
    """A reference is not a plain path from the root, or leads nowhere."""


class TooMuchWorkError(ValueError):
    """The schema's parts are combined in too many ways."""


@dataclass(frozen=True, slots=True)
class Claims:
    """The claims of schemas about one object: ``keys`` that they name, and the ``places`` of which they have schemas
    with keys themselves."""

    keys: Keys = frozenset()
    places: frozenset[str] = frozenset()


NOTHING = Claims()


def with_parts(schema: dict[str, Any], change: Callable[[str, str, Schema], Schema]) -> dict[str, Any]:
    """Return the schema without its definitions, each schema in it replaced by ``change(keyword, place, schema)``."""
    result: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword in _DEFINITIONS:
            continue
        if keyword in _MAPS and isinstance(value, dict):
            result[keyword] = {
                name: change(keyword, f"properties/{name}" if keyword == "properties" else ANY_KEY, inner)
                for name, inner in value.items()
            }
        elif keyword in (*_LISTS, "items") and isinstance(value, list):
            result[keyword] = [change(keyword, "items", inner) for inner in value]
        elif keyword in _VALUES:
            result[keyword] = change(keyword, ANY_KEY if keyword == "additionalProperties" else "items", value)
        else:
            result[keyword] = value
    return result


def listed(schema: dict[str, Any], keyword: str) -> list[Schema]:
    """Return the schemas in the list of a keyword; none where it has no list."""
    schemas = schema.get(keyword)
    return schemas if isinstance(schemas, list) else []


def has_schemas(schema: Schema) -> bool:
    """Whether there are schemas within this one, or it refers to one."""
    return isinstance(schema, dict) and not _WITH_SCHEMAS.isdisjoint(schema)


class Facts:
    """Facts about the schemas within one schema, which is not changed.

    Raises NotFollowedError, and TooMuchWorkError: what is asked again is remembered, but callers choose the schemas.
    """

    def __init__(self, root: Schema) -> None:
        self._root = root
        self.steps = 0
        """Of work, so far."""
        self._bounds: dict[tuple[int, Claims], Keys] = {}
        self._apart: dict[tuple[int, Claims], bool] = {}
        self._demands: dict[int, _Demands] = {}
        self._said: dict[int, Claims] = {}
        self._has_keys: dict[int, bool] = {}

    def spend(self, steps: int = 1) -> None:
        self.steps += steps
        if self.steps > MAX_WORK:
            raise TooMuchWorkError

    def join(self, *parts: Claims) -> Claims:
        """Return what all of these say."""
        self.spend(1 + sum(len(part.keys or ()) + len(part.places) for part in parts))
        keys: Keys = frozenset[str]().union(*(part.keys or () for part in parts))
        if any(part.keys is None for part in parts):
            keys = None
        return Claims(keys, frozenset[str]().union(*(part.places for part in parts)))

    def beside_each(self, schemas: list[Schema]) -> dict[int, Claims]:
        """Return what the others of these schemas say together, by the id of each."""
        claims = {id(schema): self.claims(schema) for schema in schemas}
        together = self.join(*claims.values())
        keys = Counter(key for said in claims.values() for key in said.keys or ())
        places = Counter(place for said in claims.values() for place in said.places)
        num_open = sum(said.keys is None for said in claims.values())
        others: dict[int, Claims] = {}
        for name, own in claims.items():
            self.spend(1 + len(keys) + len(places))
            named = frozenset(keys) - {key for key in own.keys or () if keys[key] == 1}
            is_open = num_open > (own.keys is None)
            only_here = {place for place in own.places if places[place] == 1}
            others[name] = Claims(None if is_open else named, together.places - only_here)
        return others

    def follow(self, path: Any) -> Schema:
        """Return the schema that a ``$ref`` leads to."""
        try:
            return pointed(self._root, path)
        except LookupError:
            raise NotFollowedError from None

    def claims(self, schema: Schema) -> Claims:
        """Return what a schema says of its object, all alternatives together."""
        if not isinstance(schema, dict):
            return NOTHING
        if (known := self._said.get(id(schema))) is None:
            self._said[id(schema)] = NOTHING  # for a reference that leads back here
            known = self._said[id(schema)] = self._say(schema)
        return known

    def claims_beside(self, schema: dict[str, Any], *keywords: str) -> Claims:
        """Return what a schema says of its object without some keywords."""
        self.spend()
        return self._say({key: value for key, value in schema.items() if key not in keywords})

    def bounds(self, schema: dict[str, Any], beside: Claims) -> Keys:
        """Return the keys around which a schema is closed together with ``beside``; None: it stays open."""
        asked = (id(schema), beside)
        if asked not in self._bounds:
            self._bounds[asked] = self._find_bounds(schema, self.join(self.claims(schema), beside))
        return self._bounds[asked]

    def _find_bounds(self, schema: dict[str, Any], claims: Claims) -> Keys:
        least = schema.get("minProperties", 0)
        if claims.keys is None or "additionalProperties" in schema or not isinstance(least, int):
            return None
        lists_keys = any("properties" in part for part in self._together(schema, claims, set()))
        return claims.keys if lists_keys and least <= len(claims.keys) else None

    def are_apart(self, branches: list[Schema], beside: Claims) -> bool:
        """Whether no value fits one branch, closed together with ``beside``, and another branch as it is written."""
        asked = (id(branches), beside)
        if branches and asked not in self._apart:
            self._apart[asked] = False  # for a reference that leads back here
            pairs = ((branch, other) for branch in branches for other in branches if branch is not other)
            self._apart[asked] = all(self._excludes(branch, other, beside) for branch, other in pairs)
        return not branches or self._apart[asked]

    def _say(self, schema: dict[str, Any]) -> Claims:
        places: set[str] = set()

        def see(keyword: str, place: str, inner: Schema) -> Schema:
            if keyword not in IN_PLACE and self._has_keys_within(inner):
                places.add(place)
            return inner

        with_parts(schema, see)
        named = frozenset(names(schema.get("properties"))) | frozenset(names(schema.get("required")))
        others = (schema.get(word, False) for word in ("additionalProperties", "unevaluatedProperties"))
        names_all = any(allowed is not False for allowed in others) or schema.keys() & _NAMES_ALL_KEYS
        parts = [Claims(None if names_all else named, frozenset(places))]
        parts += [self.claims(inner) for keyword in IN_PLACE for inner in listed(schema, keyword)]
        if "$ref" in schema:
            parts.append(self.claims(self.follow(schema["$ref"])))
        return self.join(*parts)

    def _has_keys_within(self, schema: Schema) -> bool:
        """Whether this schema, or one within it or that it refers to, has ``properties``."""
        waiting, seen = [schema], {}
        while waiting:
            part = waiting.pop()
            self.spend()
            if id(part) in seen or self._has_keys.get(id(part)) is False:
                continue
            seen[id(part)] = False
            if isinstance(part, dict):
                if "properties" in part or self._has_keys.get(id(part)):
                    self._has_keys[id(schema)] = True
                    return True
                if "$ref" in part:
                    waiting.append(self.follow(part["$ref"]))
                waiting += part.values()
            elif isinstance(part, list):
                waiting += part
        self._has_keys |= seen
        return False

    def _together(self, schema: Schema, beside: Claims, seen: set[int]) -> Iterator[dict[str, Any]]:
        """Yield the schemas that all hold of an object that this one holds of; those of a oneOf that stays one too."""
        if not isinstance(schema, dict) or id(schema) in seen:
            return
        seen.add(id(schema))
        self.spend()
        yield schema
        inner = [self.follow(schema["$ref"])] if "$ref" in schema else []
        one_of = listed(schema, "oneOf")
        for part in [*inner, *listed(schema, "allOf"), *([] if self.are_apart(one_of, beside) else one_of)]:
            yield from self._together(part, beside, seen)

    def _excludes(self, closed: Schema, other: Schema, beside: Claims) -> bool:
        """Whether no value is of ``closed``, once it is closed, and of ``other``."""
        self.spend()
        closed = self._resolved(closed)
        ours, theirs = self._demanded(closed), self._demanded(other)
        if _disjoint(ours.types, theirs.types):
            return True
        if ours.types != {"object"} and theirs.types != {"object"}:
            return False  # there are values without keys
        keys = self.bounds(closed, beside) if isinstance(closed, dict) else None
        if keys is not None and theirs.required - keys:
            return True
        for key in ours.required | theirs.required:
            mine, yours = (self._demanded(side.properties.get(key, True)) for side in (ours, theirs))
            if _disjoint(mine.types, yours.types) or _disjoint(mine.values, yours.values):
                return True
        return False

    def _demanded(self, schema: Schema) -> "_Demands":
        schema = self._resolved(schema)
        if id(schema) not in self._demands:
            self._demands[id(schema)] = _Demands(schema)
        return self._demands[id(schema)]

    def _resolved(self, schema: Schema) -> Schema:
        """Return what a schema leads to that is nothing but a reference."""
        while isinstance(schema, dict) and schema.keys() == {"$ref"}:
            self.spend()
            schema = self.follow(schema["$ref"])
        return schema


class _Demands:
    """The demands of a schema itself on a value; None: any value fits."""

    def __init__(self, schema: Schema) -> None:
        schema = schema if isinstance(schema, dict) else {}
        kinds = schema.get("type")
        self.types = {kinds} if isinstance(kinds, str) else set(names(kinds)) or None
        if self.types and "number" in self.types:
            self.types.add("integer")
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        told_apart = isinstance(values, list) and all(isinstance(value, str | int | None) for value in values)
        self.values = (
            set(map(json.dumps, values)) if told_apart else None
        )  # not by numbers that are written in two ways
        self.required = set(names(schema.get("required")))
        self.properties: dict[str, Schema] = schema["properties"] if isinstance(schema.get("properties"), dict) else {}


def _disjoint(ours: set[str] | None, theirs: set[str] | None) -> bool:
    return ours is not None and theirs is not None and not ours & theirs


def names(value: Any) -> list[str]:
    """Return the names in a list, or the keys of a dict; none of what is neither."""
    return [name for name in value if isinstance(name, str)] if isinstance(value, list | dict) else []
