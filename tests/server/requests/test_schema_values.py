"""Schemas that no value fits, and references that say nothing: what the refusal says."""

from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxgen.server.errors import ApiError
from jaxgen.server.requests.call_grammars import write_calls
from jaxgen.server.requests.schema_values import why_none_fits
from jaxgen.server.requests.structured import resolve_grammar
from jaxgen.server.schema.base import ResponseFormat
from tests.server.tool_calls.test_grammar import allows
from tests.support.fuzzing import QUICK

TEXT = {"type": "string"}


def an(required: str = "", /, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required.split()}


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"$ref": "#"}, "the $ref '#' leads back to itself"),
    ({"allOf": [{"$ref": "#"}, TEXT]}, "the $ref '#' leads back to itself"),
    (an(a={"$ref": "#/$defs/A"}) | {"$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}}, "leads back"),
    (an(a={"$ref": "#/properties/a"}), "'#/properties/a' leads back to itself"),
    (an("a", a=False), "the required property 'a' is false"),
    (an("o", o=an("a", a=False)), "the required property 'o.a' is false"),
    (an("a", a={"not": {}}), "the required property 'a' is false"),
    (
        an("a", a={"type": "integer", "minimum": 5, "maximum": 3}),
        "'a' contradicts itself: no number is within its bounds",
    ),
    (an("a", a={"type": "integer", "minimum": 1.2, "maximum": 1.8}), "no number is within its bounds"),
    (an("a", a={"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 4}), "'a' contradicts itself"),
    (an("a", a={"type": "number", "minimum": 3, "exclusiveMaximum": 3}), "'a' contradicts itself"),
    (an("a", a={**TEXT, "minLength": 5, "maxLength": 3}), "minLength 5 is above maxLength 3"),
    (an("a", a={**TEXT, "enum": [1]}), "'a' contradicts itself: its values are of none of its types"),
    (an("a", a={"allOf": [TEXT, {"type": "integer"}]}), "'a' contradicts itself: its parts are of different types"),
    (an("a", a={"anyOf": [False, an("b", b=False)]}), "the required property 'a' is false"),
    (an("a", a={"type": "array", "items": False, "minItems": 1}), "minItems is 1, and nothing fits item 0"),
    (an("b", a=TEXT) | {"additionalProperties": False}, "it requires 'b', which additionalProperties does not allow"),
    (
        {"$ref": "#/$defs/A", "required": ["b"], "additionalProperties": False, "$defs": {"A": an(a=TEXT)}},
        "it requires 'b', which additionalProperties does not allow",
    ),
    (an("a", a={"$ref": "#"}), "the required property 'a' needs a value of its own schema within itself"),
]


@pytest.mark.parametrize(("schema", "words"), FAULTS)
def test_the_refusal_says_which_part_no_value_fits(schema: dict[str, Any], words: str) -> None:
    with pytest.raises(ApiError) as refused:
        response_grammar(schema)
    assert words in refused.value.message
    assert refused.value.message.startswith("response_format: ")
    with pytest.raises(ApiError) as refused:
        write_calls("hermes", [("f", schema)], lambda _: None, several=False, closed=True)
    assert words in refused.value.message
    assert "'f'" in refused.value.message


def response_grammar(schema: Any, *, closed: bool = True) -> str:
    asked = ResponseFormat.model_validate({"type": "json_schema", "json_schema": {"schema": schema}})
    grammar = resolve_grammar(asked, None, closed=closed)
    assert grammar is not None
    return grammar.text


SIMPLE = [True, False, TEXT, {"type": "integer"}, {"const": 1}, {"enum": []}]


def schemas(*references: str) -> st.SearchStrategy[Any]:
    return st.recursive(
        st.sampled_from([*SIMPLE, *({"$ref": one} for one in references)]),
        lambda inner: st.fixed_dictionaries(
            {},
            optional={
                "type": st.sampled_from(["object", "string", "array"]),
                "properties": st.dictionaries(st.sampled_from("xy"), inner, max_size=2),
                "required": st.lists(st.sampled_from("xy"), max_size=1),
                "anyOf": st.lists(inner, min_size=1, max_size=2),
                "allOf": st.lists(inner, min_size=1, max_size=2),
                "items": inner,
                "minItems": st.integers(0, 1),
            },
        ),
        max_leaves=4,
    )


FINE = [
    {"type": "integer", "minimum": 3, "maximum": 3},
    {"type": "number", "exclusiveMinimum": 3, "exclusiveMaximum": 4},
    {"type": "integer", "exclusiveMinimum": 3, "maximum": 4},
    {"type": ["integer", "null"], "minimum": 4, "maximum": 3},
    {"type": "integer", "exclusiveMinimum": True, "minimum": 3, "maximum": 4},
    {"anyOf": [{"$ref": "#"}, TEXT]},
    an(a=False) | {"required": []},
    an("a", a={"anyOf": [{"$ref": "#"}, {"type": "null"}]}),
]


@pytest.mark.parametrize("schema", FINE)
def test_what_some_value_fits_is_taken(schema: dict[str, Any]) -> None:
    assert why_none_fits(schema) is None


VALUES: list[Any] = [
    None,
    True,
    1,
    "",
    [],
    [1],
    ["a"],
    [[]],
    [{}],
    {},
    {"x": 1},
    {"y": "a"},
    {"x": "", "y": 1},
    {"x": {}},
]


@given(schemas("#/$defs/a", "#/$defs/b"), schemas("#/$defs/b"), schemas())
@QUICK
def test_no_schema_that_a_value_fits_is_refused(root: Any, a: Any, b: Any) -> None:
    schema = {**root, "$defs": {"a": a, "b": b}} if isinstance(root, dict) else root
    why = why_none_fits(schema)
    if why is None:
        return
    check = jsonschema_rs.validator_for(schema)
    assert not [value for value in VALUES if check.is_valid(value)], why


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({**an(a=TEXT), "unevaluatedProperties": False}, '{"a":"x"}', '{"a":"x","b":1}'),
        ({**an(a=TEXT), "unevaluatedProperties": TEXT}, '{"a":"x","b":"y"}', '{"a":"x","b":1}'),
        ({**an(a=TEXT), "unevaluatedProperties": True}, '{"a":"x","b":1}', '{"a":1}'),
        ({"type": "array", "prefixItems": [TEXT], "unevaluatedItems": False}, '["x"]', '["x",1]'),
    ],
)
def test_what_no_keyword_has_looked_at(schema: dict[str, Any], right: str, wrong: str) -> None:
    grammar = response_grammar(schema, closed=False)
    assert allows(grammar, right, None)
    assert not allows(grammar, wrong, None)


def test_together_with_other_schemas_it_closes_the_object() -> None:
    schema = {"$ref": "#/$defs/A", "anyOf": [an(b=TEXT), an(c=TEXT)], "unevaluatedProperties": False}
    grammar = response_grammar({**schema, "$defs": {"A": an(a=TEXT)}})
    assert allows(grammar, '{"a":"x","b":"y"}', None)
    assert not allows(grammar, '{"a":"x","d":1}', None)
    kept = response_grammar({**schema, "$defs": {"A": an(a=TEXT)}, "patternProperties": {"^d": {}}})
    assert "unevaluatedProperties" in kept, "llguidance refuses it by name"
