"""Every field of OpenAI's own reference is known here: its null is absence, and what is not done is refused by name."""

import typing
from dataclasses import dataclass
from typing import Any

import pytest
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params

from jaxgen.core.model_info import ChatFormat, EmbeddingFormat, ModelInfo, Pooling
from jaxgen.server.api.embeddings import EmbeddingRequest
from jaxgen.server.schema.base import Body, CompletionRequest
from jaxgen.server.schema.chat import ChatRequest
from tests.support.fakes import MODEL, FakeEngine
from tests.support.server_app import client_of, error_of, fake_engine

SAMPLES: dict[str, Any] = {
    "audio": {"voice": "ash", "format": "wav"},
    "function_call": {"name": "f"},
    "functions": [{"name": "f", "parameters": {}}],
    "modalities": ["text", "audio"],
    "moderation": {"model": "omni-moderation-latest"},
    "store": True,
    "verbosity": "low",
    "web_search_options": {},
}
"""Values that ask for what is not done, by field."""

HARMLESS: dict[str, list[Any]] = {
    "function_call": ["none", "auto"],
    "functions": [[]],
    "modalities": [["text"]],
    "prediction": [{"type": "content", "content": "Hello"}],
    "prompt_cache_key": ["k"],
    "prompt_cache_options": [{"mode": "explicit", "ttl": "30m"}],
    "prompt_cache_retention": ["24h", "in_memory"],
    "reasoning_effort": ["none"],
    "safety_identifier": ["s"],
    "store": [False],
    "suffix": [""],
    "verbosity": ["medium"],
}
"""Values that ask for nothing, by field."""


@dataclass(frozen=True)
class Endpoint:
    """An endpoint, what OpenAI's client sends to it, and the fields that its bodies must have."""

    path: str
    params: Any
    body: type[Body]
    needed: dict[str, Any]

    @property
    def fields(self) -> set[str]:
        """The fields of the reference."""
        kinds = typing.get_args(self.params) or (self.params,)
        return {name for kind in kinds for name in typing.get_type_hints(kind)}


ENDPOINTS = {
    "chat": Endpoint(
        "/v1/chat/completions",
        chat_create_params.CompletionCreateParams,
        ChatRequest,
        {"messages": [{"role": "user", "content": "Hi"}]},
    ),
    "completions": Endpoint(
        "/v1/completions", completion_create_params.CompletionCreateParams, CompletionRequest, {"prompt": "Hi"}
    ),
    "embeddings": Endpoint(
        "/v1/embeddings", embedding_create_params.EmbeddingCreateParams, EmbeddingRequest, {"input": "Hi"}
    ),
}
every_endpoint = pytest.mark.parametrize("name", ENDPOINTS)


def engine() -> FakeEngine:
    chat, vectors = ChatFormat("{{ messages[0].content }}", {}), EmbeddingFormat(2, Pooling.LAST)
    return fake_engine(model=ModelInfo(MODEL, 128, 400, chat=chat, embedding=vectors))


def post(endpoint: Endpoint, **fields: Any) -> Any:
    with client_of(engine()) as client:
        return client.post(endpoint.path, json={"model": MODEL, **endpoint.needed, **fields})


@every_endpoint
def test_every_field_of_the_reference_is_known(name: str) -> None:
    """A new one fails here: it goes into the body's fields, or with a reason into ``unsupported``."""
    endpoint = ENDPOINTS[name]
    assert endpoint.fields - endpoint.body.model_fields.keys() - endpoint.body.unsupported.keys() == set()


@every_endpoint
def test_null_is_absence(name: str) -> None:
    endpoint = ENDPOINTS[name]
    nulls = dict.fromkeys(endpoint.fields - endpoint.needed.keys() - {"model"})
    assert endpoint.body.unsupported.keys() <= nulls.keys()
    answer = post(endpoint, **nulls)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("name", "field"), [(name, field) for name, endpoint in ENDPOINTS.items() for field in endpoint.body.unsupported]
)
def test_what_is_not_done_is_refused_as_what_it_is(name: str, field: str) -> None:
    answer = post(ENDPOINTS[name], **{field: SAMPLES[field]})
    assert answer.status_code == 400, answer.text
    error = error_of(answer.json())
    assert (error["param"], error["code"]) == (field, "unsupported_parameter")
    assert error["message"].startswith(f"{field}: ")
    assert "Unknown" not in error["message"]


@every_endpoint
def test_what_asks_for_nothing_is_accepted(name: str) -> None:
    endpoint = ENDPOINTS[name]
    for field in HARMLESS.keys() & endpoint.fields:
        for value in HARMLESS[field]:
            answer = post(endpoint, **{field: value})
            assert answer.status_code == 200, (field, answer.text)


@pytest.mark.parametrize(
    ("field", "value"), [("store", 0), ("modalities", "text"), ("functions", {}), ("verbosity", 5)]
)
def test_a_value_of_another_type_is_not_harmless(field: str, value: Any) -> None:
    assert error_of(post(ENDPOINTS["chat"], **{field: value}).json())["param"] == field


@every_endpoint
def test_other_fields_are_unknown(name: str) -> None:
    error = error_of(post(ENDPOINTS[name], nonsense=None).json())
    assert (error["param"], error["code"]) == ("nonsense", "unknown_parameter")
