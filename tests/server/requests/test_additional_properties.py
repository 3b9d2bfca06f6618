"""Keys that a schema does not name: the default, the server's flag, and a request's field."""

from collections.abc import Callable
from typing import Any

import pytest

from jaxgen.server.config import DEFAULT_CONFIG, Answers, ServerConfig
from jaxgen.server.flags.serve_options import make_parser
from jaxgen.server.flags.server_flags import server_config
from tests.server.tool_calls.test_grammar import allows
from tests.server.tool_calls.test_parser import written
from tests.support.fakes import MODEL
from tests.support.server_app import client_of, error_of, fake_engine
from tests.support.tool_engines import tool_engine
from tests.support.tool_requests import HI, PATH, WEATHER

FAITHFUL = ServerConfig(answers=Answers(structured_additional_properties=True))
POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
OPEN = {**POINT, "additionalProperties": True}
EITHER = {"oneOf": [POINT, {"type": "object", "properties": {"y": {"type": "integer"}}, "required": ["y"]}]}
WAYS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "response_format": lambda schema: {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}},
    "structured_outputs": lambda schema: {"structured_outputs": {"json": schema}},
}


def said(value: bool) -> dict[str, Any]:
    return {"disable_additional_properties": value}


def grammar_of(fields: dict[str, Any], config: ServerConfig = DEFAULT_CONFIG) -> str:
    """The grammar that the engine gets for a request with these fields."""
    engine, asked = fake_engine(), {"model": MODEL, "prompt": "Say", **fields}
    with client_of(engine, config) as client:
        answer = client.post("/v1/completions", json=asked)
    assert answer.status_code == 200, answer.text
    found = engine.requests[0].params.grammar
    assert found is not None
    return found.text


@pytest.mark.parametrize("way", WAYS)
def test_by_default_only_keys_that_are_named(way: str) -> None:
    grammar = grammar_of(WAYS[way](POINT))
    assert allows(grammar, '{"x":1}', None)
    assert not allows(grammar, '{"x":1,"y":2}', None)
    assert allows(grammar_of(WAYS[way](OPEN)), '{"x":1,"y":2}', None), "as it says itself"
    assert allows(grammar_of(WAYS[way]({"type": "object"})), '{"x":1,"y":2}', None), "an object of any keys"


@pytest.mark.parametrize("way", WAYS)
def test_a_server_may_keep_to_json_schema_and_a_request_may_say_otherwise(way: str) -> None:
    further = '{"x":1,"y":2}'
    assert allows(grammar_of(WAYS[way](POINT), FAITHFUL), further, None)
    for config in (DEFAULT_CONFIG, FAITHFUL):
        for value in (True, False):
            fields = WAYS[way](POINT)
            fields["structured_outputs"] = fields.get("structured_outputs", {}) | said(value)
            assert allows(grammar_of(fields, config), further, None) != value


def test_what_only_a_closed_schema_can_say() -> None:
    """Open objects may have both keys, and which of them a oneOf takes is then more than a grammar can hold."""
    grammar = grammar_of(WAYS["response_format"](EITHER))
    assert allows(grammar, '{"x":1}', None)
    assert allows(grammar, '{"y":1}', None)
    assert not allows(grammar, '{"x":1,"y":2}', None)


@pytest.mark.parametrize(
    ("fields", "config", "further"),
    [
        ({}, DEFAULT_CONFIG, False),
        ({}, FAITHFUL, True),
        ({"structured_outputs": said(False)}, DEFAULT_CONFIG, True),
        ({"structured_outputs": said(True)}, FAITHFUL, False),
    ],
)
@pytest.mark.parametrize("format_too", [False, True])
def test_arguments_of_tools_too(fields: dict[str, Any], config: ServerConfig, further: bool, format_too: bool) -> None:
    """With response_format the answer may be a call or that text."""
    engine = tool_engine("hermes", "x")
    asked = WAYS["response_format"](POINT) if format_too else {"tool_choice": "required"}
    with client_of(engine, config) as client:
        body = {"model": MODEL, "messages": [HI], "tools": [WEATHER], "max_tokens": 1, **asked, **fields}
        assert client.post(PATH, json=body).status_code == 200
    found = engine.requests[0].params.grammar
    assert found is not None
    assert allows(found.text, written("hermes", [("get_weather", '{"city": "a"}')]), True)
    assert allows(found.text, written("hermes", [("get_weather", '{"city": "a", "b": 1}')]), True) == further


def test_it_is_a_matter_of_json_only() -> None:
    with client_of(fake_engine()) as client:
        for kind in ({"regex": "a"}, {"choice": ["a"]}, {"grammar": 'start: "a"'}):
            body = {"model": MODEL, "prompt": "Say", "structured_outputs": kind | said(True)}
            error = error_of(client.post("/v1/completions", json=body).json())
            assert error["param"] == "structured_outputs"
            assert "disable_additional_properties" in error["message"]


def test_too_many_combinations_are_refused_by_the_field() -> None:
    schema = {"type": "object", "allOf": [{"properties": {f"k{i}": POINT}} for i in range(200)]}
    with client_of(fake_engine()) as client:
        for way in WAYS:
            body = {"model": MODEL, "prompt": "Say", **WAYS[way](schema)}
            error = error_of(client.post("/v1/completions", json=body).json())
            assert error["param"] == way
            assert "--structured-additional-properties" in error["message"]


def test_the_flag() -> None:
    assert not server_config(make_parser().parse_args([])).answers.structured_additional_properties
    found = make_parser().parse_args(["--structured-additional-properties"])
    assert server_config(found).answers.structured_additional_properties
