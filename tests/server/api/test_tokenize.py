"""/tokenize, /detokenize and /version."""

from importlib.metadata import version
from typing import Any

import pytest

from jaxgen.core.model_info import ModelInfo
from jaxgen.server.config import ServerConfig
from jaxgen.server.limits import Limits, Queue
from tests.server.api.test_chat import CHAT, user
from tests.support.fakes import MODEL
from tests.support.server_app import SPACED_TOKENIZER, TOKENIZER, client_of, error_of, fake_engine


def ask(path: str, config: ServerConfig | None = None, status: int = 200, **fields: Any) -> dict[str, Any]:
    engine = fake_engine(model=ModelInfo(MODEL, 128, 400, chat=CHAT), tokenizer=fields.pop("tokenizer", TOKENIZER))
    with client_of(engine, config or ServerConfig()) as client:
        answer = client.post(path, json={"model": MODEL, **fields})
    assert answer.status_code == status, answer.text
    result: dict[str, Any] = answer.json()
    return result


@pytest.mark.parametrize("inline", [0, 4096])
def test_a_text_and_back(inline: int) -> None:
    config = ServerConfig(queue=Queue(inline_encode_chars=inline))
    found = ask("/tokenize", config, prompt="Hello 😀", return_token_strs=True)
    tokens = TOKENIZER.encode("Hello 😀")
    assert (found["tokens"], found["count"], found["max_model_len"]) == (tokens, len(tokens), 128)
    assert found["token_strs"] == [TOKENIZER.token_text(token) for token in tokens]
    assert ask("/detokenize", config, tokens=tokens) == {"prompt": "Hello 😀"}
    assert ask("/detokenize", tokens=[]) == {"prompt": ""}


def test_special_tokens_are_added_unless_refused() -> None:
    whole = ask("/tokenize", tokenizer=SPACED_TOKENIZER, prompt="Hi")["tokens"]
    bare = ask("/tokenize", tokenizer=SPACED_TOKENIZER, prompt="Hi", add_special_tokens=False)["tokens"]
    assert whole == SPACED_TOKENIZER.encode("Hi")
    assert bare == SPACED_TOKENIZER.encode("Hi", special=False)
    assert whole != bare


def test_a_conversation_is_what_chat_would_compute() -> None:
    found = ask("/tokenize", messages=[user("Hi")])
    assert found["tokens"] == TOKENIZER.encode("!<user>Hi</><assistant>", special=False)
    assert "token_strs" not in found


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [user("b")]}, "prompt"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/tokenize", {"prompt": "x" * 200}, "prompt"),
        ("/tokenize", {"prompt": "a", "text": "b"}, "text"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [400]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens.0"),
    ],
)
def test_refusals(path: str, fields: dict[str, Any], param: str) -> None:
    assert error_of(ask(path, status=400, **fields))["param"] == param


def test_a_prompt_is_one_text_here() -> None:
    assert error_of(ask("/tokenize", status=400, prompt=[1, 2]))["message"] == "prompt: Input should be a valid string."


def test_bodies_are_checked_as_elsewhere() -> None:
    assert error_of(ask("/tokenize", ServerConfig(limits=Limits(max_body_bytes=20)), 413, prompt="x" * 50))
    with client_of(fake_engine()) as client:
        assert client.post("/tokenize", json={"model": "other", "prompt": "a"}).status_code == 404
        assert client.post("/detokenize", content=b"[1]").status_code == 400
        assert client.get("/version").json() == {"version": version("jaxgen")}
