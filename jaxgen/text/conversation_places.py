"""Find the messages of a conversation that have a form: each function returns the index of the first, or None.

Host only, no jax.
"""

import re
from collections.abc import Callable, Sequence

from jaxgen.text.conversation import Conversation, Message
from jaxgen.text.conversation_rewrites import SHORT_ID, calls_of, num_leading, parse_arguments

type Place = Callable[[Conversation], int | None]
type _Test = Callable[[Sequence[Message], int], object]


def _where(test: _Test) -> Place:
    """Return the place of the messages, by their index, that a test is true of."""

    def place(conversation: Conversation) -> int | None:
        messages = conversation.messages
        return next((i for i in range(len(messages)) if test(messages, i)), None)

    return place


def of_role(role: str) -> Place:
    """Return the place of messages of a role."""
    return _where(lambda messages, i: messages[i]["role"] == role)


def neighbours(role: str) -> Place:
    """Return the place of messages of a role without calls that follow another such message."""

    def test(messages: Sequence[Message], i: int) -> bool:
        return i > 0 and all(message["role"] == role and not calls_of(message) for message in messages[i - 1 : i + 1])

    return _where(test)


def later(role: str) -> Place:
    """Return the place of messages of a role after messages of others."""

    def place(conversation: Conversation) -> int | None:
        messages = conversation.messages
        first = num_leading(messages, role)
        return next((i for i in range(first, len(messages)) if messages[i]["role"] == role), None)

    return place


def several(role: str) -> Place:
    """Return the place of the second of several messages of a role at the beginning."""
    return lambda conversation: 1 if num_leading(conversation.messages, role) > 1 else None


def system_alone(conversation: Conversation) -> int | None:
    """Find the first message where all are system messages."""
    messages = conversation.messages
    return 0 if messages and num_leading(messages, "system") == len(messages) else None


def system_before_last(role: str) -> Place:
    """Return the place of system messages in conversations that end with a message of a role."""

    def place(conversation: Conversation) -> int | None:
        messages = conversation.messages
        return of_role("system")(conversation) if messages and messages[-1]["role"] == role else None

    return place


def system_going_on(conversation: Conversation) -> int | None:
    """Find a continued system or developer message after others."""
    messages = conversation.messages
    last = len(messages) - 1
    return last if conversation.goes_on and last > 0 and messages[last]["role"] in ("system", "developer") else None


def assistant_first(conversation: Conversation) -> int | None:
    """Find a message of the assistant at the beginning, or after the first system messages."""
    messages = conversation.messages
    first = num_leading(messages, "system")
    return first if first < len(messages) and messages[first]["role"] == "assistant" else None


answers = _where(lambda messages, i: messages[i]["role"] == "assistant" and not calls_of(messages[i]))
"""The place of messages of the assistant without calls."""

with_calls = _where(lambda messages, i: calls_of(messages[i]))
"""The place of messages with calls."""

with_text_and_calls = _where(lambda messages, i: calls_of(messages[i]) and messages[i]["content"])
"""The place of messages with text and calls."""

with_several_calls = _where(lambda messages, i: len(calls_of(messages[i])) > 1)
"""The place of messages with several calls."""


def _has_cut_arguments(messages: Sequence[Message], i: int) -> bool:
    return any(parse_arguments(call["function"].get("arguments")) is None for call in calls_of(messages[i]))


with_cut_arguments = _where(_has_cut_arguments)
"""The place of messages with calls whose arguments are not an object."""


def _has_long_id(messages: Sequence[Message], i: int) -> bool:
    ids = [call.get("id") for call in calls_of(messages[i])] + [messages[i].get("tool_call_id")]
    return any(call_id and not SHORT_ID.fullmatch(call_id) for call_id in ids)


with_long_ids = _where(_has_long_id)
"""The place of calls and results with ids that some templates do not take."""


def tools(conversation: Conversation) -> int | None:
    """Return 0 for a conversation with tools."""
    return 0 if conversation.tools else None


def going_on(pattern: str) -> Place:
    """Return the place of the last message if it is continued and matches the pattern, a regular expression."""
    search = re.compile(pattern, re.DOTALL).search

    def place(conversation: Conversation) -> int | None:
        last = len(conversation.messages) - 1
        return last if conversation.goes_on and last >= 0 and search(conversation.messages[last]["content"]) else None

    return place
