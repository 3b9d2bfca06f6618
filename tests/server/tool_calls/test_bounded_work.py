"""Grammars of tools take a bounded number of steps, whatever the schemas are. Steps are counted, not seconds."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from sys import monitoring
from types import CodeType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxgen.server.errors import ApiError
from jaxgen.server.requests.call_grammars import write_calls
from tests.support.fuzzing import QUICK

TOOL = 2
MOST_CALLS = 3_000_000
"""Calls of Python functions for one request: some ten seconds."""


class TooManyCallsError(AssertionError):
    pass


@contextmanager
def counted() -> Iterator[list[int]]:
    """Count calls of Python functions, and fail where there are too many."""
    calls = [0]

    def count(_code: CodeType, _offset: int) -> None:
        calls[0] += 1
        if calls[0] > MOST_CALLS:
            raise TooManyCallsError

    monitoring.use_tool_id(TOOL, "steps")
    monitoring.register_callback(TOOL, monitoring.events.PY_START, count)
    monitoring.set_events(TOOL, monitoring.events.PY_START)
    try:
        yield calls
    finally:
        monitoring.set_events(TOOL, 0)
        monitoring.free_tool_id(TOOL)


def steps(*schemas: Any, kind: str = "qwen3_xml", closed: bool = True) -> int:
    tools = [(f"f{i}", schema) for i, schema in enumerate(schemas)]
    with counted() as calls, suppress(ApiError):
        write_calls(kind, tools, lambda _: None, several=True, closed=closed)
    return calls[0]


def lattice(depth: int, word: str) -> dict[str, Any]:
    """A schema with 2 ** depth ways from the root to the last definition."""
    levels = {f"d{i}": {word: [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(depth)}
    return {"$ref": "#/$defs/d0", "$defs": levels | {f"d{depth}": {"properties": {"a": {"type": "integer"}}}}}


def references_in_a_circle(many: int) -> dict[str, Any]:
    return {"properties": {"a": {"anyOf": [{"$ref": "#/properties/a"}] * many}}}


def definitions_of_many(many: int) -> dict[str, Any]:
    """Arguments that all lead to the same large definitions."""
    defs = {f"d{i}": {"type": "string", "description": "x" * 200} for i in range(many)}
    one = {"anyOf": [*({"$ref": f"#/$defs/d{i}"} for i in range(many)), {"type": "object"}]}
    return {"$defs": defs | {"one": one}, "properties": {f"p{i}": {"$ref": "#/$defs/one"} for i in range(4 * many)}}


@pytest.mark.parametrize(("kind", "word"), [("gemma4", "anyOf"), ("glm45", "allOf"), ("hermes", "oneOf")])
def test_a_schema_that_is_reached_by_many_ways(kind: str, word: str) -> None:
    steps(lattice(60, word), kind=kind)


@pytest.mark.parametrize(
    "schema", [references_in_a_circle, definitions_of_many], ids=["references in a circle", "definitions"]
)
def test_steps_grow_with_the_schema_and_not_faster(schema: Any) -> None:
    few, many = (steps(schema(size)) / len(json.dumps(schema(size))) for size in (20, 80))
    assert many < 3 * few


def test_an_all_of_of_many_schemas() -> None:
    few, many = (
        steps({"properties": {"a": {}}, "allOf": [{"items": 0}] * size}, kind="hermes") / size for size in (500, 4000)
    )
    assert many < 2 * few


KINDS = st.sampled_from(["qwen3_xml", "glm45", "hermes", "gemma4"])
NAMES = st.sampled_from(["a", "b", "c"])
PARTS = st.recursive(
    st.sampled_from([{}, True, {"type": "integer"}, {"type": "string"}, {"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]),
    lambda inner: (
        st.fixed_dictionaries({}, optional={word: st.lists(inner, max_size=4) for word in ("anyOf", "allOf", "oneOf")})
        | st.builds(lambda some: {"type": "object", "properties": some}, st.dictionaries(NAMES, inner, max_size=3))
        | st.builds(lambda one: {"type": "array", "items": one}, inner)
    ),
    max_leaves=20,
)


@QUICK
@given(a=PARTS, b=PARTS, root=PARTS, kind=KINDS, closed=st.booleans())
def test_steps_are_bounded_by_the_size_of_any_schema(a: Any, b: Any, root: Any, kind: str, closed: bool) -> None:
    schema = {"type": "object", "$defs": {"a": a, "b": b}, "properties": {"x": root, "y": {"$ref": "#/$defs/a"}}}
    assert steps(schema, kind=kind, closed=closed) < 20_000 + 100 * len(json.dumps(schema))
