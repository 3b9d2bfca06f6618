"""The chat templates that ship with jaxgen, and that of the embedded model."""

import json
from typing import Any

import pytest

from jaxgen.core.model_info import ChatFormat
from jaxgen.server.tool_calls.deltas import calls_of, content_of
from jaxgen.server.tool_calls.formats import FORMATS
from jaxgen.server.tool_calls.parser import ToolParser
from jaxgen.server.tool_calls.recognised import TOOL_SIGNS, recognised
from jaxgen.text.chat_template import ChatTemplate
from jaxgen.text.named_templates import TEMPLATE_NAMES, end_of_turn, named_format
from jaxgen.weights.huggingface.chat_template import read_chat_format
from jaxgen.weights.packaged.default_model import DEMO
from tests.support.server_app import SPACED_TOKENIZER, TOKENIZER

NAMES = (*TEMPLATE_NAMES, "the embedded model's")
FORMAT_OF = {"chatml": "hermes", "llama3": "llama3_json", "plain": "hermes", "the embedded model's": "hermes"}
TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "Look é", "parameters": {"type": "object", "properties": {}}},
}
USER = {"role": "user", "content": "What do you see?"}


def format_of(name: str) -> ChatFormat:
    found = named_format(name, TOKENIZER) if name in TEMPLATE_NAMES else read_chat_format(DEMO)
    assert found is not None
    return found


def rendered(name: str, *messages: dict[str, Any], **options: Any) -> str:
    return ChatTemplate(format_of(name)).render(messages, **options)


def called(*arguments: Any, content: str = "") -> dict[str, Any]:
    calls = [{"id": "a", "type": "function", "function": {"name": "look", "arguments": one}} for one in arguments]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def test_how_each_writes_a_conversation() -> None:
    messages = [{"role": "system", "content": "Be brief."}, USER, {"role": "assistant", "content": "Rain."}, USER]
    assert rendered("chatml", *messages) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat do you see?<|im_end|>\n"
        "<|im_start|>assistant\nRain.<|im_end|>\n<|im_start|>user\nWhat do you see?<|im_end|>\n<|im_start|>assistant\n"
    )
    header = "<|start_header_id|>{}<|end_header_id|>\n\n"
    assert rendered("llama3", *messages) == (
        header.format("system") + "Be brief.<|eot_id|>" + header.format("user") + "What do you see?<|eot_id|>"
        f"{header.format('assistant')}Rain.<|eot_id|>{header.format('user')}What do you see?<|eot_id|>"
        + header.format("assistant")
    )
    assert rendered("plain", *messages) == (
        "System:\nBe brief.\n\nUser:\nWhat do you see?\n\nAssistant:\nRain.\n\nUser:\nWhat do you see?\n\nAssistant:\n"
    )
    assert rendered(NAMES[-1], *messages) == (
        "# system: Be brief.\n# user: What do you see?\n# assistant:\nRain.\n# user: What do you see?\n# assistant:\n"
    )


@pytest.mark.parametrize("name", NAMES)
def test_each_shows_every_message_in_its_place(name: str) -> None:
    messages = [
        {"role": "developer", "content": "one é"},
        {"role": "user", "content": "two"},
        called({"a": "three"}, content="so"),
        {"role": "tool", "name": "look", "tool_call_id": "a", "content": "four"},
        {"role": "system", "content": "five"},
        {"role": "assistant", "content": "six"},
    ]
    text = rendered(name, *messages, tools=[TOOL])
    places = [text.index(word) for word in ("one é", "two", "so", "three", "four", "five", "six")]
    assert places == sorted(places)
    assert "Look é" in text
    assert "developer" not in text or name == NAMES[-1]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("as_text", [False, True])
def test_each_writes_calls_as_they_are_read(name: str, as_text: bool) -> None:
    """In the format that the server recognises it by; arguments as objects, or as texts that are none."""
    kind = recognised(format_of(name).template, TOOL_SIGNS)
    assert kind == FORMAT_OF[name]
    arguments: list[Any] = [{"at": "é", "far": True}, {}]
    message = called(*(map(json.dumps, arguments) if as_text else arguments))
    prompt = rendered(name, USER)
    written = rendered(name, USER, message, add_generation_prompt=False).removeprefix(prompt).strip()
    written = written.removesuffix(end_of_turn(name) or "")
    parser = ToolParser(FORMATS[kind], {"look": {}}, None)
    deltas = [*parser.push(written), *parser.finish()]
    assert [json.loads(call["function"]["arguments"]) for call in calls_of(deltas)] == arguments
    assert content_of(deltas) == ""


@pytest.mark.parametrize("name", NAMES)
def test_each_takes_conversations_as_they_are(name: str, caplog: pytest.LogCaptureFixture) -> None:
    template = ChatTemplate(format_of(name))
    assert template.takes_tools
    for found in template.findings().values():
        assert found is not None
        assert found.pop("call") == "with their arguments as objects"
        assert set(found.values()) == {"as it is"}
    caplog.set_level("DEBUG", "jaxgen")
    template.warm_up()
    assert caplog.text == ""
    going_on = [USER, {"role": "assistant", "content": "I see  "}]
    assert template.render(going_on, continue_final_message=True).endswith("I see  ")


@pytest.mark.parametrize("name", TEMPLATE_NAMES)
def test_a_conversation_begins_as_texts_of_the_tokenizer_begin(name: str) -> None:
    added = [SPACED_TOKENIZER.token_text(token) for token in SPACED_TOKENIZER.encode("")]
    text = ChatTemplate(named_format(name, SPACED_TOKENIZER)).render([USER])
    assert (len(added), TOKENIZER.encode("")) == (1, [])
    assert text == added[0] + rendered(name, USER)


@pytest.mark.parametrize("name", NAMES)
def test_a_next_turn_goes_on_from_the_answer(name: str) -> None:
    """So the prefix cache has all of it."""
    answer = {"role": "assistant", "content": "Rain."}
    assert rendered(name, USER, answer, USER).startswith(rendered(name, USER) + "Rain.")
