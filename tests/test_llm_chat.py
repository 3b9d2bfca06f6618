"""LLM.chat: conversations in a program, by the same template as the server's."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jaxgen import LLM, SamplingParams
from jaxgen.assembly.load_engine import load_engine
from jaxgen.core.errors import RequestRefusedError
from jaxgen.core.request import FinishReason
from jaxgen.server.app import create_app
from jaxgen.weights.packaged.tiny import make_tiny_checkpoint
from tests.support.live_server import serve

END = 384
"""The token with which ChatML ends a turn; the model's own end of a text is another."""
GREEDY = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
SMALL: dict[str, Any] = {"kernels": "xla", "max_model_len": 512, "token_budget": 32, "max_num_seqs": 4}
SYSTEM, USER = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}
CHATML = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "look", "description": "", "parameters": {"type": "object", "properties": {}}},
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without a template, whose tokenizer has ChatML's tokens."""
    found = tmp_path_factory.mktemp("tiny")
    make_tiny_checkpoint(found, vocab_size=386)
    tokenizer = found / "tokenizer.json"
    text = tokenizer.read_text(encoding="utf-8")
    text = text.replace(f'" word{END}"', '"<|im_end|>"').replace(f'" word{END + 1}"', '"<|im_start|>"')
    tokenizer.write_text(text, encoding="utf-8")
    return found


@pytest.fixture(scope="module")
def llm(directory: Path) -> Iterator[LLM]:
    with LLM(str(directory), chat_template="chatml", single_shape=True, **SMALL) as llm:
        yield llm


def prompt(llm: LLM, text: str) -> list[int]:
    return llm.engine.tokenizer.encode(text, special=False)


def test_a_conversation_is_answered_as_its_text_is(llm: LLM) -> None:
    (answer,) = llm.chat([SYSTEM, USER], GREEDY)
    assert [answer] == llm.generate([prompt(llm, CHATML)], GREEDY)
    parts: dict[str, Any] = {"role": "user", "content": [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]}
    assert llm.chat([SYSTEM, parts], GREEDY) == [answer]


def test_several_conversations_are_answered_at_once(llm: LLM) -> None:
    conversations: list[list[dict[str, Any]]] = [
        [SYSTEM, USER],
        [USER],
        [USER, {"role": "assistant", "content": None}, USER],
    ]
    together = llm.chat(conversations, GREEDY)
    assert [llm.chat(one, GREEDY)[0] for one in conversations] == together
    assert len({answer.text for answer in together}) == 3


def test_the_server_answers_the_same(llm: LLM) -> None:
    from openai import OpenAI

    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"at": "é"}'}}
    messages: Any = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "x", "tool_call_id": "a"},
    ]
    (mine,) = llm.chat(messages, GREEDY, tools=[TOOL])
    with serve(create_app(llm.engine)) as url, OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        theirs = client.chat.completions.create(
            model=llm.engine.model.name,
            messages=messages,
            tools=[TOOL],  # type: ignore[list-item]
            max_tokens=12,
            temperature=0,
            extra_body={"ignore_eos": True},
        )
    assert theirs.choices[0].message.content == mine.text


def test_arguments_reach_the_template(llm: LLM) -> None:
    template = "{{ messages[0].content }}{% if tools %}{{ tools[0].function.name }}{% endif %}{{ mood }}"
    asked: dict[str, Any] = {"chat_template": template, "tools": [TOOL], "chat_template_kwargs": {"mood": "!"}}
    assert llm.chat([USER], GREEDY, **asked) == llm.generate([prompt(llm, "Hilook!")], GREEDY)
    going_on = [USER, {"role": "assistant", "content": "It is"}]
    text = CHATML.replace("system\nBe brief.<|im_end|>\n<|im_start|>", "") + "It is"
    assert llm.chat(going_on, GREEDY, continue_final_message=True) == llm.generate([prompt(llm, text)], GREEDY)


def test_a_turn_ends_with_the_templates_token(llm: LLM) -> None:
    """As with the model's own end of a text: it is no part of the text, unless ends are ignored."""
    forced = SamplingParams(max_tokens=4, temperature=0.0, logit_bias={END: 100.0})
    (answer,) = llm.chat([USER], forced)
    assert (answer.text, answer.tokens, answer.finish_reason) == ("", (END,), FinishReason.STOP)
    assert llm.chat([USER], replace(forced, ignore_eos=True))[0].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("messages", "options", "param"),
    [
        ([], {}, "messages"),
        ([[]], {}, "messages"),
        (["Hi"], {}, "messages.0"),
        ([{"content": "Hi"}], {}, "messages.0"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], {}, "messages.0.content"),
        ([{"role": "user", "content": 3}], {}, "messages.0.content"),
        ([USER], {"chat_template": "chatml"}, "chat_template"),
        ([USER], {"chat_template": "{{ raise_exception('no') }}"}, "messages"),
        ([USER], {"chat_template": "{% if %}"}, "messages"),
        ([USER], {"chat_template": "{{ messages[0].content }}", "tools": [TOOL]}, "tools"),
        ([USER], {"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs"),
        ([USER], {"add_generation_prompt": True, "continue_final_message": True}, "add_generation_prompt"),
    ],
)
def test_what_cannot_be_a_conversation_is_named(llm: LLM, messages: Any, options: Any, param: str) -> None:
    with pytest.raises(RequestRefusedError) as refused:
        llm.chat(messages, GREEDY, **options)
    assert refused.value.param == param


def test_a_model_without_a_template_names_those_there_are(directory: Path) -> None:
    llm = object.__new__(LLM)
    llm.engine = load_engine(str(directory), kernels="xla")
    with pytest.raises(RequestRefusedError, match="chatml, llama3, plain") as refused:
        llm.chat([USER], GREEDY)
    assert refused.value.param == "chat_template"


def test_a_token_that_the_tokenizer_lacks_is_warned_of(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    load_engine(str(directory), kernels="xla", chat_template="chatml")
    assert "no token" not in caplog.text
    load_engine(str(directory), kernels="xla", chat_template="llama3")
    assert "--chat-template llama3: the model's tokenizer has no token <|eot_id|>" in caplog.text
