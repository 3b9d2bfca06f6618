"""The render routes: vLLM's GenerateRequest of what the real routes would compute, and the same refusals."""

from typing import Any

import pytest

from jaxgen.core.model_info import ModelInfo
from jaxgen.server.config import Access, ServerConfig
from tests.server.api.test_chat import CHAT, user
from tests.support.fakes import MODEL, FakeEngine
from tests.support.server_app import TOKENIZER, client_of, error_of, fake_engine

FIELDS = {
    *("request_id", "token_ids", "text", "features", "sampling_params", "model", "stream", "stream_options"),
    *("cache_salt", "priority", "kv_transfer_params"),
}
SAMPLED = {
    "max_tokens": 7,
    "min_tokens": 2,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 5,
    "min_p": 0.1,
    "presence_penalty": 0.25,
    "frequency_penalty": 0.5,
    "repetition_penalty": 1.5,
    "seed": 11,
    "stop": ["zz"],
    "stop_token_ids": [3],
    "logit_bias": {"5": 2.0},
    "bad_words": ["no"],
    "skip_special_tokens": False,
}


def chatty() -> FakeEngine:
    return fake_engine(model=ModelInfo(MODEL, 128, 400, chat=CHAT))


def post(engine: FakeEngine, path: str, **fields: Any) -> Any:
    with client_of(engine) as client:
        answer = client.post(path, json={"model": MODEL, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_prompts_are_rendered_to_what_the_engine_would_get() -> None:
    engine = fake_engine()
    asked: dict[str, Any] = {"prompt": ["Say", "it"], "priority": 4, "cache_salt": "s", "n": 2, **SAMPLED}
    found = post(engine, "/v1/completions/render", **asked)
    assert engine.requests == []
    post(engine, "/v1/completions", **asked)
    sent = {request.prompt: request for request in engine.requests}
    assert [tuple(one["token_ids"]) for one in found] == list(sent)
    assert [one["text"] for one in found] == ["Say", "it"]
    for one in found:
        request = sent[tuple(one["token_ids"])]
        assert set(one) == FIELDS
        assert (one["cache_salt"], one["priority"]) == (request.cache_salt, request.priority) == ("s", 4)
        params = one["sampling_params"]
        assert {name: params[name] for name in SAMPLED} == SAMPLED
        assert (params["n"], params["structured_outputs"]) == (2, None)


def test_a_conversation_is_one_request_with_the_room_that_its_prompt_leaves() -> None:
    engine = chatty()
    streams: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    found = post(engine, "/v1/chat/completions/render", messages=[user("Hi")], **streams)
    post(engine, "/v1/chat/completions", messages=[user("Hi")], max_tokens=1)
    (request,) = engine.requests
    assert (tuple(found["token_ids"]), found["text"]) == (request.prompt, TOKENIZER.decode(request.prompt))
    assert found["sampling_params"]["max_tokens"] == 128 - len(request.prompt)
    assert found["sampling_params"]["seed"] is None
    assert found["request_id"].startswith("chatcmpl-")
    assert (found["stream"], found["stream_options"]["include_usage"]) == (True, True)


def test_a_grammar_is_told_as_one() -> None:
    found = post(fake_engine(), "/v1/completions/render", prompt="Say", structured_outputs={"regex": "a+"})
    assert "a+" in found[0]["sampling_params"]["structured_outputs"]["grammar"]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"what": 1},
        {"temperature": 3.0},
        {"max_tokens": 1000},
        {"n": 1000},
        {"model": "other"},
        {"cache_salt": ""},
        {"stream_options": {}},
        {"resume": {"last_event_id": "x"}},
        {"resume": {"last_event_id": "x"}, "stream": True},
    ],
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_it_refuses_what_the_route_refuses(path: str, fields: dict[str, Any]) -> None:
    chat = "chat" in path
    given: dict[str, Any] = {"messages": [user("Hi")]} if chat else {"prompt": "Say"}
    body = {"model": MODEL, **(given if fields else {}), **fields}
    engine = chatty()
    with client_of(engine, ServerConfig()) as client:
        real, rendered = (client.post(one, json=body) for one in (path, f"{path}/render"))
    if real.status_code == 200:  # a conversation's max_tokens is cut to the room that there is
        assert rendered.status_code == 200
        return
    assert (rendered.status_code, error_of(rendered.json())) == (real.status_code, error_of(real.json()))
    assert real.status_code in (400, 404)


def test_a_key_is_asked_for() -> None:
    with client_of(fake_engine(), ServerConfig(access=Access(api_keys=("key",)))) as client:
        assert client.post("/v1/completions/render", json={"prompt": "Say"}).status_code == 401
