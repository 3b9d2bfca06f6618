"""What clients of other languages and systems write for the same request."""

import codecs
import json
from typing import Any

import pytest
from llguidance import LLMatcher

from jaxgen.server.batches.lines import parse_line
from tests.support.fakes import MODEL
from tests.support.server_app import body, client_of, complete, error_of, fake_engine

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
JSON = {"content-type": "application/json"}


def test_a_byte_order_mark_before_a_body_is_left_out() -> None:
    engine = fake_engine()
    with client_of(engine) as client:
        raw = codecs.BOM_UTF8 + json.dumps(body()).encode()
        for path in ("/v1/completions", "/tokenize", "/v1/completions/render", "/v1/latency"):
            answer = client.post(path, content=raw, headers=JSON)
            assert answer.status_code == 200, answer.text
        twice = client.post("/v1/completions", content=codecs.BOM_UTF8 + raw, headers=JSON)
        assert twice.status_code == 400


def test_a_byte_order_mark_before_a_file_of_requests_is_left_out() -> None:
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body()}
    assert parse_line(codecs.BOM_UTF8 + json.dumps(line).encode()).custom_id == "a"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_another_encoding_is_named(encoding: str) -> None:
    mark = {"utf-16-le": codecs.BOM_UTF16_LE, "utf-16-be": codecs.BOM_UTF16_BE}.get(encoding, b"")
    with client_of(fake_engine()) as client:
        answer = client.post("/v1/completions", content=mark + json.dumps(body()).encode(encoding), headers=JSON)
    assert answer.status_code == 400
    assert "UTF-16" in error_of(answer.json())["message"]


WHOLE: dict[str, float] = {
    "max_tokens": 3.0,
    "top_k": 40.0,
    "n": 1.0,
    "seed": 42.0,
    "logprobs": 0.0,
    "min_tokens": 1.0,
    "best_of": 1.0,
    "truncate_prompt_tokens": 5.0,
    "priority": -1.0,
    "prompt_logprobs": 1.0,
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_number_without_a_fraction_is_an_integer(name: str) -> None:
    """As Lua, PHP and Go's maps write it."""
    engine, plain = fake_engine(), fake_engine()
    complete(engine, **{"seed": 1, name: WHOLE[name]})
    complete(plain, **{"seed": 1, name: int(WHOLE[name])})
    assert engine.requests[0].params == plain.requests[0].params


@pytest.mark.parametrize(
    ("path", "name"), [("/v1/chat/completions", "max_completion_tokens"), ("/v1/responses", "max_output_tokens")]
)
def test_so_it_is_at_the_other_routes(path: str, name: str) -> None:
    with client_of(fake_engine()) as client:
        asked = {"model": MODEL, "input": "Hi"} if path == "/v1/responses" else CHAT
        found = [client.post(path, json={**asked, name: value}).json()["error"] for value in (3.0, 3.5, 1e300)]
    assert "no chat template" in found[0]["message"]
    assert found[1]["param"] == name
    assert found[2]["message"]


@pytest.mark.parametrize("value", [3.5, True, "3", "3.0"])
def test_other_values_are_no_integers(value: Any) -> None:
    with client_of(fake_engine()) as client:
        answer = client.post("/v1/completions", json=body(max_tokens=value))
    assert error_of(answer.json())["param"] == "max_tokens"


@pytest.mark.parametrize("value", [0, 0.0])
def test_top_p_may_be_0(value: float) -> None:
    engine = fake_engine()
    complete(engine, top_p=value)
    assert engine.requests[0].params.top_p == 0


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"prompt": "Say"}),
        ("/v1/embeddings", {"input": "Say"}),
        ("/v1/completions/render", {"prompt": "Say"}),
    ],
)
def test_a_slash_at_the_end_of_a_path_changes_nothing(path: str, fields: dict[str, Any]) -> None:
    with client_of(fake_engine()) as client:
        found = [client.post(one, json={"model": MODEL, **fields}) for one in (path, f"{path}/")]
        assert [one.status_code for one in found] == [found[0].status_code] * 2
        assert found[0].status_code != 404
        assert client.post(f"{path}//", json={"model": MODEL, **fields}).status_code == 404


@pytest.mark.parametrize("character", ["\x7f", "\x01", "\x1b", "\x80", "\x9f", "\u2028", "\ufeff", '"', "\\", "\n"])
def test_a_choice_may_have_any_character(character: str) -> None:
    engine = fake_engine()
    complete(engine, structured_outputs={"choice": [f"a{character}b", "c"]})
    grammar = engine.requests[0].params.grammar
    assert grammar is not None
    assert LLMatcher.validate_grammar(grammar.text) == ""
