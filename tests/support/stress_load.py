"""What a stress test asks for, and what of an answer must be the same however busy the server is."""

import json
import random
from collections.abc import Iterable
from typing import Any

from tests.support.tool_templates import HERMES

MODEL = "m"
TEMPLATE = HERMES

type Ask = tuple[str, dict[str, Any]]
"""A path and the body to send there."""

_TEXT = "def read_lines(path):\n    with open(path) as file:\n        return [line.strip() for line in file]\n"
_SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}, "on": {"type": "boolean"}}, "required": ["x"]}
_TOOL = {"type": "function", "function": {"name": "look", "parameters": _SCHEMA}}
_GRAMMARS: list[dict[str, Any]] = [
    {"structured_outputs": {"regex": r"[a-z]{3,20}(, [a-z]+)*"}},
    {"structured_outputs": {"choice": ["yes", "no", "perhaps"]}},
    {"structured_outputs": {"grammar": 'start: "(" start ")" | /[0-9]+/'}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": _SCHEMA}}},
]


def _completion(i: int, **fields: Any) -> Ask:
    sampling = {"temperature": 0.0} if i % 2 else {"temperature": 1.0, "seed": i, "top_p": 0.9}
    common = {"model": MODEL, "prompt": _TEXT[i:] * (1 + i % 4), "max_tokens": 40, "priority": i % 3 - 1}
    return "/v1/completions", common | sampling | fields


def _chat(i: int, **fields: Any) -> Ask:
    messages = [{"role": "user", "content": f"{_TEXT[: 20 * i]}What is {i}?"}]
    return "/v1/chat/completions", {"model": MODEL, "messages": messages, "max_tokens": 30, "seed": i, **fields}


def _response(i: int) -> Ask:
    return "/v1/responses", {"model": MODEL, "input": f"Say {i}", "max_output_tokens": 20, "temperature": 0.0}


STREAMED: list[Ask] = [
    *(_completion(i, ignore_eos=True) for i in range(8)),
    _completion(8, presence_penalty=0.5, repetition_penalty=1.2, logprobs=2),
    _completion(9, n=3, echo=True, stop=["\n\n"]),
    *(_completion(i, **fields) for i, fields in enumerate(_GRAMMARS)),
    *(_chat(i) for i in range(3)),
    _chat(3, tools=[_TOOL], tool_choice="required"),
    _chat(4, response_format={"type": "json_object"}),
    _response(0),
]
WHOLE: list[Ask] = [
    ("/v1/embeddings", {"model": MODEL, "input": [_TEXT, "a"]}),
    ("/tokenize", {"model": MODEL, "prompt": _TEXT}),
    ("/v1/latency", {"model": MODEL, "prompt": _TEXT}),
    _completion(2, best_of=4, n=2),
]
BULKY: Ask = _completion(1, n=2, max_tokens=150, ignore_eos=True, logprobs=20, priority=0)
"""More than the buffers of a connection hold, if its reader takes its time."""


def said(objects: Iterable[Any]) -> str:
    """What the JSON of an answer, or of all of a stream's events, says by choice: text, calls, numbers; no ids."""
    told: dict[int, str] = {}
    for one in objects:
        for choice in one.get("choices", ()):
            message = choice.get("message") or choice.get("delta") or {}
            text = choice.get("text") or message.get("content") or ""
            for call in message.get("tool_calls") or ():
                text += call["function"].get("name", "") + call["function"]["arguments"]
            told[choice["index"]] = told.get(choice["index"], "") + text
        if one.get("type") == "response.output_text.delta":
            told[0] = told.get(0, "") + one["delta"]
        for item in one.get("output", ()):
            told[0] = told.get(0, "") + "".join(part["text"] for part in item["content"])
        if numbers := one.get("data") or one.get("tokens"):
            told[0] = json.dumps(numbers)
    return json.dumps(told, sort_keys=True)


_BAD_GRAMMARS: list[dict[str, Any]] = [
    {"regex": "("},
    {"regex": "a", "choice": ["a"]},
    {"choice": []},
    {"grammar": "start: missing"},
    {"grammar": "root ::= ("},
    {"json": {"type": "nothing"}},
    {"json": "{"},
]
_WRONG: dict[str, list[dict[str, Any]]] = {
    "/v1/completions": [
        {"prompt": [99999]},
        {"prompt": "a" * 5000},
        {"n": 0},
        {"max_tokens": 100_000},
        {"temperature": "hot"},
        {"model": "nobody"},
        {"what": 1},
        {"logit_bias": {"x": 1}},
        {"stream_options": {}},
        {"priority": 10**30},
        {"cache_salt": ""},
        {"response_format": {"type": "xml"}},
        *({"structured_outputs": asked} for asked in _BAD_GRAMMARS),
    ],
    "/v1/chat/completions": [
        {"messages": []},
        {"messages": [{"role": "nobody", "content": "a"}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        {"messages": [{"role": "tool", "content": [{"type": "image"}]}]},
        {"tools": [_TOOL, _TOOL]},
        {"tools": [_TOOL], "tool_choice": {"type": "function", "function": {"name": "other"}}},
        {"tool_choice": "required"},
        {"chat_template_kwargs": {"messages": []}},
        *({"structured_outputs": asked} for asked in _BAD_GRAMMARS),
    ],
    "/v1/responses": [{"input": []}, {"input": [{"type": "reference"}]}, {"previous_response_id": "resp_1"}],
    "/v1/messages": [
        {"messages": []},
        {"max_tokens": 0},
        {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
    ],
    "/v1/embeddings": [{"input": ""}, {"dimensions": 0}, {"encoding_format": "hex"}],
    "/tokenize": [{"messages": []}, {"prompt": 5}],
}
"""By path, each put over a body that is right."""
_RIGHT: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "a"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]},
    "/v1/responses": {"input": "a"},
    "/v1/messages": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 5},
    "/v1/embeddings": {"input": "a"},
    "/tokenize": {"prompt": "a"},
}


def malformed(count: int) -> list[tuple[str, bytes]]:
    """Bodies that must each get a 4xx: no JSON, no objects, cut off, or with a field that is wrong."""
    chance = random.Random(count)
    wrong = [
        (path, json.dumps({"model": MODEL} | _RIGHT[path] | fields).encode())
        for path in _RIGHT
        for fields in _WRONG[path]
    ]
    wrong += [(path, raw) for path in _RIGHT for raw in (b"", b"[]", b"[" * 10_000, b'"\xff"', b'{"model": NaN}')]
    valid = [(path, json.dumps(body).encode()) for path, body in STREAMED + WHOLE]
    cut = [(path, raw[: chance.randrange(len(raw))]) for path, raw in chance.choices(valid, k=count)]
    return [chance.choice((chance.choice(wrong), broken)) for broken in cut]
