"""Describe a conversation on its way to a chat template. Host only, no jax."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

type Message = Mapping[str, Any]
"""A message in OpenAI's shape: role, content, tool_calls, tool_call_id, and what else a template may read."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages, and the other input of a template.

    ``tools``: shown to the model. ``begins``: the text ends where the assistant's next message begins. ``goes_on``: it
    ends within the last message. ``tail``: a text that follows what the template writes.
    """

    messages: tuple[Message, ...]
    tools: tuple[Message, ...] = ()
    begins: bool = False
    goes_on: bool = False
    tail: str = ""

    def having(self, messages: Sequence[Message]) -> "Conversation":
        """Return the same with other messages."""
        return replace(self, messages=tuple(messages))


def with_tail(text: str, tail: str) -> str:
    """Return a text and its tail, joined so that a mark with which one ends and the other begins is there once.

    Templates write ``<think>`` where a message begins, and a message that is continued may begin with it as well.
    """
    for head in (text, text.rstrip()):
        for length in range(min(len(head), len(tail)), 0, -1):
            if tail[:length].strip() and head.endswith(tail[:length]):
                return head + tail[length:]
    return text + tail
