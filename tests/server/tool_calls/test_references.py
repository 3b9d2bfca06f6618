"""References of schemas in other forms than plain paths: the same values as by a plain path."""

import json
from typing import Any

import pytest

from jaxgen.server.tool_calls.references import UnresolvedReferenceError, looks_plain, pointed, with_plain_references
from jaxgen.server.tool_calls.typed_values import Schemas, typed

ITEM = {"type": "object", "properties": {"x": {"type": "integer"}}}


def at(reference: str, **root: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"p": {"$ref": reference}}, **root}


def named(name: str, **more: Any) -> dict[str, Any]:
    return {"$defs": {name: {**more, **ITEM}}}


WAYS: dict[str, dict[str, Any]] = {
    "percent": at("#/$defs/Page%3CItem%3E", **named("Page<Item>")),
    "percent of a percent": at("#/$defs/100%25", **named("100%")),
    "not encoded": at("#/$defs/Seite «ä»", **named("Seite «ä»")),
    "slash and tilde": at("#/$defs/a~1b~0c", **named("a/b~c")),
    "escapes that are encoded": at("#/$defs/a%7E1b", **named("a/b")),
    "the root's address": at("https://e.com/s.json#/$defs/I", **{"$id": "https://e.com/s.json"}, **named("I")),
    "the root's address, empty fragment": at("s.json#/$defs/I", **{"$id": "https://e.com/s.json#"}, **named("I")),
    "a root's address that is a name": at("urn:x:s#/$defs/I", **{"$id": "urn:x:s"}, **named("I")),
    "an anchor": at("#A", **named("I", **{"$anchor": "A"})),
    "an anchor by address": at("s#A", **{"$id": "s"}, **named("I", **{"$anchor": "A"})),
    "an old anchor": at("#A", **named("I", **{"$id": "#A"})),
    "an address within": at("item", **{"$id": "https://e.com/s.json"}, **named("I", **{"$id": "/item"})),
    "an address of the fourth draft": at("item", **{"$schema": "http://json-schema.org/draft-04/schema#"})
    | {"definitions": {"I": {"id": "item", **ITEM}}},
    "the root's old address": at("https://e.com/s.json#/$defs/I", id="https://e.com/s.json", **named("I")),
    "an old anchor of a document that names no draft": at("#A", **named("I", id="#A")),
    "a dynamic anchor": at("#A", **named("I", **{"$dynamicAnchor": "A"})),
    "a dynamic reference": {"properties": {"p": {"$dynamicRef": "#A"}}, **named("I", **{"$dynamicAnchor": "A"})},
    "a place of no keyword": at("#/components/schemas/I", components={"schemas": {"I": ITEM}}),
    "a place in a list": at("#/x-types/1", **{"x-types": [{}, ITEM]}),
    "a path from a resource within": at(
        "#/properties/q",
        properties={
            "p": {"$ref": "#/properties/q"},
            "q": {"$id": "inner", "$ref": "#/$defs/0", "$defs": {"0": ITEM}},
        },
    ),
}


def plain(schema: Any) -> Any:
    return with_plain_references(schema, lenient=False)


def inner(root: Any, schema: Any) -> Any:
    """What a schema leads to by plain paths."""
    while "$ref" in schema:
        schema = pointed(root, schema["$ref"])
    return {keyword: value for keyword, value in schema.items() if keyword != "id"}


@pytest.mark.parametrize("way", WAYS)
def test_each_form_leads_where_a_plain_path_leads(way: str) -> None:
    before = json.dumps(WAYS[way])
    found = plain(WAYS[way])
    assert inner(found, found["properties"]["p"]) == ITEM
    assert json.dumps(WAYS[way]) == before
    assert plain(found) is found
    schemas = Schemas(WAYS[way])
    assert typed('{"x": 1}', schemas.member("p"), schemas) == '{"x": 1}'
    assert not looks_plain(WAYS[way])


def test_a_generic_list_takes_the_type_of_the_root() -> None:
    generic = {"$id": "list", "items": {"$dynamicRef": "#T"}, "$defs": {"T": {"$dynamicAnchor": "T"}}}
    schema = {"$ref": "list", "$defs": {"list": generic, "mine": {"$dynamicAnchor": "T", "type": "integer"}}}
    found = plain(schema)
    assert inner(found, inner(found, found)["items"]) == {"type": "integer"}
    tree = {"$recursiveAnchor": True, "properties": {"next": {"$recursiveRef": "#"}}}
    assert plain(tree) == {"properties": {"next": {"$ref": "#"}}}


def test_two_references_hold_together() -> None:
    schema = {"$ref": "#A", "$dynamicRef": "#B", "$defs": {"a": {"$anchor": "A"}, "b": {"$dynamicAnchor": "B"}}}
    assert plain(schema) == {
        "$ref": "#/$defs/b",
        "allOf": [{"$ref": "#/$defs/a"}],
        "$defs": {"a": {}, "b": {}},
    }


def test_data_and_properties_stay_as_they_are() -> None:
    """A property may have the name of a keyword, and a value may look like a schema."""
    schema: dict[str, Any] = {
        "properties": {"$id": ITEM, "$ref": {"$ref": "#A"}, "x": {"const": {"$ref": "#no", "$id": "x"}}},
        "$defs": {"a": {"$anchor": "A", **ITEM}},
    }
    found = plain(schema)
    assert found["properties"] == {**schema["properties"], "$ref": {"$ref": "#/$defs/a"}}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (at("#/$defs/no"), "'#/$defs/no' leads to no schema"),
        (at("#no"), "'#no' leads to no schema: no $anchor"),
        (at("https://e.com/x"), "'https://e.com/x' leads to another document"),
        (
            {"$dynamicRef": "a#T", "$defs": {name: {"$id": name, "$dynamicAnchor": "T"} for name in "ab"}},
            "leads to several schemas",
        ),
    ],
)
def test_what_leads_nowhere_is_named(schema: dict[str, Any], words: str) -> None:
    with pytest.raises(UnresolvedReferenceError) as refused:
        plain(schema)
    assert words in str(refused.value)
    assert "$ref" not in json.dumps(with_plain_references(schema, lenient=True))
