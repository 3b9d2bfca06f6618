"""Integers that come as floats without a fraction, as languages with one type of numbers write them."""

import json
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from jaxgen.server.openapi import ROUTES
from jaxgen.server.schema.integers import Integer
from tests.server.api.test_chat import chat_engine, user
from tests.support.fakes import MODEL
from tests.support.server_app import body, client_of, complete, error_of, fake_engine, refusal

INTEGERS: dict[str, Any] = {
    "allowed_token_ids": [7.0, 9],
    "best_of": 2.0,
    "logprobs": 0.0,
    "max_tokens": 5.0,
    "min_tokens": 1.0,
    "n": 1.0,
    "priority": -1.0,
    "prompt": [5.0, 6],
    "prompt_logprobs": 2.0,
    "seed": 42.0,
    "stop_token_ids": [3.0, 4],
    "top_k": 40.0,
    "truncate_prompt_tokens": 2.0,
}


def as_integers(value: Any) -> Any:
    return [as_integers(one) for one in value] if isinstance(value, list) else int(value)


@pytest.mark.parametrize("field", INTEGERS)
def test_a_whole_float_is_an_integer(field: str) -> None:
    floats, integers = fake_engine(), fake_engine()
    value = INTEGERS[field]
    common = {"seed": 1, field: value}
    answers = [
        complete(engine, **{**common, field: given})["choices"]
        for engine, given in ((floats, value), (integers, as_integers(value)))
    ]
    assert answers[0] == answers[1]
    params = [[(one.prompt, one.params, one.priority) for one in engine.requests] for engine in (floats, integers)]
    assert params[0] == params[1]
    assert all(type(token) is int for one in floats.requests for token in one.prompt)


def test_lists_of_prompts_and_other_routes_take_them_too() -> None:
    assert complete(fake_engine(), prompt=[[5.0], [6, 7.0]])["usage"]["prompt_tokens"] == 3
    sent: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": [user("Hi")], "max_completion_tokens": 2.0, "top_logprobs": 1.0}
        | {"logprobs": True},
        "/v1/responses": {"input": "Hi", "max_output_tokens": 2.0, "top_logprobs": 1.0},
        "/v1/messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2.0, "top_k": 1.0},
        "/v1/embeddings": {"input": [5.0, 6.0], "dimensions": 2.0},
        "/detokenize": {"tokens": [5.0, 6.0]},
    }
    for path, fields in sent.items():
        with client_of(fake_engine() if path in ("/v1/embeddings", "/detokenize") else chat_engine()) as client:
            answer = client.post(path, json={"model": MODEL, **fields})
        assert answer.status_code == 200, (path, answer.text)


@pytest.mark.parametrize("text", ["NaN", "1e400", "-Infinity", "1.5", "true", '"1"', "1e-3"])
@pytest.mark.parametrize("field", ["n", "top_k", "stop_token_ids"])
def test_other_numbers_are_refused(field: str, text: str) -> None:
    value = f"[{text}]" if field == "stop_token_ids" else text
    sent = json.dumps(body())[:-1] + f', "{field}": {value}}}'
    with client_of(fake_engine()) as client:
        answer = client.post("/v1/completions", content=sent, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    error = error_of(answer.json())
    if text in ("1.5", "true", '"1"', "1e-3"):
        name = f"{field}.0" if field == "stop_token_ids" else field
        assert error["message"] == f"{name}: Input should be a valid integer."


def test_a_large_float_is_out_of_range_and_no_crash() -> None:
    assert "valid integer" in refusal(fake_engine(), seed=1e300)["message"]
    assert "fit in 64 bits" in refusal(fake_engine(), seed=2**63)["message"]


def test_seed_minus_one_is_random_as_null_is() -> None:
    engine = fake_engine()
    with client_of(engine) as client:
        for seed in (-1, -1.0, None, -1):
            assert client.post("/v1/completions", json=body(seed=seed)).status_code == 200
    seeds = [request.params.seed for request in engine.requests]
    assert len(set(seeds)) == 4
    assert -1 not in seeds


def plain_integers(annotation: Any) -> Iterator[Any]:
    """The places of a type where an integer is not ``Integer``."""
    if annotation is int:
        yield annotation
    for part in get_args(annotation):
        if annotation != Integer:
            yield from plain_integers(part)


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        for field in annotation.model_fields.values():
            yield from models_in(field.annotation)
    for part in get_args(annotation):
        yield from models_in(part)


def test_every_integer_of_every_body_is_read_so() -> None:
    bodies = {model for route in ROUTES for kind in route.bodies for model in models_in(kind)}
    assert len(bodies) > 20
    fields = [(model.__name__, name, field) for model in bodies for name, field in model.model_fields.items()]
    assert any(plain_integers(list[int])), "the search finds what it looks for"
    plain = [(model, name) for model, name, field in fields if any(plain_integers(field.annotation))]
    assert plain == []
