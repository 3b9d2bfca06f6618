"""Conversations are written otherwise for templates that do not take them as they are."""

import pytest

from jaxgen.text.conversation import Conversation, Message
from jaxgen.text.conversation_rewrites import one_call_a_message


def call(call_id: str) -> Message:
    return {"id": call_id, "type": "function", "function": {"name": "f", "arguments": "{}"}}


def result(content: str, call_id: str | None) -> Message:
    return {"role": "tool", "content": content, "tool_call_id": call_id}


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ([("of 2", "c2"), ("of 1", "c1")], ["of 1", "of 2"]),
        ([("stray", "other"), ("of 1", "c1"), ("of 2", "c2")], ["of 1", "of 2", "stray"]),
        ([("of 2", "c2"), ("stray", "other"), ("of 1", "c1")], ["of 1", "of 2", "stray"]),
        ([("unnamed", None), ("of 2", "c2")], ["unnamed", "of 2"]),
    ],
)
def test_each_call_gets_its_own_result_or_one_that_is_of_no_call(
    results: list[tuple[str, str | None]], expected: list[str]
) -> None:
    calls = {"role": "assistant", "content": "", "tool_calls": [call("c1"), call("c2")]}
    given = Conversation(({"role": "user", "content": "u"}, calls, *[result(*one) for one in results]))
    first, second = calls["tool_calls"]
    found = one_call_a_message(given).messages[1:]
    assert [message["tool_calls"] for message in found if message["role"] == "assistant"] == [[first], [second]]
    assert [message["content"] for message in found if message["role"] == "tool"] == expected
    assert [message["role"] for message in found][:4] == ["assistant", "tool", "assistant", "tool"]
