"""What /v1/chat/completions answers, worked out by hand from the fake engine's tokens."""

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionChunk

from jaxgen.core.errors import ConfigError
from jaxgen.core.model_info import ChatFormat, ModelInfo
from jaxgen.server.app import create_app
from jaxgen.server.config import ServerConfig
from jaxgen.server.limits import Queue
from jaxgen.weights.huggingface.chat_template import read_chat_format
from tests.support.fakes import MODEL, FakeEngine, says
from tests.support.live_server import serve
from tests.support.server_app import (
    BYTE_TOKENS,
    TOKENIZER,
    byte_by_byte,
    client_of,
    error_of,
    fake_engine,
    stream_chunks,
)

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'system' and not loop.first %}{{ raise_exception('system comes first') }}{% endif %}"
    "{% if m.content == 'a robot' %}{{ raise_exception('no robots') }}{% endif %}"
    "<{{ m.role }}{% if m.name %} {{ m.name }}{% endif %}>{{ m.content }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% if quiet %}hush{% endif %}{% endif %}"
)
CHAT = ChatFormat(TEMPLATE, {"bos_token": "!"})
HELLO = byte_by_byte("Hello 😀")
PATH = "/v1/chat/completions"


def chat_engine(**fields: Any) -> FakeEngine:
    model = ModelInfo(MODEL, max_model_len=128, vocab_size=400, chat=CHAT)
    return fake_engine(**{"model": model, "reply": says(HELLO), **fields})


def user(text: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": text, **fields}


def chat(engine: FakeEngine, *messages: dict[str, Any], status: int = 200, **fields: Any) -> Any:
    with client_of(engine) as client:
        answer = client.post(PATH, json={"model": MODEL, "messages": list(messages), **fields})
    assert answer.status_code == status, answer.text
    return answer.json() if not fields.get("stream") or status != 200 else stream_chunks(answer.text)


def prompt_of(engine: FakeEngine) -> str:
    return TOKENIZER.decode(engine.requests[-1].prompt)


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with (
        serve(create_app(chat_engine())) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as made,
    ):
        yield made


def test_the_openai_client_gets_an_answer(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hi"}])
    assert (answer.object, answer.model, answer.id[:9]) == ("chat.completion", MODEL, "chatcmpl-")
    (choice,) = answer.choices
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "stop", None)
    assert (choice.message.role, choice.message.content) == ("assistant", "Hello 😀")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 11, "10 bytes of text and the EOS"


def test_the_openai_client_streams(client: openai.OpenAI) -> None:
    chunks: list[ChatCompletionChunk] = list(
        client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Hi"}],
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    deltas = [chunk.choices[0] for chunk in chunks[:-1]]
    assert (deltas[0].delta.role, deltas[0].delta.content) == ("assistant", "")
    assert "".join(one.delta.content or "" for one in deltas) == "Hello 😀"
    assert [one.finish_reason for one in deltas] == [None] * (len(deltas) - 1) + ["stop"]
    assert (chunks[-1].choices, chunks[-1].usage is not None) == ([], True)


def test_the_template_writes_the_prompt() -> None:
    engine = chat_engine()
    chat(
        engine, {"role": "system", "content": "Be brief."}, user("Hi", name="Ann"), chat_template_kwargs={"quiet": True}
    )
    assert prompt_of(engine) == "!<system>Be brief.</><user Ann>Hi</><assistant>hush"
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    chat(engine, user(parts), add_generation_prompt=False)
    assert prompt_of(engine) == "!<user>ab</>"
    chat(engine, user("Hi"), {"role": "assistant", "content": "I am"}, continue_final_message=True)
    assert prompt_of(engine) == "!<user>Hi</><assistant>I am"


def test_special_tokens_are_those_of_the_template_alone() -> None:
    engine = chat_engine()
    chat(engine, user("Hi"))
    assert list(engine.requests[-1].prompt) == TOKENIZER.encode("!<user>Hi</><assistant>", special=False)


def test_an_answer_may_be_as_long_as_the_context() -> None:
    engine = chat_engine()
    answer = chat(engine, user("Hi"))
    assert engine.requests[-1].params.max_tokens == 128 - answer["usage"]["prompt_tokens"]
    for name in ("max_tokens", "max_completion_tokens"):
        answer = chat(engine, user("Hi"), **{name: 3})
        assert answer["choices"][0]["message"]["content"] == "Hel"
        assert answer["choices"][0]["finish_reason"] == "length"


def test_too_long_a_conversation_is_refused_in_words_that_clients_know() -> None:
    error = chat(chat_engine(), user("Hi"), status=400, max_tokens=127)["error"]
    head = "This model's maximum context length is 128 tokens. However, you requested 149 tokens ("
    assert error["message"] == (
        f"{head}22 in the messages, 127 in the completion). Please reduce the length of the messages or completion."
    )
    assert (error["param"], error["code"]) == ("max_tokens", "context_length_exceeded")


def test_choices_have_seeds_of_their_own() -> None:
    engine = chat_engine()
    answer = chat(engine, user("Hi"), n=3, seed=5)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert len({request.params.seed for request in engine.requests}) == 3


def test_logprobs_show_each_token_and_its_alternatives() -> None:
    engine = chat_engine(reply=says([BYTE_TOKENS[b"H"], BYTE_TOKENS[b"\xf0"]]))
    (choice,) = chat(engine, user("Hi"), logprobs=True, top_logprobs=2, max_tokens=2)["choices"]
    first, second = choice["logprobs"]["content"]
    assert (first["token"], first["bytes"]) == ("H", [72])
    assert first["logprob"] == pytest.approx(-(BYTE_TOKENS[b"H"] % 7 + 1) / 8)
    assert [other["logprob"] for other in first["top_logprobs"]] == [-1 / 8, -2 / 8]
    assert (second["token"], second["bytes"]) == ("bytes:\\xf0", [0xF0])
    without = chat(engine, user("Hi"), logprobs=True)["choices"][0]["logprobs"]["content"]
    assert without[0]["top_logprobs"] == []


@pytest.mark.parametrize("fields", [{}, {"logprobs": True, "top_logprobs": 1}, {"n": 3}, {"stop": "lo"}])
def test_a_stream_joins_to_the_whole_answer(fields: dict[str, Any]) -> None:
    whole = chat(chat_engine(), user("Hi"), seed=1, **fields)["choices"]
    chunks = [chunk["choices"][0] for chunk in chat(chat_engine(), user("Hi"), seed=1, stream=True, **fields)]
    by_choice = {i: list(of) for i, of in groupby(sorted(chunks, key=lambda c: c["index"]), lambda c: c["index"])}
    for choice in whole:
        pieces = by_choice[choice["index"]]
        message: dict[str, Any] = {"role": "", "content": ""}
        for piece in pieces:
            for name, text in piece["delta"].items():
                message[name] += text
        assert message == {name: choice["message"][name] for name in message}
        assert pieces[-1]["finish_reason"] == choice["finish_reason"]
        logprobs = [entry for piece in pieces if piece["logprobs"] for entry in piece["logprobs"]["content"]]
        assert logprobs == (choice["logprobs"] or {"content": []})["content"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages.0.content"),
        ({"messages": [user([{"type": "image_url", "image_url": {"url": "x"}}])]}, "messages.0.content.0.type"),
        ({"messages": [user("a robot")]}, "messages"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"store": True}, "store"),
        ({"prompt_cache_key": 5}, "prompt_cache_key"),
        ({"safety_identifier": 5}, "safety_identifier"),
        (
            {"stream": True, "stream_options": {"include_obfuscation": True}},
            "stream_options.include_obfuscation",
        ),
        ({"prompt": "Hi"}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_tokens": 1, "max_completion_tokens": 1}, "max_tokens"),
        ({"max_tokens": 127}, "max_tokens"),
        ({"messages": [user("x" * 200)]}, "messages"),
        ({"min_tokens": 120}, "min_tokens"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 99}, "top_logprobs"),
        ({"logprobs": 3}, "logprobs"),
        ({"n": 0}, "n"),
        ({"temperature": 3}, "temperature"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "add_generation_prompt"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    engine = chat_engine()
    with client_of(engine) as client:
        answer = client.post(PATH, json={"model": MODEL, "messages": [user("Hi")], **fields})
    assert answer.status_code == 400, answer.text
    assert error_of(answer.json())["param"] == param
    assert engine.requests == []


def test_values_that_ask_for_nothing_are_accepted() -> None:
    harmless: dict[str, Any] = {
        "tools": [],
        "tool_choice": "none",
        "response_format": {"type": "text"},
        "modalities": ["text"],
        "store": False,
        "service_tier": "auto",
        "metadata": {"a": "b"},
        "parallel_tool_calls": True,
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "stream": True,
        "stream_options": {"include_obfuscation": False},
        "user": "u",
    }
    chat(chat_engine(), user("Hi"), **harmless)


def test_a_model_without_a_template_says_so() -> None:
    engine = fake_engine()
    with client_of(engine) as client:
        answer = client.post(PATH, json={"model": MODEL, "messages": [user("Hi")]})
    assert answer.status_code == 400
    assert "--chat-template" in error_of(answer.json())["message"]


def test_a_template_cannot_reach_the_machine() -> None:
    escape = ChatFormat("{{ messages.__class__.__mro__ }}{{ cycler.__init__.__globals__.os.getcwd() }}", {})
    engine = chat_engine(model=ModelInfo(MODEL, 128, 400, chat=escape))
    error = chat(engine, user("Hi"), status=400)["error"]
    assert "unsafe" in error["message"]


def test_long_conversations_are_read_in_a_thread() -> None:
    engine = chat_engine(model=ModelInfo(MODEL, 20_000, 400, chat=CHAT))
    with client_of(engine, ServerConfig(queue=Queue(inline_encode_chars=10))) as client:
        answer = client.post(PATH, json={"model": MODEL, "messages": [user("x" * 5000)]})
        assert answer.status_code == 200, answer.text
        refused = client.post(
            PATH, json={"model": MODEL, "messages": [user("x" * 50)], "chat_template_kwargs": {"tools": []}}
        )
        assert error_of(refused.json())["param"] == "chat_template_kwargs"


@pytest.mark.parametrize(("asked", "kept"), [(7, 7), (-1, 128 - 20)])
def test_the_last_tokens_of_a_conversation_are_kept(asked: int, kept: int) -> None:
    engine = chat_engine()
    prompt = TOKENIZER.encode(f"!<user>{'x ' * 300}</><assistant>", special=False)
    fields = {"max_tokens": 20, "truncate_prompt_tokens": asked}
    answer = chat(engine, user("x " * 300), **fields)
    assert engine.requests[0].prompt == tuple(prompt[-kept:])
    assert answer["usage"]["prompt_tokens"] == kept


def test_where_a_template_is_found(tmp_path: Path) -> None:
    assert read_chat_format(tmp_path) is None
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"eos_token": "</s>", "bos_token": {"content": "<s>"}, "pad_token": None}))
    assert read_chat_format(tmp_path) is None
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "yes"}, 3, {"name": "x"}]
    config.write_text(json.dumps({"chat_template": named, "bos_token": {"content": "<s>"}}))
    assert read_chat_format(tmp_path) == ChatFormat("yes", {"bos_token": "<s>"}, "tools")
    (tmp_path / "chat_template.jinja").write_text("beside")
    assert read_chat_format(tmp_path) == ChatFormat("beside", {"bos_token": "<s>"}, "tools")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("with tools")
    assert read_chat_format(tmp_path) == ChatFormat("beside", {"bos_token": "<s>"}, "with tools")
    other = tmp_path / "mine"
    other.write_text("mine")
    assert read_chat_format(tmp_path, other) == ChatFormat("mine", {"bos_token": "<s>"})
    with pytest.raises(ConfigError, match="missing"):
        read_chat_format(tmp_path, tmp_path / "missing")
    config.write_text("{")
    with pytest.raises(ConfigError, match=r"tokenizer_config\.json"):
        read_chat_format(tmp_path)
