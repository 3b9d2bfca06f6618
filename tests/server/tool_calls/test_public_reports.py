"""Kinds of calls with which other servers had trouble, each with several members: the value that is right."""

import json
from typing import Any

import pytest

from jaxgen.server.requests.call_grammars import write_calls
from jaxgen.server.requests.structured import without_other_keys
from jaxgen.server.tool_calls.formats import FORMATS
from jaxgen.server.tool_calls.harmony import HarmonyParser
from jaxgen.server.tool_calls.parser import MessageParser, ToolParser
from tests.server.tool_calls.test_grammar import allows, with_markers
from tests.server.tool_calls.test_harmony import marked
from tests.server.tool_calls.test_parser import written
from tests.support.message_parsers import message

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "days": {"type": "integer"},
        "options": {"type": "object"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "far": {"type": "boolean"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "listed": {"type": ["string", "null"]},
        "wrapped": {"allOf": [{"type": "string"}]},
        "width": {"anyOf": [{"type": "number"}]},
        "mode": {"enum": ["1", "2"]},
        "nullable": {"type": "integer", "nullable": True},
        "bounded": {"anyOf": [{"type": "integer", "minimum": 10}, {"type": "string"}]},
        "either": {"anyOf": [{"type": "object"}, {"type": "string"}]},
    },
}


def read(kind: str, text: str) -> tuple[str, list[Any]]:
    """Content, and arguments of calls; the same in any pieces."""

    def make() -> MessageParser:
        if kind == "harmony":
            parser = HarmonyParser({"f": SCHEMA})
            parser.begin("assistant")
            return parser
        return ToolParser(FORMATS[kind], {"f": SCHEMA}, None)

    _, content, calls = message(make, marked(text) if kind == "harmony" else text)
    return content, [json.loads(arguments) for _, arguments in calls]


def qwen(inner: str) -> str:
    return f"<tool_call>\n<function=f>\n{inner}</function>\n</tool_call>"


def glm(inner: str) -> str:
    return f"<tool_call>f\n{inner}</tool_call>"


@pytest.mark.parametrize(
    ("inner", "arguments"),
    [
        # an end mark is missing
        ("<parameter=text>\nOslo\n", {"text": "Oslo"}),
        ('<parameter=options>\n{"a": 1}\n', {"options": {"a": 1}}),
        ("<parameter=text>\nOslo\n<parameter=days>\n3\n</parameter>\n", {"text": "Oslo", "days": 3}),
        ("<parameter=days>\n3\n<parameter=text>\nOslo\n", {"days": 3, "text": "Oslo"}),
        # another mark stands in its place
        ("<parameter=text>\nOslo\n</text>\n<parameter=days>\n3\n</parameter>\n", {"text": "Oslo", "days": 3}),
        ("<parameter=text>\nOslo\n</parameter/>\n", {"text": "Oslo"}),
        ("<parameter=text>\nOslo\n</parameter1>\n", {"text": "Oslo"}),
        ("<parameter=text>\nOslo\n</parameter\n", {"text": "Oslo"}),
        ("<parameter=text>\nOslo\n</parameter_function>\n", {"text": "Oslo"}),
        # marks within a value
        ('<parameter=text>\nreturn "</parameter>"\n</parameter>\n', {"text": 'return "</parameter>"'}),
        ("<parameter=text>\na </tool_call> b\n</parameter>\n", {"text": "a </tool_call> b"}),
        ("<parameter=text>\na\n</function>\nb\n</parameter>\n", {"text": "a\n</function>\nb"}),
        ("<parameter=text>\n<p>a</p>\n</parameter> b\n</parameter>\n", {"text": "<p>a</p>\n</parameter> b"}),
        ("<parameter=text>\nuse <parameter=x> so\n</parameter>\n", {"text": "use <parameter=x> so"}),
        (
            '<parameter=options>\n{"a": "</parameter></function>"}\n</parameter>\n',
            {"options": {"a": "</parameter></function>"}},
        ),
        ("<parameter=text>\n\n\na\n\n</parameter>\n", {"text": "\n\na\n"}),
    ],
)
def test_values_of_qwen3_xml_are_whole(inner: str, arguments: Any) -> None:
    assert read("qwen3_xml", qwen(inner)) == ("", [arguments])
    assert read("qwen3_xml", f"Well. {qwen(inner)}\n{qwen(inner)}") == ("Well.", [arguments, arguments])


@pytest.mark.parametrize(
    ("inner", "arguments"),
    [
        ("<arg_key>text</arg_key>\n<arg_value>Oslo\n", {"text": "Oslo"}),
        (
            "<arg_key>text</arg_key>\n<arg_value>Oslo\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n",
            {"text": "Oslo", "days": 3},
        ),
        ("<arg_key>text</arg_key>\n<arg_value>a </arg_value> b</arg_value>\n", {"text": "a </arg_value> b"}),
        ("<arg_key>text</arg_key>\n<arg_value>a </tool_call> b</arg_value>\n", {"text": "a </tool_call> b"}),
        (
            '<arg_key>options</arg_key>\n<arg_value>{"a": "</arg_value><arg_key>"}</arg_value>\n',
            {"options": {"a": "</arg_value><arg_key>"}},
        ),
        ("<arg_key>text</arg_key>\n<arg_value>Oslo</arg_value/>\n", {"text": "Oslo"}),
    ],
)
def test_values_of_glm45_are_whole(inner: str, arguments: Any) -> None:
    assert read("glm45", glm(inner)) == ("", [arguments])
    assert read("glm45", f"Well. {glm(inner)}\n{glm(inner)}") == ("Well.", [arguments, arguments])


@pytest.mark.parametrize("kind", ["qwen3_xml", "glm45"])
@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("options", "{'a': 1}", {"a": 1}),
        ("options", "{'a': True, 'b': None, 'c': \"it's\"}", {"a": True, "b": None, "c": "it's"}),
        ("options", '"{\\"a\\": 1}"', {"a": 1}),
        ("tags", "['a', 'b']", ["a", "b"]),
        ("tags", "['say \"hi\"']", ['say "hi"']),
        ("far", "True", True),
        ("days", '"3"', 3),
        ("days", "12345678901234567890", 12345678901234567890),
        ("note", "null", None),
        ("note", "None", None),
        ("note", "123", "123"),
        ("note", '"Oslo"', "Oslo"),
        ("note", '"null"', "null"),
        ("note", '"a" and "b"', '"a" and "b"'),
        ("note", "'tis'", "'tis'"),
        ("listed", ' "say \\"hi\\"" ', 'say "hi"'),
        ("text", '"Oslo"', '"Oslo"'),
        ("width", "1.", 1.0),
        ("width", ".5", 0.5),
        ("width", "+1", 1),
        ("width", '"1."', 1.0),
        ("days", "1.", 1.0),
        ("far", "TRUE", True),
        ("far", "false", False),
        ("listed", "null", None),
        ("listed", "[1]", "[1]"),
        ("text", "null", "null"),
        ("text", "123", "123"),
        ("text", "{'a': 1}", "{'a': 1}"),
        ("wrapped", '{"a": 1}', '{"a": 1}'),
        ("wrapped", "true", "true"),
        ("width", "3", 3),
        ("mode", "2", "2"),
        ("nullable", "null", None),
        ("either", '{"a": [1]}', {"a": [1]}),
        ("either", "{ no", "{ no"),
        ("bounded", "12", 12),
        ("bounded", "5", "5"),
        ("unknown", "5", "5"),
    ],
)
def test_values_have_the_types_of_their_schemas(kind: str, key: str, text: str, value: Any) -> None:
    call = {
        "qwen3_xml": qwen(f"<parameter={key}>\n{text}\n</parameter>\n"),
        "glm45": glm(f"<arg_key>{key}</arg_key>\n<arg_value>{text}</arg_value>\n"),
    }
    assert read(kind, call[kind]) == ("", [{key: value}])


FORMS = {
    "hermes": '<tool_call>\n{"name": "f", "arguments": %s}\n</tool_call>',
    "llama3_json": '{"name": "f", "parameters": %s}',
    "mistral": '[TOOL_CALLS] [{"name": "f", "arguments": %s}]',
    "mistral_v11": "[TOOL_CALLS]f[ARGS]%s",
    "harmony": "<|channel|>commentary to=functions.f <|constrain|>json<|message|>%s<|call|>",
}


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('"{\\"text\\": \\"Oslo\\"}"', {"text": "Oslo"}),
        ("\"{'text': 'Oslo'}\"", {"text": "Oslo"}),
        ('""', {}),
        ("null", {}),
        ("None", {}),
        ("[]", {}),
        ("{'text': 'it\\'s', 'far': True, 'note': None}", {"text": "it's", "far": True, "note": None}),
        ('{"text": "a\nb\\d"}', {"text": "a\nb\\d"}),
        ('{"text": "</tool_call> {\'a\'}; [TOOL_CALLS]"}', {"text": "</tool_call> {'a'}; [TOOL_CALLS]"}),
    ],
)
def test_arguments_that_are_no_json_object(kind: str, written: str, arguments: Any) -> None:
    assert read(kind, FORMS[kind] % written) == ("", [arguments])


@pytest.mark.parametrize(
    ("kind", "text", "count"),
    [
        ("hermes", '<tool_call>\n{"name": "f", "arguments": {}}}\n</tool_call>', 1),
        ("hermes", '<tool_call>\n{"name": "f", "arguments": {}\n</tool_call>', 1),
        ("hermes", '<tool_call>\n{"name": "f", "arguments": {}, "note": {"a": [1]}, "n": 2}\n</tool_call>', 1),
        (
            "hermes",
            '<tool_call>\n{"name": "f", "arguments": {}}}\n</tool_call>\n<tool_call>\n{"name": "f"}\n</tool_call>',
            2,
        ),
        ("llama3_json", '{"name": "f", "parameters": {}}}', 1),
        ("llama3_json", '{"name": "f", "parameters": {}', 1),
        ("llama3_json", '{"name": "f", "parameters": {}}}; {"name": "f", "parameters": {}}', 2),
        ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {}}}]', 1),
        ("mistral_v11", "[TOOL_CALLS]f[ARGS]{}}", 1),
    ],
)
def test_braces_too_many_or_too_few_are_no_content(kind: str, text: str, count: int) -> None:
    assert read(kind, text) == ("", [{}] * count)


NAME = {"$defs": {"All": SCHEMA, "S": {"type": "string", "enum": ["x", "y"]}}}
DEMANDS: list[tuple[dict[str, Any], list[Any], list[Any]]] = [
    (
        {"properties": {"a": {"enum": ["list", "load"]}}, "required": ["a"]},
        [{"a": "list"}],
        [{"a": "erase"}, {"a": '"list"'}, {}],
    ),
    ({"properties": {"a": {"const": "x"}}, "required": ["a"]}, [{"a": "x"}], [{"a": "y"}]),
    ({"properties": {"a": {"type": "string", "pattern": "^[a-z]+$"}}, "required": ["a"]}, [{"a": "x"}], [{"a": "X"}]),
    ({"properties": {"a": {"type": "string", "maxLength": 3}}, "required": ["a"]}, [{"a": "abc"}], [{"a": "abcd"}]),
    (
        {"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}]}}, "required": ["a"]},
        [{"a": "x"}, {"a": None}],
        [],
    ),
    ({"properties": {"a": {"type": ["string", "null"]}}, "required": ["a"]}, [{"a": "x"}, {"a": None}], []),
    (
        {"properties": {"a": {"anyOf": [{"enum": ["x", "y"]}, {"type": "null"}]}}, "required": ["a"]},
        [{"a": "x"}, {"a": None}],
        [{"a": "z"}],
    ),
    (
        {"properties": {"a": {"enum": ["x", 1, None]}}, "required": ["a"]},
        [{"a": "x"}, {"a": 1}, {"a": None}],
        [{"a": "z"}, {"a": 2}],
    ),
    ({**NAME, "$ref": "#/$defs/All"}, [{"text": "x", "days": 1}, {}], [{"days": "x"}, {"other": "x"}]),
    ({**NAME, "properties": {"a": {"$ref": "#/$defs/S"}}, "required": ["a"]}, [{"a": "x"}], [{"a": "z"}]),
    (
        {
            "allOf": [
                {"properties": {"a": {"type": "string"}}, "required": ["a"]},
                {"properties": {"b": {"type": "integer"}}},
            ]
        },
        [{"a": "x", "b": 1}, {"a": "x"}],
        [{"b": 1}],
    ),
    (
        {
            "anyOf": [
                {"properties": {"a": {"type": "string"}}, "required": ["a"]},
                {"properties": {"b": {"type": "integer"}}, "required": ["b"]},
            ]
        },
        [{"a": "x"}, {"b": 1}],
        [{}, {"b": "x"}],
    ),
    ({"type": "object", "additionalProperties": {"type": "integer"}}, [{}, {"a": 1, "b": 2}], [{"a": "x"}]),
    ({"properties": {"a": {}}, "required": ["a"]}, [{"a": "x"}, {"a": 1}, {"a": [1]}, {"a": {"b": None}}], []),
]


@pytest.mark.parametrize("special", [None, False])
@pytest.mark.parametrize("kind", ["hermes", "qwen3_xml", "glm45"])
@pytest.mark.parametrize(("schema", "right", "wrong"), DEMANDS)
def test_demanded_calls_follow_their_schemas(
    kind: str, special: bool | None, schema: dict[str, Any], right: list[Any], wrong: list[Any]
) -> None:
    grammar = demanded(kind, special, {"type": "object", **schema})
    for value in (*right, *wrong):
        text = written(kind, [("f", json.dumps(value))])
        assert allows(grammar, text, special) == (value in right), value


def demanded(kind: str, special: bool | None, *schemas: dict[str, Any]) -> str:
    tools = [(f"f{i or ''}", schema) for i, schema in enumerate(schemas)]
    return write_calls(kind, tools, with_markers(special)[0].added_token, several=True, closed=True)


ODD: list[Any] = [
    *(
        {"type": "string", "format": "uri-reference"},
        {"type": "string", "format": "int-or-string"},
        {"format": None, "type": "string"},
    ),
    *(
        {"type": "string", "pattern": "^(?!x).*$"},
        {"type": "string", "pattern": "["},
        {"type": "string", "pattern": None},
    ),
    *(
        {"type": "string", "not": {"enum": ["z"]}},
        {"type": "string", "contentEncoding": "base64"},
        {"type": "string", "maxLength": 2**40},
    ),
    *(
        {"type": "string", "required": None},
        {"type": "string", "enum": None},
        {"$ref": "https://example.com/s"},
        {"$ref": "#/$defs/no"},
    ),
    *(
        {"type": "any"},
        {"anyOf": []},
        {"type": "string", "nullable": True},
        {"oneOf": [{"type": "string"}, {"type": "string"}]},
        None,
    ),
]


@pytest.mark.parametrize("kind", ["hermes", "qwen3_xml", "glm45"])
@pytest.mark.parametrize("odd", ODD)
def test_schemas_of_real_tools_are_taken(kind: str, odd: Any) -> None:
    """And do not spoil the tools beside them."""
    schema = {"$schema": "odd:schema", "type": "object", "properties": {"a": odd}, "required": ["a"]}
    numbers = {"type": "object", "properties": {"n": {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}}}
    never = {"type": "object", "properties": {"n": {"not": {}}, "m": {"type": "integer"}}, "required": None}
    grammar = demanded(kind, None, schema, numbers, never)
    for name, value in (("f", {"a": "x"}), ("f1", {"n": 5}), ("f2", {"m": 5}), ("f2", {})):
        assert allows(grammar, written(kind, [(name, json.dumps(value))]), None), (name, value)
    assert not allows(grammar, written(kind, [("f2", '{"n": 5}')]), None)


def test_a_long_list_of_tools_is_refused_before_it_is_made() -> None:
    """Definitions are in the rules that use them, and no rule is there twice."""
    circle = [*({"$ref": "#/properties/a"} for _ in range(60)), {"type": "integer"}]
    alternatives = {"type": "object", "properties": {"a": {"anyOf": circle}}}
    assert len(demanded("qwen3_xml", None, alternatives)) < 20_000
    definitions = {f"d{i}": {"type": "integer", "description": "x" * 60} for i in range(900)}
    many = {"type": "object", "$defs": definitions, "properties": {f"p{i}": {"type": "integer"} for i in range(600)}}
    assert len(demanded("glm45", None, many)) < 80_000
    assert without_other_keys(many, "tools")
