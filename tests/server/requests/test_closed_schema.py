"""Schemas whose objects are closed, held against jsonschema_rs, which knows nothing of how that is done."""

import json
from collections.abc import Callable
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxgen.server.requests.closed_schema import closed_schema
from jaxgen.server.requests.schema_facts import Facts, TooMuchWorkError
from tests.support.fuzzing import LONG, QUICK

type Schema = dict[str, Any]

TEXT = {"type": "string"}
UNION = ({"kind": {"const": "a"}, "x": TEXT}, {"kind": {"const": "b"}, "y": TEXT})


def closed(schema: Any) -> Any:
    return json.loads(closed_schema(json.dumps(schema)))


def valid(schema: Any, value: Any) -> bool:
    return jsonschema_rs.validator_for(schema).is_valid(value)


def an(required: str = "", /, **properties: Any) -> Schema:
    """An object with these properties, those in ``required`` required."""
    return {"type": "object", "properties": properties} | ({"required": required.split()} if required else {})


CASES: list[tuple[str, Schema, list[Any], list[Any]]] = [
    ("properties", an(a=TEXT), [{}, {"a": "1"}], [{"b": 1}, {"a": "1", "b": 1}]),
    ("no properties", an(), [{}], [{"a": 1}]),
    ("an object of any keys", {"type": "object"}, [{}, {"a": 1}], []),
    (
        "within",
        an(a={"type": "array", "items": an(b=an(c=TEXT))}),
        [{"a": [{"b": {"c": "1"}}]}],
        [{"a": [{"b": {"d": 1}}]}],
    ),
    ("said to be open", {**an(a=TEXT), "additionalProperties": True}, [{"a": "1", "b": 1}], [{"a": 1}]),
    (
        "open within",
        an(a={**an(b=TEXT), "additionalProperties": TEXT}),
        [{"a": {"z": "1"}}],
        [{"z": 1}, {"a": {"z": 1}}],
    ),
    ("patterns", {**an(a=TEXT), "patternProperties": {"^b": an(c=TEXT)}}, [{"z": 1, "b": {}}], [{"b": {"z": 1}}]),
    ("required but not described", an("a b", a=TEXT), [{"a": "1", "b": 5}], [{"a": "1", "b": 5, "c": 1}]),
    ("more keys than are named", {**an(a=TEXT), "minProperties": 2}, [{"a": "1", "b": 1}], [{"a": "1"}]),
    ("one of some values", {**an(a=TEXT), "enum": [{"a": "1", "b": 1}]}, [{"a": "1", "b": 1}], [{"a": "1"}]),
    (
        "together",
        {"allOf": [an(a=TEXT), an("b", b=TEXT)]},
        [{"a": "1", "b": "1"}, {"b": "1"}],
        [{"b": "1", "c": 1}, {"a": "1"}],
    ),
    ("together with its own", {**an(c=TEXT), "allOf": [an(a=TEXT)]}, [{"a": "1", "c": "1"}], [{"z": 1}, {"a": 1}]),
    (
        "together, and one is open",
        {"allOf": [an(a=TEXT), {**an(b=TEXT), "additionalProperties": True}]},
        [{"z": 1}],
        [],
    ),
    (
        "twice about one value",
        {"allOf": [an(a=an(x=TEXT)), an(a=an(y=TEXT))]},
        [{"a": {"x": "1", "y": "1"}}],
        [{"z": 1}],
    ),
    (
        "once about one value",
        {"allOf": [an(a=an(x=TEXT)), an(a={"type": "object"})]},
        [{"a": {"x": "1"}}],
        [{"a": {"z": 1}}],
    ),
    ("any of", {"anyOf": [an(a=TEXT), an(b=TEXT)]}, [{"a": "1"}, {"b": "1"}], [{"a": "1", "b": "1"}, {"c": 1}]),
    ("or null", an(a={"anyOf": [an(b=TEXT), {"type": "null"}]}), [{"a": None}, {"a": {"b": "1"}}], [{"a": {"c": 1}}]),
    (
        "any of with its own",
        {**an("c", c=TEXT), "anyOf": [an(a=TEXT), an(b=TEXT)]},
        [{"c": "1", "a": "1"}],
        [{"c": "1", "a": "1", "b": "1"}, {"c": "1", "z": 1}],
    ),
    (
        "any of, one open",
        {"anyOf": [an("a", a=TEXT), {"type": "object", "additionalProperties": TEXT}]},
        [{"z": "1"}],
        [{"z": 1}],
    ),
    (
        "any required",
        {**an(a=TEXT, b=TEXT), "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        [{"a": "1"}, {"a": "1", "b": "1"}],
        [{}, {"a": "1", "c": 1}],
    ),
    (
        "one of, told apart",
        {"oneOf": [an("kind", **one) for one in UNION]},
        [{"kind": "a", "x": "1"}, {"kind": "b", "y": "1"}],
        [{"kind": "a", "y": "1"}],
    ),
    (
        "one of, by what is required",
        {"oneOf": [an("a", a=TEXT), an("b", b=TEXT)]},
        [{"a": "1"}, {"b": "1"}],
        [{"a": "1", "b": "1"}],
    ),
    (
        "one of, not apart by what stands beside",
        {**an(b=TEXT), "oneOf": [an("a", a=TEXT), an("b", c=TEXT)]},
        [{"a": "1"}, {"b": "1"}, {"b": "1", "c": "1"}],
        [{"a": "1", "b": "1"}, {"a": "1", "z": 1}],
    ),
    ("one of, not apart", {"oneOf": [an("a", a=TEXT, k=TEXT), an(a=TEXT)]}, [{}], [{"a": "1", "k": "1"}, {"z": 1}]),
    ("of itself", an(a={"$ref": "#"}), [{"a": {"a": {}}}], [{"a": {"a": {"b": 1}}}]),
    ("of a definition", {"$ref": "#/$defs/a~1b", "$defs": {"a/b": an(a=TEXT)}}, [{"a": "1"}], [{"b": 1}]),
    (
        "extended",
        {"$defs": {"A": an("a", a=TEXT)}, "$ref": "#/$defs/A", **an(b={"$ref": "#/$defs/A"})},
        [{"a": "1", "b": {"a": "1"}}],
        [{"a": "1", "b": {"a": "1", "b": 1}}, {"a": "1", "c": 1}],
    ),
    (
        "a tree",
        {
            "$defs": {
                "I": an("id", id=TEXT),
                "N": {"allOf": [{"$ref": "#/$defs/I"}, an(k={"type": "array", "items": {"$ref": "#/$defs/N"}})]},
            },
            "$ref": "#/$defs/N",
        },
        [{"id": "1", "k": [{"id": "2", "k": []}]}],
        [{"id": "1", "k": [{"id": "2", "z": 1}]}, {"id": "1", "z": 1}, {"k": []}],
    ),
    ("by an anchor", {"$ref": "#A", "$defs": {"x": {"$anchor": "A", **an(a=TEXT)}}}, [{"a": "1", "b": 1}], [{"a": 1}]),
    ("a key called properties", an(properties=TEXT), [{"properties": "1"}], [{"a": 1}]),
    ("a key called $ref", an("", **{"$ref": TEXT}), [{"$ref": "1"}], [{"a": 1}]),
]


@pytest.mark.parametrize(("schema", "right", "wrong"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_keys_that_nothing_names_are_not_allowed(schema: Schema, right: list[Any], wrong: list[Any]) -> None:
    found = closed(schema)
    assert [valid(found, value) for value in right] == [True] * len(right), found
    assert [valid(found, value) for value in wrong] == [False] * len(wrong), found
    assert all(valid(schema, value) for value in right), "never more than the schema as it is written"


KEYS = st.sampled_from("abcdef")
VALUES = st.recursive(
    st.integers(0, 1) | st.sampled_from(["x", None]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def pairs(draw: st.DrawFn, depth: int = 3) -> tuple[Any, Any]:
    """A schema, and what it means when it is closed, in JSON Schema's own words: unevaluatedProperties.

    No key is in two schemas of one object: of such values nothing is said here.
    """
    kind = draw(st.sampled_from(["integer", "any", "array", "object", "object"] if depth else ["integer", "any"]))
    if kind == "integer":
        return {"type": "integer"}, {"type": "integer"}
    if kind == "any":
        return True, True
    if kind == "array":
        schema, meant = draw(pairs(depth - 1))
        return {"type": "array", "items": schema}, {"type": "array", "items": meant}
    shares = draw(st.lists(st.sets(KEYS, max_size=2), min_size=1, max_size=4))
    taken: set[str] = set()
    objects = []
    for share in shares:
        inner = {key: draw(pairs(depth - 1)) for key in sorted(share - taken)}
        taken |= share
        needs = draw(st.sampled_from([[], sorted(inner)[:1]]))
        objects.append(
            tuple(
                {"type": "object", "properties": {key: pair[i] for key, pair in inner.items()}, "required": needs}
                for i in range(2)
            )
        )
    (own, own_meant), *others = objects
    if not others:
        return own, {**own_meant, "unevaluatedProperties": False}
    branches = [schema for schema, _ in others]
    if draw(st.booleans()):
        meant = {"allOf": [own_meant, *[one for _, one in others]], "unevaluatedProperties": False}
        return {**own, "allOf": branches}, meant
    each = [{"allOf": [own_meant, one], "unevaluatedProperties": False} for _, one in others]
    return {**own, "anyOf": branches}, {"anyOf": each}


def holds_what_is_meant(pair: tuple[Any, Any], value: Any) -> None:
    schema, meant = pair
    assert valid(closed(schema), value) == valid(meant, value)


@QUICK
@given(pair=pairs(), value=VALUES)
def test_it_means_what_unevaluated_properties_mean(pair: tuple[Any, Any], value: Any) -> None:
    holds_what_is_meant(pair, value)


@pytest.mark.full
@LONG
@given(pair=pairs(), value=VALUES)
def test_it_means_what_unevaluated_properties_mean_long(pair: tuple[Any, Any], value: Any) -> None:
    """For as long as the other long property runs."""
    holds_what_is_meant(pair, value)


OBJECTS = {"properties": lambda inner: st.dictionaries(KEYS, inner, max_size=3)}
LISTS = {key: lambda inner: st.lists(inner, min_size=1, max_size=3) for key in ("allOf", "anyOf", "oneOf")}
OTHERS: dict[str, Callable[[Any], Any]] = {
    "additionalProperties": lambda inner: inner,
    "items": lambda inner: inner,
    "patternProperties": lambda inner: st.dictionaries(st.sampled_from(["^a", "b$"]), inner, max_size=1),
    "required": lambda _: st.lists(KEYS, max_size=2, unique=True),
    "minProperties": lambda _: st.integers(0, 3),
    "const": lambda _: VALUES,
    "type": lambda _: st.sampled_from(["object", "array", ["object", "null"]]),
    "$ref": lambda _: st.sampled_from(["#/$defs/a", "#/$defs/b"]),
}


def some_schema(inner: Any) -> Any:
    keywords = {key: make(inner) for key, make in (OBJECTS | LISTS | OTHERS).items()}
    return st.fixed_dictionaries({"properties": keywords.pop("properties")}, optional=keywords) | st.fixed_dictionaries(
        {}, optional=keywords
    )


SCHEMAS = st.recursive(st.sampled_from([True, {"type": "integer"}, {"type": "object"}]), some_schema, max_leaves=8)
ANY_SCHEMA = st.fixed_dictionaries(
    {"$defs": st.fixed_dictionaries({"a": SCHEMAS, "b": SCHEMAS}), "allOf": st.lists(SCHEMAS, min_size=1, max_size=2)}
)


def allows_no_more(schema: Any, value: Any) -> None:
    found = closed(schema)
    try:
        written = valid(schema, value)
    except ValueError:  # a reference in a circle
        return
    assert written or not valid(found, value)


@QUICK
@given(schema=ANY_SCHEMA, value=VALUES)
def test_it_never_allows_more_than_is_written(schema: Any, value: Any) -> None:
    allows_no_more(schema, value)


@pytest.mark.full
@LONG
@given(schema=ANY_SCHEMA, value=VALUES)
def test_it_never_allows_more_than_is_written_long(schema: Any, value: Any) -> None:
    """For as long as the other long property runs."""
    allows_no_more(schema, value)


NONSENSE = st.recursive(
    VALUES | st.sampled_from(["#", "#/properties", "#/$ref"]),
    lambda inner: (
        st.dictionaries(st.sampled_from(["a", *OBJECTS, *LISTS, *OTHERS, "$defs"]), inner, max_size=4)
        | st.lists(inner, max_size=2)
    ),
    max_leaves=12,
)


@QUICK
@given(schema=st.dictionaries(st.sampled_from([*OBJECTS, *LISTS, *OTHERS, "$defs"]), NONSENSE, max_size=5))
def test_what_is_no_schema_is_left_to_the_compiler(schema: Any) -> None:
    closed(schema)


def nested(depth: int) -> Any:
    return an(a=TEXT) if depth == 0 else {**an(), "oneOf": [nested(depth - 1), an("b", **{f"b{depth}": nested(0)})]}


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"items": {}, "properties": {f"k{i}": an()}} for i in range(1500)]},
        {"oneOf": [an(f"k{i}", **{f"k{i}": an()}) for i in range(1000)]},
        {"$defs": {f"n{i}": {"items": {"$ref": f"#/$defs/n{i + 1}"}} for i in range(2000)} | {"n2000": an()}},
    ],
    ids=["allOf", "oneOf", "references"],
)
def test_work_is_bounded(schema: Schema) -> None:
    """Whatever a schema is: it is closed, or refused within the bound."""
    asked = {**schema, **({"allOf": [{"$ref": "#/$defs/n0"}, an(a=an())]} if "$defs" in schema else {})}
    try:
        closed(asked)
    except TooMuchWorkError:
        return


def test_the_work_for_an_all_of_grows_with_its_branches() -> None:
    """Not with their pairs: steps are counted, and a branch without keys costs a few."""
    for many in (1000, 4000):
        facts = Facts({})
        facts.beside_each([{"items": 0} for _ in range(many)])
        assert many <= facts.steps <= 4 * many


def test_alternatives_within_alternatives_are_told_apart_once() -> None:
    assert not valid(closed(nested(30)), {"z": 1})


def test_long_chains_of_references_are_followed() -> None:
    chain = {f"n{i}": an(a={"$ref": f"#/$defs/n{i + 1}"}) for i in range(1000)}
    found = closed({"$ref": "#/$defs/n0", "$defs": {**chain, "n1000": an(b=TEXT)}})
    assert len(found["$defs"]) == 1001
    assert all(one["additionalProperties"] is False for one in found["$defs"].values())
