"""Write the references of a JSON schema as plain paths from its root, the one form that readers of schemas here follow.

A reference may also be relative to an ``$id``, name an ``$anchor``, be percent-encoded, be a ``$dynamicRef``, or lead
to a place that holds schemas by convention alone, as ``components/schemas``.
"""

import json
import re
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urljoin

MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords with schemas by name."""
LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
SCHEMAS = frozenset(
    (
        "items",
        "additionalItems",
        "additionalProperties",
        "unevaluatedItems",
        "unevaluatedProperties",
        "propertyNames",
        "not",
        "if",
        "then",
        "else",
        "contains",
    )
)
"""Keywords with one schema."""
DATA = frozenset({"const", "enum", "default", "examples", "example"})
"""Keywords whose values are data, whatever they look like."""

_NAMES = frozenset({"$id", "$anchor", "$dynamicAnchor", "$recursiveAnchor"})
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_UNESCAPED = "~!$&'()*+,;=:@"
"""Characters that RFC 3986 allows in a fragment, with letters, digits and a few others."""

_ODD = re.compile(
    r'"\$(id|anchor|dynamicAnchor|dynamicRef|recursiveAnchor|recursiveRef|schema)":'
    r'|"\$ref": "(?!#"|#/(\$defs|definitions|properties)/[\w./-]+")'
)
"""Finds in a JSON text what may be other than a plain path to a schema."""

type _Path = tuple[str, ...]


class UnresolvedReferenceError(ValueError):
    """A reference leads to no schema of the document, or to several."""

    def __init__(self, reference: str, reason: str) -> None:
        super().__init__(f"the reference {reference[:100]!r} {reason}")


def pointed(root: Any, reference: Any) -> Any:
    """Return what a plain path, as ``#/$defs/name``, leads to. Raises LookupError where it leads nowhere."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        raise LookupError(reference)
    return _schema_at(root, _steps(reference[1:]))


def with_plain_references(root: Any, *, lenient: bool) -> Any:
    """Return the schema with plain paths alone, and without the names that other references need.

    The schema itself is returned where that changes nothing, and is never changed. A reference that leads nowhere is
    left out if ``lenient``. Raises UnresolvedReferenceError.
    """
    document = _Document(root)
    return _Rewriting(document, lenient=lenient).result() if document.needs_rewriting() else root


def looks_plain(schema: Any) -> bool:
    """Whether a schema surely has no other references than plain paths; quick, as an event loop needs it."""
    return not _ODD.search(json.dumps(schema))


def _steps(pointer: str) -> _Path:
    """Return the steps of a JSON pointer in a fragment."""
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in unquote(pointer).split("/")[1:])


def _plain(path: _Path) -> str:
    return "".join(("#", *(f"/{quote(_escaped(step), safe=_UNESCAPED)}" for step in path)))


def _escaped(step: str) -> str:
    return step.replace("~", "~0").replace("/", "~1")


def _schema_at(root: Any, steps: _Path) -> Any:
    """Return what steps lead to. Raises LookupError."""
    for step in steps:
        if isinstance(root, list) and step.isascii() and step.isdecimal():
            root = root[int(step[:9])]
        elif isinstance(root, Mapping):
            root = root[step]
        else:
            raise LookupError(step)
    return root


def _joined(base: str, address: str) -> str:
    """Return an address, which may be relative to a base."""
    try:
        return urljoin(base, address)
    except ValueError:
        return address


def _within(keyword: str, value: Any) -> Iterator[tuple[_Path, Any, bool]]:
    """Yield what may be a schema at a keyword: its steps, the value, and whether JSON Schema says that it is one."""
    known = keyword in MAPS or keyword in LISTS or keyword in SCHEMAS
    if keyword in MAPS and isinstance(value, Mapping):
        yield from (((keyword, name), schema, True) for name, schema in value.items())
    elif isinstance(value, list) and keyword not in DATA:
        yield from (((keyword, str(i)), schema, known) for i, schema in enumerate(value))
    elif keyword not in DATA:
        yield (keyword,), value, known


class _Place(NamedTuple):
    """The place of a schema. ``base``: the address of its resource. ``known``: JSON Schema says that it is one."""

    base: str
    known: bool


class _Document:
    """The places and the names of the schemas of one document."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self.places: dict[_Path, _Place] = {}
        old = isinstance(root, Mapping) and "draft-04" in str(root.get("$schema"))
        self.name_keyword = "id" if old else "$id"
        self._resources: dict[str, _Path] = {"": ()}
        self._anchors: dict[tuple[str, str], _Path] = {}
        self._dynamic: dict[str, dict[str, _Path]] = {}
        """By the name of a dynamic anchor: its places by the resources that have it."""
        self._references: list[Any] = []
        self._has_names = False
        waiting: list[tuple[_Path, Any, str, bool]] = [((), root, "", True)]
        while waiting:
            path, schema, base, known = waiting.pop()
            if isinstance(schema, Mapping):
                base = self._read(path, schema, base)
                waiting += (
                    ((*path, *steps), inner, base, known and right)
                    for keyword, value in schema.items()
                    for steps, inner, right in _within(keyword, value)
                )
            if isinstance(schema, Mapping | bool):
                self.places[path] = _Place(base, known)

    def needs_rewriting(self) -> bool:
        """Whether there are names, or references other than plain paths to where schemas are."""
        return self._has_names or not all(map(self._is_plain, self._references))

    def _is_plain(self, reference: Any) -> bool:
        if not isinstance(reference, str):
            return True  # which is refused as it is
        steps = _steps(reference[1:])
        place = self.places.get(steps)
        return place is not None and place.known and reference == _plain(steps)

    def _read(self, path: _Path, schema: Mapping[str, Any], base: str) -> str:
        """Add the names of a schema, and return the address of the resource that it is in."""
        base = self._read_address(path, schema, base)
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(own := schema.get(keyword), str):
                self._anchors.setdefault((base, own), path)
                if keyword == "$dynamicAnchor":
                    self._dynamic.setdefault(own, {})[base] = path
        if schema.get("$recursiveAnchor") is True:
            self._dynamic.setdefault("", {})[base] = path
        self._references += [schema["$ref"]] if "$ref" in schema else []
        self._has_names |= any(keyword in schema for keyword in (self.name_keyword, *_NAMES, *_REFERENCES[1:]))
        return base

    def _read_address(self, path: _Path, schema: Mapping[str, Any], base: str) -> str:
        """Add the address of a schema, and the anchor in it; return the address of the resource that it is in.

        Without $schema, draft 4's keyword may be what its other drafts ignore, so it changes no base.
        """
        name, former = schema.get(self.name_keyword), schema.get("id")
        is_former = not isinstance(name, str)
        if not isinstance(address_text := former if is_former else name, str):
            return base
        address, _, anchor = address_text.partition("#")
        if anchor:  # as drafts 4 to 7 have it
            self._anchors.setdefault((base if is_former else _joined(base, address), unquote(anchor)), path)
        if not address or (is_former and path):
            return base
        self._resources.setdefault(_joined(base, address), path)
        return base if is_former else _joined(base, address)

    def target(self, reference: str, base: str, *, dynamic: bool) -> _Path:
        """Return the path of what a reference in the resource ``base`` leads to. Raises UnresolvedReferenceError."""
        address, _, fragment = reference.partition("#")
        fragment = unquote(fragment)
        resource = _joined(base, address) if address else base
        if resource not in self._resources:
            raise UnresolvedReferenceError(reference, "leads to another document, and none is fetched")
        anchors = self._dynamic.get(fragment, {})
        if dynamic and resource in anchors:
            return self._outermost(reference, anchors, resource)
        if fragment and not fragment.startswith("/"):
            if (resource, fragment) not in self._anchors:
                raise UnresolvedReferenceError(reference, "leads to no schema: no $anchor has this name")
            return self._anchors[resource, fragment]
        path = (*self._resources[resource], *_steps(fragment))
        try:
            _schema_at(self.root, path)
        except LookupError:
            raise UnresolvedReferenceError(reference, "leads to no schema: nothing is there") from None
        return path

    def _outermost(self, reference: str, anchors: Mapping[str, _Path], resource: str) -> _Path:
        """Return the dynamic anchor of the root's resource, or else of the reference's own, if there is no third."""
        outermost = self.places[()].base
        if outermost not in anchors and len(anchors) > 1:
            raise UnresolvedReferenceError(reference, "leads to several schemas: give the root this anchor too")
        return anchors.get(outermost, anchors[resource])


class _Rewriting:
    """Copies a document, its references as plain paths. What is at a place of no keyword becomes a definition."""

    def __init__(self, document: _Document, *, lenient: bool) -> None:
        self._document = document
        self._lenient = lenient
        self._taken = set(document.root.get("$defs") or ()) if isinstance(document.root, Mapping) else set()
        self._names: dict[_Path, str] = {}
        self._waiting: deque[_Path] = deque()

    def result(self) -> Any:
        root = self._copied(self._document.root, (), "")
        made: dict[str, Any] = {}
        while self._waiting:
            path = self._waiting.popleft()
            made[self._names[path]] = self._copied(_schema_at(self._document.root, path), path, "")
        return {**root, "$defs": {**(root.get("$defs") or {}), **made}} if made else root

    def _copied(self, schema: Any, path: _Path, base: str) -> Any:
        if not isinstance(schema, Mapping):
            return schema
        base = self._document.places[path].base if path in self._document.places else base
        result: dict[str, Any] = {}
        references: list[str] = []
        for keyword, value in schema.items():
            if keyword in _REFERENCES and (isinstance(value, str) or keyword != "$ref"):
                references += self._rewritten(value, base, dynamic=keyword != "$ref")
            elif keyword not in _NAMES and keyword != self._document.name_keyword:
                result[keyword] = self._copied_at(keyword, value, path, base)
        if references:
            result["$ref"] = references.pop()
        if references:
            result["allOf"] = [*(result.get("allOf") or ()), *({"$ref": reference} for reference in references)]
        return result

    def _copied_at(self, keyword: str, value: Any, path: _Path, base: str) -> Any:
        parts = [(steps, schema) for steps, schema, known in _within(keyword, value) if known]
        if not parts:
            return value
        copies = [(steps[-1], self._copied(schema, (*path, *steps), base)) for steps, schema in parts]
        if isinstance(value, list):
            return [copied for _, copied in copies]
        return dict(copies) if keyword in MAPS else copies[0][1]

    def _rewritten(self, reference: Any, base: str, *, dynamic: bool) -> list[str]:
        """Return the plain path of a reference; none of one that is left out."""
        try:
            path = self._document.target(str(reference), base, dynamic=dynamic)
        except UnresolvedReferenceError:
            if self._lenient:
                return []
            raise
        place = self._document.places.get(path)
        if place is not None and place.known:
            return [_plain(path)]
        if path not in self._names:
            self._names[path] = next(name for i in count(1) if (name := f"ref{i}") not in self._taken)
            self._taken.add(self._names[path])
            self._waiting.append(path)
        return [f"#/$defs/{self._names[path]}"]
