"""``return_token_ids``, ``return_tokens_as_token_ids`` and ``prompt_logprobs``, in vLLM's shapes."""

from typing import Any

import pytest

from jaxgen.core.model_info import ModelInfo
from tests.server.api.test_chat import HELLO as CHAT_HELLO
from tests.server.api.test_chat import chat, chat_engine, user
from tests.server.api.test_completions import HELLO
from tests.support.fakes import MODEL, says
from tests.support.server_app import (
    TOKENIZER,
    body,
    byte_by_byte,
    client_of,
    complete,
    fake_engine,
    refusal,
    stream_chunks,
)

SAY = TOKENIZER.encode("Say")
EOS = 1


def test_text_completions_have_ids_by_choice() -> None:
    answer = complete(fake_engine(reply=says(HELLO)), return_token_ids=True, n=2)
    for choice in answer["choices"]:
        assert (choice["prompt_token_ids"], choice["token_ids"]) == (SAY, [*HELLO, EOS])
    assert "token_ids" not in complete(fake_engine(reply=says(HELLO)))["choices"][0]


def test_ids_of_a_stream_join_to_those_of_the_whole() -> None:
    emoji = byte_by_byte("a😀b")
    with client_of(fake_engine(reply=says(emoji))) as client:
        answer = client.post("/v1/completions", json=body(stream=True, return_token_ids=True, max_tokens=20))
    choices = [chunk["choices"][0] for chunk in stream_chunks(answer.text)]
    assert [token for choice in choices for token in choice["token_ids"]] == [*emoji, EOS]
    assert [choice.get("prompt_token_ids") for choice in choices] == [SAY] + [None] * (len(choices) - 1)


def test_chat_has_the_prompts_ids_beside_its_choices() -> None:
    prompt = TOKENIZER.encode("!<user>Hi</><assistant>", special=False)
    whole = chat(chat_engine(), user("Hi"), return_token_ids=True, n=2)
    assert whole["prompt_token_ids"] == prompt
    assert [choice["token_ids"] for choice in whole["choices"]] == [[*CHAT_HELLO, EOS]] * 2
    chunks = chat(chat_engine(), user("Hi"), return_token_ids=True, stream=True)
    assert [chunk.get("prompt_token_ids") for chunk in chunks] == [prompt] + [None] * (len(chunks) - 1)
    assert [token for chunk in chunks for token in chunk["choices"][0].get("token_ids", [])] == [*CHAT_HELLO, EOS]


def of_prompt(count: int, **fields: Any) -> list[Any]:
    answer = complete(fake_engine(reply=says(HELLO)), prompt_logprobs=count, **fields)
    found: list[Any] = answer["choices"][0]["prompt_logprobs"]
    return found


@pytest.mark.parametrize("count", [0, 2])
def test_logprobs_of_the_prompt_are_by_token_id(count: int) -> None:
    first, *others = of_prompt(count)
    assert first is None
    for token, shown in zip(SAY[1:], others, strict=True):
        own = shown.pop(str(token))
        assert own["logprob"] == pytest.approx(-(token % 7 + 1) / 8)
        assert (own["rank"], own["decoded_token"]) == (token + 1, TOKENIZER.token_text(token))
        assert list(shown) == [str(token + 1 + i) for i in range(count)]
        assert [other["rank"] for other in shown.values()] == list(range(1, count + 1))
    whole = chat(chat_engine(), user("Hi"), prompt_logprobs=count)
    assert whole["prompt_logprobs"][0] is None


def test_an_echo_shows_as_many_alternatives_as_logprobs_says() -> None:
    answer = complete(fake_engine(reply=says(HELLO)), prompt_logprobs=5, echo=True, logprobs=1)
    choice = answer["choices"][0]
    assert [len(top) for top in choice["logprobs"]["top_logprobs"][1 : len(SAY)]] == [2] * (len(SAY) - 1)
    assert [len(shown) for shown in choice["prompt_logprobs"][1:]] == [6] * (len(SAY) - 1)
    fewer = complete(fake_engine(reply=says(HELLO)), prompt_logprobs=0, echo=True, logprobs=3)["choices"][0]
    assert [len(shown) for shown in fewer["prompt_logprobs"][1:]] == [1] * (len(SAY) - 1)
    assert len(fewer["logprobs"]["top_logprobs"][1]) == 4


def test_the_whole_vocabulary_is_shown_where_it_is_small() -> None:
    engine = fake_engine(model=ModelInfo(MODEL, max_model_len=128, vocab_size=12))
    answer = complete(engine, prompt=[5, 6], prompt_logprobs=-1)
    assert engine.requests[0].params.prompt_logprobs == 12
    assert len(answer["choices"][0]["prompt_logprobs"][1]) == 13, "the token, and the fake's 12 others"


def test_tokens_are_shown_by_their_ids_where_that_is_asked_for() -> None:
    whole = complete(fake_engine(reply=says(HELLO)), return_tokens_as_token_ids=True, logprobs=2, echo=True)
    logprobs, ids = whole["choices"][0]["logprobs"], [*SAY, *HELLO, EOS]
    assert logprobs["tokens"] == [f"token_id:{token}" for token in ids]
    for token, top in zip(ids[1:], logprobs["top_logprobs"][1:], strict=True):
        assert sorted(top) == sorted(f"token_id:{one}" for one in range(token, token + 3))
    asked = {"logprobs": True, "top_logprobs": 1}
    chosen = chat(chat_engine(), user("Hi"), return_tokens_as_token_ids=True, **asked)["choices"][0]
    plain = chat(chat_engine(), user("Hi"), **asked)["choices"][0]
    for token, shown, text in zip(
        [*CHAT_HELLO, EOS], *(c["logprobs"]["content"] for c in (chosen, plain)), strict=True
    ):
        assert shown["token"] == f"token_id:{token}"
        assert shown["top_logprobs"][0]["token"] == f"token_id:{token + 1}"
        assert (shown["bytes"], shown["logprob"]) == (text["bytes"], text["logprob"])
    assert chosen["message"] == plain["message"]


@pytest.mark.parametrize(
    "fields", [{"prompt_logprobs": -1}, {"prompt_logprobs": 99}, {"prompt_logprobs": 1, "stream": True}]
)
def test_refusals(fields: dict[str, Any]) -> None:
    assert refusal(fake_engine(), **fields)["param"] == "prompt_logprobs"
