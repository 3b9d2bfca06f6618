"""A text that is too long by its characters alone is refused before the tokenizer sees it; what fits is not."""

from typing import Any

import pytest

from jaxgen.core.model_info import EmbeddingFormat, ModelInfo, Pooling
from jaxgen.server.config import ServerConfig
from jaxgen.server.limits import Queue
from jaxgen.text.tokenizer import Tokenizer
from tests.server.api.test_chat import CHAT, user
from tests.support import tiny_tokenizers
from tests.support.fakes import MODEL, FakeEngine
from tests.support.server_app import TOKENIZER, client_of, error_of, fake_engine

CONTEXT = 128


def engine_of(tokenizer: Tokenizer = TOKENIZER) -> FakeEngine:
    embedding = EmbeddingFormat(4, Pooling.LAST)
    return fake_engine(model=ModelInfo(MODEL, CONTEXT, 400, chat=CHAT, embedding=embedding), tokenizer=tokenizer)


def longest_token() -> str:
    return max(filter(None, (TOKENIZER.text(token) for token in range(TOKENIZER.vocab_size))), key=len)


@pytest.mark.parametrize("inline", [0, 10**6])
@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/completions", {"prompt": "{}"}, "prompt"),
        ("/v1/completions", {"prompt": ["a", "{}"]}, "prompt.1"),
        ("/v1/chat/completions", {"messages": [user("{}")]}, "messages"),
        ("/v1/responses", {"input": "{}"}, "input"),
        ("/v1/embeddings", {"input": ["a", "{}"]}, "input.1"),
        ("/tokenize", {"prompt": "{}"}, "prompt"),
        ("/tokenize", {"messages": [user("{}")]}, "messages"),
    ],
)
def test_a_text_far_too_long_is_not_tokenised(
    path: str, fields: dict[str, Any], param: str, inline: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(*_: Any, **__: Any) -> list[int]:
        pytest.fail("tokenises")

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: filled(item) for name, item in value.items()}
        return [filled(item) for item in value] if isinstance(value, list) else value.replace("{}", "word " * 5000)

    monkeypatch.setattr(Tokenizer, "encode", encode)
    with client_of(engine_of(), ServerConfig(queue=Queue(inline_encode_chars=inline))) as client:
        answer = client.post(path, json={"model": MODEL, **filled(fields)})
    error = error_of(answer.json())
    assert (answer.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", param)
    least = TOKENIZER.least_tokens("word " * 5000)
    assert least > CONTEXT
    assert error["message"].startswith(
        f"This model's maximum context length is {CONTEXT} tokens. However, your {param} resulted in at least "
    )
    assert error["message"].endswith(f" tokens. Please reduce the length of the {param}.")


def test_what_fits_is_taken_however_long_its_tokens() -> None:
    text = longest_token() * (CONTEXT - 1)
    assert len(TOKENIZER.encode(text)) == CONTEXT - 1
    with client_of(engine_of(), ServerConfig()) as client:
        answer = client.post("/v1/completions", json={"model": MODEL, "prompt": text, "max_tokens": 1})
        assert answer.status_code == 200
        beyond = client.post("/v1/completions", json={"model": MODEL, "prompt": text + longest_token() * 2})
        assert "at least" not in error_of(beyond.json())["message"], "near the limit the tokens are counted"


def test_a_tokenizer_without_a_bound_counts_its_tokens() -> None:
    words = Tokenizer(tiny_tokenizers.word_level())
    with client_of(engine_of(words), ServerConfig()) as client:
        answer = client.post("/v1/completions", json={"model": MODEL, "prompt": "x" * 10**6, "max_tokens": 1})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("inputs", "param", "says"),
    [
        (["a", "", "b"], "input.1", "input.1 must not be empty"),
        (["a", "b", "é " * CONTEXT], "input.2", "your input.2 resulted in"),
        ([[5], [5, 9999]], "input.1", "input.1: 9999 is not a valid token id"),
        (["é " * CONTEXT], "input", "your input resulted in"),
    ],
)
@pytest.mark.parametrize("inline", [0, 10**6])
def test_an_error_about_one_of_several_inputs_says_which(inputs: list[Any], param: str, says: str, inline: int) -> None:
    with client_of(engine_of(), ServerConfig(queue=Queue(inline_encode_chars=inline))) as client:
        answer = client.post("/v1/embeddings", json={"model": MODEL, "input": inputs})
    error = error_of(answer.json())
    assert (answer.status_code, error["param"]) == (400, param)
    assert says in error["message"]
