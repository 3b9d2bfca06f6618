"""Requests that schemathesis makes from /openapi.json, good and bad: no 5xx, and every answer is as described there."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.core.result import Ok

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
schema = schemathesis.openapi.from_asgi("/openapi.json", create_app(ENGINE))
SETTINGS: Any = {"deadline": None, "suppress_health_check": list(HealthCheck)}
# What fits the schema may still be refused: ranges depend on the model and on the server's limits.
EXCLUDED: Any = [schemathesis.checks.CHECKS.get_one("positive_data_acceptance")]


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
    answer = case.call_and_validate(excluded_checks=EXCLUDED)
    answered[case.path, answer.status_code] += 1


def operations() -> list[Any]:
    return [found.ok() for found in schema.get_all_operations() if isinstance(found, Ok)]


@schema.parametrize()
@settings(max_examples=10, **SETTINGS)
def test_answers_are_as_described(case: Case) -> None:
    check(case)


def test_every_route_was_answered_well() -> None:
    """By the requests above, or by more of them where another process made these.

    The document itself is what they are made from. Files, batches, responses and steps are not there to be asked for:
    test_batches.py, test_stored.py and test_readings.py hold their answers to their descriptions.
    """
    absent = ("/v1/files", "/v1/batches", "/v1/responses/{", "/steps")
    described = {route.path for route in ROUTES if not route.path.startswith(absent)}
    described -= {"/openapi.json"}
    for operation in operations():
        if operation.path in described and not answered[operation.path, 200]:
            settings(max_examples=10, **SETTINGS)(given(case=operation.as_strategy())(check))()
    assert {path for path, status in answered if status == 200} == described
