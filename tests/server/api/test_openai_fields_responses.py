"""Every field that the types of OpenAI's client have is known: null is as good as none, and a value is honoured or
refused as what it is."""

from typing import Any, get_args, get_type_hints

import pytest
from openai.types.responses import input_token_count_params, response_create_params
from openai.types.responses.response_includable import ResponseIncludable

from tests.support.fakes import MODEL
from tests.support.server_app import client_of, error_of
from tests.support.tool_engines import tool_engine

F = {"type": "function", "name": "f", "parameters": None, "strict": None}

PARAMS: dict[str, Any] = {
    "/v1/responses": response_create_params.ResponseCreateParamsNonStreaming,
    "/v1/responses/input_tokens": input_token_count_params.InputTokenCountParams,
}
HONOURED: dict[str, dict[str, list[Any]]] = {
    "/v1/responses": {
        "background": [False],
        "include": [[name] for name in get_args(ResponseIncludable)],
        "input": ["Hi", [{"role": "user", "content": "Hi"}]],
        "instructions": ["Be brief."],
        "max_output_tokens": [3],
        "max_tool_calls": [1],
        "metadata": [{"a": "b"}],
        "model": [MODEL],
        "parallel_tool_calls": [True, False],
        "prompt_cache_key": ["k"],
        "prompt_cache_options": [{"mode": "implicit"}, {"ttl": "30m"}],
        "prompt_cache_retention": ["in_memory", "24h"],
        "reasoning": [{"effort": "none"}, {"effort": None, "summary": "auto"}, {"generate_summary": "concise"}],
        "safety_identifier": ["s"],
        "service_tier": ["auto", "default"],
        "store": [True, False],
        "stream": [True, False],
        "stream_options": [{"include_obfuscation": False}],
        "temperature": [0.5],
        "text": [{"format": {"type": "json_object"}}, {"verbosity": "medium"}],
        "tool_choice": ["auto", "none"],
        "tools": [[], [F], [{"type": "web_search"}]],
        "top_logprobs": [3],
        "top_p": [0.5],
        "truncation": ["disabled"],
        "user": ["u"],
    },
    "/v1/responses/input_tokens": {
        "input": ["Hi", [{"role": "user", "content": "Hi"}]],
        "instructions": ["Be brief."],
        "model": [MODEL],
        "parallel_tool_calls": [True],
        "reasoning": [{"summary": "auto"}],
        "text": [{"format": {"type": "text"}}],
        "tool_choice": ["auto"],
        "tools": [[F]],
        "truncation": ["disabled"],
    },
}
REFUSED: dict[str, dict[str, list[tuple[Any, str]]]] = {
    "/v1/responses": {
        "access_programs": [({"cyber": "standard"}, "access_programs")],
        "background": [(True, "background")],
        "background_options": [({"completion_window": "2h"}, "background_options")],
        "context_management": [([{"type": "compaction"}], "context_management")],
        "conversation": [("conv_1", "conversation"), ({"id": "conv_1"}, "conversation")],
        "image": [({"context_compression": "auto"}, "image")],
        "moderation": [({"model": "m"}, "moderation")],
        "previous_response_id": [("resp_1", "previous_response_id")],
        "prompt": [({"id": "p"}, "prompt")],
        "reasoning": [({"effort": "high"}, "reasoning.effort"), ({"mode": "pro"}, "reasoning.mode")],
        "stream_options": [({"include_obfuscation": True}, "stream_options")],
        "text": [({"verbosity": "low"}, "text.verbosity")],
        "tool_choice": [("required", "tool_choice"), ({"type": "web_search"}, "tool_choice.type")],
        "truncation": [("auto", "truncation")],
    },
    "/v1/responses/input_tokens": {
        "conversation": [("conv_1", "conversation")],
        "personality": [("friendly", "personality")],
        "previous_response_id": [("resp_1", "previous_response_id")],
        "truncation": [("auto", "truncation")],
    },
}
NEEDED = ("input", "model")

each_path = pytest.mark.parametrize("path", sorted(PARAMS))


def answer_to(path: str, **fields: Any) -> tuple[int, dict[str, Any]]:
    with client_of(tool_engine("hermes", "{}")) as client:
        answer = client.post(path, json={"model": MODEL, "input": "Hi", **fields})
    return answer.status_code, {} if answer.status_code == 200 else error_of(answer.json())


def names(path: str) -> set[str]:
    return set(get_type_hints(PARAMS[path], vars(response_create_params)))


@each_path
def test_every_field_is_in_one_of_the_tables(path: str) -> None:
    """Which may have those of a newer client."""
    assert names(path) <= set(HONOURED[path]) | set(REFUSED[path])


@each_path
def test_null_is_no_value(path: str) -> None:
    known = names(path) | set(HONOURED[path]) | set(REFUSED[path])
    assert answer_to(path, **dict.fromkeys(known - set(NEEDED))) == (200, {})


@each_path
def test_what_can_be_honoured_is_taken(path: str) -> None:
    for name, values in HONOURED[path].items():
        for value in values:
            assert answer_to(path, **{name: value}) == (200, {}), (name, value)


@each_path
def test_what_cannot_be_honoured_is_refused_as_what_it_is(path: str) -> None:
    for name, values in REFUSED[path].items():
        for value, param in values:
            status, error = answer_to(path, **{name: value})
            assert (status, error.get("param")) == (400, param), (name, value)
            assert "Unknown field" not in error["message"]
