"""POST /v1/latency around a fake engine: what it answers, what it refuses, and that it takes nothing."""

from typing import Any

import pytest

from jaxgen.core.errors import WouldBeLateError
from jaxgen.core.model_info import ModelInfo
from jaxgen.core.service_class import ServiceClass
from jaxgen.server.config import Access, ServerConfig
from jaxgen.server.limits import Queue
from tests.server.api.test_chat import CHAT, user
from tests.support.fakes import MODEL, FakeEngine
from tests.support.server_app import TOKENIZER, client_of, error_of, fake_engine

CLASS = ServiceClass(name="fast", first_token_seconds=1.0)


def ask(engine: FakeEngine, config: ServerConfig | None = None, status: int = 200, **fields: Any) -> dict[str, Any]:
    with client_of(engine, config or ServerConfig()) as client:
        answer = client.post("/v1/latency", json={"model": MODEL, **fields})
    assert answer.status_code == status, answer.text
    assert engine.requests == [], "nothing is computed"
    result: dict[str, Any] = answer.json()
    return result


def test_a_prompt_gets_what_the_engine_predicts() -> None:
    engine = fake_engine(cached=1)
    length = len(TOKENIZER.encode("Say it"))
    assert ask(engine, ServerConfig(service_classes=(CLASS,)), prompt="Say it", max_tokens=9, service_tier="fast") == {
        "object": "latency",
        "model": MODEL,
        "prompt_tokens": length,
        "cached_tokens": 1,
        "first_token": {"expected_seconds": (length - 1) / 2, "most_seconds": length - 1},
        "inter_token": {"expected_seconds": 0.25, "most_seconds": 1.0},
        "refused": None,
    }
    (asked,) = engine.asked
    assert (asked.prompt, asked.params.max_tokens, asked.service) == (tuple(TOKENIZER.encode("Say it")), 9, CLASS)
    assert asked.waited_seconds > 0.0


def test_a_conversation_is_asked_for_by_its_messages() -> None:
    engine = fake_engine(model=ModelInfo(MODEL, 128, 400, chat=CHAT))
    found = ask(engine, messages=[user("Hi")], priority=3, stream=True)
    assert found["prompt_tokens"] == len(engine.asked[0].prompt) > len(TOKENIZER.encode("Hi"))
    assert engine.asked[0].priority == 3


def test_one_that_would_be_late_says_so() -> None:
    engine = fake_engine(late=WouldBeLateError("the first token would come in 9 s", 3.2))
    found = ask(engine, prompt="Say")
    assert found["refused"] == {
        "code": "would_be_late",
        "message": "the first token would come in 9 s.",
        "retry_after_seconds": 4,
    }
    assert (found["cached_tokens"], found["first_token"], found["inter_token"]) == (None, None, None)


def test_a_full_queue_says_so_and_a_prediction_takes_no_place_in_it() -> None:
    engine, config = fake_engine(), ServerConfig(queue=Queue(max_queued_requests=1))
    with client_of(engine, config) as client:
        queue = client.app.state.queue  # type: ignore[attr-defined]
        for _ in range(3):
            assert client.post("/v1/latency", json={"prompt": "Say"}).json()["refused"] is None
        queue.enter([engine_choice(engine)])
        refused = client.post("/v1/latency", json={"prompt": "Say"}).json()["refused"]
        assert client.post("/v1/completions", json={"prompt": "Say"}).json()["error"]["code"] == refused["code"]
    assert refused["code"] == "queue_full"
    assert refused["retry_after_seconds"] >= 1


class Waiting:
    def __init__(self, request: Any) -> None:
        self.request = request


def engine_choice(engine: FakeEngine) -> Waiting:
    return Waiting(engine.asked[0])


@pytest.mark.parametrize(
    ("fields", "status", "names"),
    [
        ({}, 400, "prompt"),
        ({"prompt": "Say", "what": 1}, 400, "what"),
        ({"prompt": "Say", "n": 2}, 400, "n"),
        ({"prompt": ["a", "b"]}, 400, "n"),
        ({"prompt": "Say", "temperature": 3.0}, 400, "temperature"),
        ({"prompt": "Say", "service_tier": "other"}, 400, "service_tier"),
        ({"messages": [], "prompt": "Say"}, 400, "prompt"),
        ({"messages": [{"role": "user", "content": "Hi"}]}, 400, "messages"),  # no chat template
        ({"prompt": "Say", "model": "other"}, 404, "model"),
    ],
)
def test_a_body_that_its_route_would_refuse(fields: dict[str, Any], status: int, names: str) -> None:
    engine = fake_engine()
    assert error_of(ask(engine, status=status, **fields))["param"] == names
    assert engine.asked == []


def test_a_key_is_asked_for_and_separates_prefixes() -> None:
    engine, config = fake_engine(), ServerConfig(access=Access(api_keys=("first-key", "second-key")))
    with client_of(engine, config) as client:
        assert client.post("/v1/latency", json={"prompt": "Say"}).status_code == 401
        for key in ("first-key", "second-key"):
            client.post("/v1/latency", json={"prompt": "Say"}, headers={"authorization": f"Bearer {key}"})
    salts = [request.cache_salt for request in engine.asked]
    assert len(set(salts)) == 2
    assert None not in salts
