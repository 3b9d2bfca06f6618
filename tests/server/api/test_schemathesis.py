"""Requests that schemathesis makes from /openapi.json, good and bad: no 5xx, and every answer is as described there.

test_schemathesis_long has more of them, and those at the limits of each field."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

from jaxgen.core.model_info import ChatFormat
from jaxgen.server.app import create_app
from jaxgen.server.openapi import ROUTES
from jaxgen.server.resume.ticket import ASKING
from jaxgen.server.schema.base import CompletionRequest
from tests.support.fakes import MODEL
from tests.support.server_app import fake_engine

Case = schemathesis.Case[Any]
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
ENGINE = fake_engine(model=replace(fake_engine().model, chat=ChatFormat(TEMPLATE, {})))
SETTINGS: Any = {"deadline": None, "suppress_health_check": list(HealthCheck)}


# Within the ranges that the schema does not state, so that some answers are no refusals.
IN_RANGE: dict[str, Callable[[Any], Any]] = {
    "access_programs": lambda value: None,
    "background": lambda value: False,
    "background_options": lambda value: None,
    "best_of": lambda value: None,
    "allowed_token_ids": lambda value: [3],
    "cache_salt": lambda value: value or None,
    "bad_words": lambda value: ["zz"],
    "chat_template_kwargs": lambda value: {},
    "context_management": lambda value: None,
    "conversation": lambda value: None,
    "dimensions": lambda value: 1 + value % 4,
    "encoding_format": lambda value: "base64",
    "frequency_penalty": lambda value: value % 2,
    "image": lambda value: None,
    "mcp_servers": lambda value: None,
    "output_config": lambda value: None,
    "include": lambda value: ["message.output_text.logprobs"],
    "logit_bias": lambda value: {"3": 1},
    "logprobs": lambda value: value if isinstance(value, bool) else value % 6,
    "max_completion_tokens": lambda value: value % 9,
    "max_tokens": lambda value: value % 9,
    "messages": lambda value: value or [{"role": "user", "content": "Hi"}],
    "metadata": lambda value: None,
    "min_p": lambda value: value % 1,
    "min_tokens": lambda value: 0,
    "modalities": lambda value: ["text"],
    "moderation": lambda value: None,
    "n": lambda value: 1 + value % 3,
    "personality": lambda value: None,
    "presence_penalty": lambda value: value % 2,
    "previous_response_id": lambda value: None,
    "priority": lambda value: 0,
    "prompt": lambda value: "Say",
    "prompt_logprobs": lambda value: None,
    "reasoning": lambda value: None,
    "repetition_penalty": lambda value: 1 + value % 1,
    "resume": lambda value: None,
    "response_format": lambda value: {"type": "text"},
    "seed": lambda value: value % 2**31,
    "service_tier": lambda value: "auto",
    "spaces_between_special_tokens": lambda value: True,
    "stop": lambda value: ["zz"],
    "stop_sequences": lambda value: ["zz"],
    "system": lambda value: "Be brief.",
    "stop_token_ids": lambda value: [3],
    "store": lambda value: False,
    "stream_options": lambda value: None,
    "suffix": lambda value: None,
    "temperature": lambda value: value % 2,
    "text": lambda value: None,
    "tokens": lambda value: [token % 400 for token in value[:9]],
    "tool_choice": lambda value: None,
    "tools": lambda value: [],
    "top_k": lambda value: value % 9,
    "top_logprobs": lambda value: None,
    "top_p": lambda value: 1 - value % 1,
    "truncate_prompt_tokens": lambda value: 1 + value % 9,
    "truncation": lambda value: "disabled",
}
NEEDED: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "Say"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/responses": {"input": "Hi"},
    "/v1/responses/input_tokens": {"input": "Hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/embeddings": {"input": "Hi"},
    "/v1/latency": {"prompt": "Say"},
    "/v1/completions/render": {"prompt": "Say"},
    "/v1/chat/completions/render": {"messages": [{"role": "user", "content": "Hi"}]},
    "/tokenize": {"prompt": "Say", "messages": None},
    "/detokenize": {"tokens": [3, 4]},
}
answered: Counter[tuple[str, int]] = Counter()


def check(case: Case) -> None:
    good = case.meta is not None and case.meta.generation.mode is schemathesis.GenerationMode.POSITIVE
    if good and isinstance(case.body, dict):
        given = {name: value for name, value in case.body.items() if value is not None}
        fitted = {name: IN_RANGE[name](value) if name in IN_RANGE else value for name, value in given.items()}
        needed = NEEDED.get(case.path, {})
        one_of_two = needed if case.path == "/tokenize" else {}
        case.body = {**needed, **fitted, **one_of_two}
        if case.path == "/v1/latency":  # with messages it would be the other body
            case.body = {name: value for name, value in case.body.items() if name in CompletionRequest.model_fields}
            case.body |= {"n": 1, "best_of": 1, "prompt": "Say"}
        if needed:
            case.body["model"] = MODEL
        if case.path.startswith("/v1/messages"):
            case.body["messages"] = needed["messages"]  # blocks stand in an order
    elif case.path == "/v1/models/{model}" and good:
        case.path_parameters["model"] = MODEL
    if good and case.headers:
        case.headers.pop("Last-Event-ID", None)  # of streams that the server has begun
    elif case.headers and not case.headers.get(ASKING, True):
        return  # what is no text is sent as an empty one, which counts as none
    # What fits the schema may still be refused: ranges depend on the model and on the server's limits.
    excluded: Any = schemathesis.checks.CHECKS.get_one("positive_data_acceptance")
    answer = case.call_and_validate(excluded_checks=[excluded])
    answered[case.path, answer.status_code] += 1


@cache
def schema() -> Any:
    """Made by the first test that needs it: every process that collects tests would make it."""
    return schemathesis.openapi.from_asgi("/openapi.json", create_app(ENGINE))


DRAWN = [route for route in ROUTES if route.path != "/openapi.json"]
"""The document itself is what they are made from."""
EVERY_ROUTE = [pytest.param(route.path, route.method, id=f"{route.method} {route.path}") for route in DRAWN]


def draw(path: str, method: str, examples: int, modes: list[GenerationMode]) -> None:
    """Check so many requests, each of any of the modes."""
    operation = schema()[path][method]
    cases = st.one_of([operation.as_strategy(generation_mode=mode) for mode in modes])
    settings(max_examples=examples, **SETTINGS)(given(case=cases)(check))()


@pytest.mark.parametrize(("path", "method"), EVERY_ROUTE)
def test_answers_are_as_described(path: str, method: str) -> None:
    draw(path, method, 6, list(GenerationMode))


def test_every_route_was_answered_well() -> None:
    """By the requests above, or by more of them where another process made these, or they were all bad.

    Files, batches, responses and steps are not there to be asked for: test_batches.py, test_stored.py and
    test_readings.py hold their answers to their descriptions.
    """
    absent = ("/v1/files", "/v1/batches", "/v1/responses/{", "/steps")
    described = [route for route in DRAWN if not route.path.startswith(absent)]
    for route in described:
        if not answered[route.path, 200]:
            draw(route.path, route.method, 10, [GenerationMode.POSITIVE])
    assert {path for path, status in answered if status == 200} == {route.path for route in described}
