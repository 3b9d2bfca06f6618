"""Calls in the forms in which real models write them, each whole and in pieces: the values that are meant."""

import json
import random
from typing import Any

import pytest

from jaxgen.server.tool_calls.lenient_json import JsonWriter, as_json
from tests.server.tool_calls.test_public_reports import FORMS, read


def called(form: str, name: str = "f") -> str:
    return form.replace("F", name).replace("A", '{"days": 3}')


OPENAI = '{"type": "function", "function": {"name": "F", "arguments": A}}'
OBJECTS = [
    OPENAI,
    '{"id": "call_1", "index": 0, "type": "function", "function": {"arguments": A, "name": "F"}}',
    '{"function": {"name": "F", "parameters": A}, "type": "function"}',
    '{"function": "F", "arguments": A}',
    '{"type": "function", "name": "F", "parameters": A}',
    '{"name": "functions.F", "arguments": A}',
    '{"tool": "F", "args": A}',
    '{"tool_name": "F", "input": A}',
    '{"name": "F", "arguments": A,}',
    "{'name': 'F', 'arguments': {'days': 3}}",
    '{"name": "F", "arguments": {"days": 3,}}',
    '{"name": "F", "arguments": {"days": 3, }, }',
    '{"name": "F", "arguments": {days: 3}}',
    '{"name": "F", "arguments": {"days": 3.}}',
    '{"name": "F", "arguments": {"days": +3}}',
    '{"name": "F", "arguments": \'{"days": 3}\'}',
]
GROUPS = ["%s", "[%s]", "[%s,]", "%s\n%s", "%s, %s", "[%s, %s]", "[\n%s,\n%s\n]"]
TAGS = {
    "hermes": ["<tool_call>\n%s\n</tool_call>", "<tool_call>%s</tool_call>"],
    "qwen3_xml": ["<tool_call>\n%s\n</tool_call>"],
    "glm45": ["<tool_call>%s</tool_call>"],
    "llama3_json": ["%s", "<|python_tag|>%s"],
    "mistral": ["[TOOL_CALLS]%s", "[TOOL_CALLS] %s"],
}


@pytest.mark.parametrize("kind", TAGS)
@pytest.mark.parametrize("group", GROUPS)
def test_objects_as_models_write_them_are_calls(kind: str, group: str) -> None:
    for tag in TAGS[kind]:
        for form in OBJECTS if group in GROUPS[:2] else [OPENAI, '{"name": "F", "arguments": A}']:
            count = group.count("%s")
            text = tag % (group % ((called(form),) * count))
            assert read(kind, text) == ("", [{"days": 3}] * count), text
            assert read(kind, tag % (group % ((called(form, "nobody"),) * count)))[1] == []


@pytest.mark.parametrize(
    ("kind", "text", "count"),
    [
        (
            "hermes",
            (
                '<tool_call>{"name": "f", "arguments": {"days": 3}}\n<tool_call>{"name": "f", "arguments": {"days": 3}}'
                "</tool_call>"
            ),
            2,
        ),
        ("qwen3_xml", '<tool_call>\n<function="f">\n<parameter="days">\n3\n</parameter>\n</function>\n</tool_call>', 1),
        ("qwen3_xml", "<tool_call>\n<function='f'>\n<parameter='days'>\n3\n</parameter>\n</function>\n</tool_call>", 1),
        (
            "qwen3_xml",
            "<tool_call>" + "\n<function=f>\n<parameter=days>\n3\n</parameter>\n</function>" * 3 + "\n</tool_call>",
            3,
        ),
        ("qwen3_xml", "<function=f>\n<parameter=days>\n3\n</parameter>\n</function>\n" * 2, 2),
        ("qwen3_xml", "<tool_call>\n<function=f>\n<parameter=days>\n3\n</parameter>\n</function>\n" * 2, 2),
        ("glm45", '<tool_call>"f"\n<arg_key>"days"</arg_key>\n<arg_value>3</arg_value>\n</tool_call>', 1),
        (
            "mistral",
            (
                '[TOOL_CALLS][{"name": "f", "arguments": {"days": 3}}][TOOL_CALLS][{"name": "f", "arguments": '
                '{"days": 3}}]'
            ),
            2,
        ),
        ("mistral_v11", '[TOOL_CALLS]functions.f[ARGS]{"days": 3}f[ARGS]{"days": 3}', 2),
        (
            "qwen3_xml",
            "<tool_call>\n<function=functions.f>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
            1,
        ),
        ("mistral_v11", '[TOOL_CALLS]f[ARGS]{"days": 3}\n f{"days": 3}\n', 2),
        ("harmony", "<|channel|>commentary to=functions.f <|message|>{'days': 3,}<|call|>", 1),
    ],
)
def test_marks_as_models_write_them_are_calls(kind: str, text: str, count: int) -> None:
    assert read(kind, text) == ("", [{"days": 3}] * count)


def test_a_function_after_another_that_is_not_known_is_content() -> None:
    text = "<tool_call>\n<function=f>\n</function>\n<function=g>\n</function>\n</tool_call>"
    content, calls = read("qwen3_xml", text)
    assert calls == [{}]
    assert content.startswith("<function=g>")


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('{"text": "Oslo",}', {"text": "Oslo"}),
        ('{"text": "Oslo",\n}', {"text": "Oslo"}),
        ('{"text": "a, }", "tags": ["x", "y",],, "days": 1}', {"text": "a, }", "tags": ["x", "y"], "days": 1}),
        ('{text: "Oslo", "days" : 1}', {"text": "Oslo", "days": 1}),
        (
            '{"width": 1., "days": +3, "options": {"a": [.5, -.5, 1.e3, 007, 0, 0.0, -1.5e-3, 10]}}',
            {"width": 1.0, "days": 3, "options": {"a": [0.5, -0.5, 1000.0, 7, 0, 0.0, -0.0015, 10]}},
        ),
        ('{"days": 3 // three\n, /* "x" */ "text": "a"}', {"days": 3, "text": "a"}),
        ('{"days": 1_000, "width": -0x1F, "far": TRUE}', {"days": 1000, "width": -31, "far": True}),
        ('{"text": "say "hi" now", "tags": ["a"b"]}', {"text": 'say "hi" now', "tags": ['a"b']}),
        ('{"days": 3\n"text": "b" "tags": ["x" "y"]}', {"days": 3, "text": "b", "tags": ["x", "y"]}),
        ('{"text": New York, "tags": [Oslo/N, it\'s]}', {"text": "New York", "tags": ["Oslo/N", "it's"]}),
        ("{\u201ctext\u201d: \u201cOslo\u201d}", {"text": "Oslo"}),
        ('{"text" "b", "days":, "note"}', {"text": "b", "days": None, "note": None}),
        ('{"tags": ["a", "b"}', {"tags": ["a", "b"]}),
        ('{"tags": ["a"]], "days": 1}', {"tags": ["a"], "days": 1}),
        ('{, "text": "\\u12 \\x"}', {"text": "\\u12 \\x"}),
        ('{"options": {"a": NaN, "b": -Infinity, "c": undefined}}', {"options": {"a": None, "b": None, "c": None}}),
    ],
)
def test_arguments_that_are_nearly_json(kind: str, written: str, arguments: Any) -> None:
    assert read(kind, FORMS[kind] % written) == ("", [arguments])


def test_arguments_are_valid_json_whatever_is_written() -> None:
    """What is JSON stays as it is."""
    draw = random.Random(1)
    for _ in range(2000):
        writer, written = JsonWriter(), []
        for char in (
            "{" + "".join(draw.choices("{}[],:\"'\\/*  \nab1.u\u201c\u201d-", k=30)) + "\"\u201d'\n*/\n" + "]}" * 30
        ):
            written.append(writer.push(char))
            if not writer.depth and not writer.quote:
                assert isinstance(json.loads("".join(written)), dict)
                break
    text = """{"a": [1, -2.5e-7, "it's // \\u00e9 \\" {", true, null, [], {"b,": {}} ] , "\u201cc": "x"\n}"""
    assert as_json(text) == text
