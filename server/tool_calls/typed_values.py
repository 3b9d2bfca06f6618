"""Give a value that a model wrote without quotes the type that a JSON schema names."""

import json
from collections.abc import Mapping
from typing import Any

import pydantic_core

_DEEPEST = 10
"""References and alternatives within each other that are followed."""

_KINDS: dict[str, tuple[type, ...]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "object": (dict,),
    "array": (list,),
    "string": (str,),
}
_PYTHON = {"True": "true", "False": "false", "None": "null"}


def is_text(schema: Any, root: Mapping[str, Any]) -> bool:
    """Whether a value of this schema can only be a text. ``schema`` None: nothing is known of it, and so it is one.

    ``root``: the schema in which references of ``schema`` are found.
    """
    return schema is None or kinds_of(schema, root) == {"string"}


def typed(text: str, schema: Any, root: Mapping[str, Any]) -> str:
    """Return the JSON of the value that ``text`` means: of a kind that the schema allows, else as a text."""
    kinds = kinds_of(schema, root)
    stripped = text.strip()
    written = _PYTHON.get(stripped, stripped)
    try:
        value = pydantic_core.from_json(written, allow_inf_nan=False)
    except ValueError:
        return json.dumps(text, ensure_ascii=False)
    fits = not isinstance(value, str) and any(_is(value, kind) for kind in kinds)
    return written if fits else json.dumps(text, ensure_ascii=False)


def kinds_of(schema: Any, root: Mapping[str, Any], depth: int = 0) -> set[str]:
    """Return the names of the JSON types that a schema allows, by ``type``, ``enum``, ``const``, the alternatives in
    ``anyOf`` and ``oneOf``, and local references; all where it says nothing."""
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return set(_KINDS)
    if isinstance(reference := schema.get("$ref"), str):
        return kinds_of(_at(reference, root), root, depth + 1)
    named = schema.get("type")
    if isinstance(named, str):
        return {named}
    if isinstance(named, list):
        return {one for one in named if isinstance(one, str)}
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return {kind for kind in _KINDS for value in values if _is(value, kind)}
    for word in ("anyOf", "oneOf"):
        if isinstance(schema.get(word), list):
            return {kind for one in schema[word] for kind in kinds_of(one, root, depth + 1)}
    return set(_KINDS)


def _at(reference: str, root: Mapping[str, Any]) -> Any:
    """Return what a reference within the schema leads to, as ``#/$defs/name``; None: nothing."""
    found: Any = root
    for step in reference.removeprefix("#").split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if reference.startswith("#") else None


def _is(value: Any, kind: str) -> bool:
    """Whether a value is of a JSON type; true and false are no numbers, and 3.0 is an integer."""
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _KINDS.get(kind, ()))
