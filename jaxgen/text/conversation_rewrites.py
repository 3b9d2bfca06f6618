"""Rewrite conversations for templates that do not take them as OpenAI writes them. Host only, no jax.

Each function returns a conversation that says the same to the model in another form. Contents are texts until
``content_as_parts`` makes lists of them.
"""

import hashlib
import json
import re
import string
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pydantic_core

from jaxgen.text.conversation import Conversation, Message

_BETWEEN = "\n\n"
"""What stands between messages that are joined to one."""

SHORT_ID = re.compile(r"[a-zA-Z0-9]{9}")
"""The ids of calls that every template takes."""

_DIGITS = string.ascii_letters + string.digits

type Rewrite = Callable[[Conversation], Conversation]


def unchanged(conversation: Conversation) -> Conversation:
    """Return the conversation itself."""
    return conversation


def content_as_parts(role: str) -> Rewrite:
    """Return a rewrite that makes a list with one part of the content of this role's messages."""

    def rewrite(conversation: Conversation) -> Conversation:
        return conversation.having(
            [
                {**message, "content": [{"type": "text", "text": message["content"]}]}
                if message["role"] == role and isinstance(message["content"], str)
                else message
                for message in conversation.messages
            ]
        )

    return rewrite


def joined(role: str) -> Rewrite:
    """Return a rewrite that joins neighbours of this role to one message; messages with calls stay alone."""

    def rewrite(conversation: Conversation) -> Conversation:
        messages: list[Message] = []
        for message in conversation.messages:
            if messages and all(
                neighbour["role"] == role and not neighbour.get("tool_calls") for neighbour in (messages[-1], message)
            ):
                messages[-1] = {**message, **messages[-1], "content": _joined_text(messages[-1], message)}
            else:
                messages.append(message)
        return conversation.having(messages)

    return rewrite


def system_in_user(conversation: Conversation) -> Conversation:
    """Put what system messages say before the text of the next user's message, or into one at the end."""
    messages: list[Message] = []
    waiting: list[Message] = []
    for message in conversation.messages:
        if message["role"] == "system":
            waiting.append(message)
        elif message["role"] == "user" and waiting:
            messages.append({**message, "content": _joined_text(*waiting, message)})
            waiting = []
        else:
            messages.append(message)
    if waiting:
        messages.append({"role": "user", "content": _joined_text(*waiting)})
    return conversation.having(messages)


def as_role(role: str, of: str) -> Rewrite:
    """Return a rewrite that makes messages of one role of all those ``of`` another."""
    return lambda conversation: conversation.having([_as(message, role, of) for message in conversation.messages])


def later_as_role(role: str, of: str) -> Rewrite:
    """Return a rewrite that does so with messages after those of the other role at the beginning."""

    def rewrite(conversation: Conversation) -> Conversation:
        first = num_leading(conversation.messages, of)
        return conversation.having(
            [*conversation.messages[:first], *(_as(message, role, of) for message in conversation.messages[first:])]
        )

    return rewrite


def system_to_front(conversation: Conversation) -> Conversation:
    """Join all system messages to one at the beginning."""
    system = [message for message in conversation.messages if message["role"] == "system"]
    others = [message for message in conversation.messages if message["role"] != "system"]
    return conversation.having([{**system[0], "content": _joined_text(*system)}, *others])


def arguments_as_objects(conversation: Conversation) -> Conversation:
    """Make objects of the arguments of calls; text that is not the JSON of an object, such as cut text, stays text."""

    def rewrite(arguments: Any) -> Any:
        parsed = parse_arguments(arguments)
        return arguments if parsed is None else parsed

    return _with_arguments(conversation, rewrite)


def arguments_as_texts(conversation: Conversation) -> Conversation:
    """Make texts of the arguments of calls; those of a call without any are ``{}``."""

    def rewrite(arguments: Any) -> Any:
        parsed = parse_arguments(arguments)
        return arguments if parsed != {} and isinstance(arguments, str) else json.dumps(parsed, ensure_ascii=False)

    return _with_arguments(conversation, rewrite)


def without_cut_arguments(conversation: Conversation) -> Conversation:
    """Make empty objects of arguments that are not the JSON of an object."""
    return _with_arguments(conversation, lambda arguments: {} if parse_arguments(arguments) is None else arguments)


def calls_as_text(conversation: Conversation) -> Conversation:
    """Write calls into the text of their messages, between tags, as Hermes does."""

    def rewrite(message: Message) -> Message:
        calls = [json.dumps(call["function"], ensure_ascii=False) for call in calls_of(message)]
        written = [f"<tool_call>\n{call}\n</tool_call>" for call in calls]
        result = {**message, "content": "\n".join(filter(None, [message["content"], *written]))}
        del result["tool_calls"]
        return result

    objects = arguments_as_objects(conversation)
    return conversation.having([rewrite(message) if calls_of(message) else message for message in objects.messages])


def text_before_calls(conversation: Conversation) -> Conversation:
    """Make a message of its own, before it, of the text of a message with calls."""
    messages: list[Message] = []
    for message in conversation.messages:
        if message.get("tool_calls") and message["content"]:
            messages.append({"role": message["role"], "content": message["content"]})
            messages.append({**message, "content": ""})
        else:
            messages.append(message)
    return conversation.having(messages)


def without_text_beside_calls(conversation: Conversation) -> Conversation:
    """Leave out the text of messages with calls."""
    return conversation.having(
        [{**message, "content": ""} if message.get("tool_calls") else message for message in conversation.messages]
    )


def one_call_a_message(conversation: Conversation) -> Conversation:
    """Make a message of each call, followed by its result. Other content stays with the first."""
    apart: list[Message] = []
    messages = list(conversation.messages)
    while messages:
        message = messages.pop(0)
        calls = message.get("tool_calls") or ()
        if len(calls) < 2:
            apart.append(message)
            continue
        results = messages[: num_leading(messages, "tool")]
        del messages[: len(results)]
        ids = {call.get("id") for call in calls}
        for i, call in enumerate(calls):
            others = message if i == 0 else {"role": message["role"], "content": ""}
            apart.append({**others, "tool_calls": [call]})
            apart.extend(_take_result(call.get("id"), ids, results))
        apart.extend(results)
    return conversation.having(apart)


def short_ids(conversation: Conversation) -> Conversation:
    """Make ids of nine letters and digits of the ids of calls: a digest of each, so that equal ids stay equal."""

    def rewrite(message: Message) -> Message:
        result = dict(message)
        if message.get("tool_calls"):
            result["tool_calls"] = [
                {**call, "id": _short(call["id"])} if call.get("id") else call for call in calls_of(message)
            ]
        if message.get("tool_call_id"):
            result["tool_call_id"] = _short(message["tool_call_id"])
        return result

    return conversation.having([rewrite(message) for message in conversation.messages])


def last_after_generation_prompt(conversation: Conversation) -> Conversation:
    """Let the template begin the assistant's message, and let the text that it has so far follow as it is."""
    *earlier, last = conversation.messages
    return replace(conversation, messages=tuple(earlier), begins=True, goes_on=False, tail=last["content"])


def parse_arguments(arguments: Any) -> dict[str, Any] | None:
    """Return the object that the arguments of a call are, or whose JSON they are; an empty one for no text or null.

    None if they are not an object.
    """
    if isinstance(arguments, dict):
        return arguments
    if arguments is None or (isinstance(arguments, str) and arguments.strip() in ("", "null")):
        return {}
    try:
        parsed = pydantic_core.from_json(arguments, allow_inf_nan=False)
    except (TypeError, ValueError):
        return None
    return parsed if isinstance(parsed, dict) else None


def calls_of(message: Message) -> Sequence[Message]:
    """Return the calls of a message."""
    calls: Sequence[Message] = message.get("tool_calls") or ()
    return calls


def num_leading(messages: Sequence[Message], role: str) -> int:
    """Return how many messages of this role come first."""
    return next((i for i, message in enumerate(messages) if message["role"] != role), len(messages))


def _joined_text(*messages: Message) -> str:
    return _BETWEEN.join(message["content"] for message in messages if message["content"])


def _as(message: Message, role: str, of: str) -> Message:
    return {**message, "role": role} if message["role"] == of else message


def _with_arguments(conversation: Conversation, rewrite: Callable[[Any], Any]) -> Conversation:
    def changed(call: Message) -> Message:
        function = call["function"]
        return {**call, "function": {**function, "arguments": rewrite(function.get("arguments"))}}

    return conversation.having(
        [
            {**message, "tool_calls": [changed(call) for call in calls_of(message)]}
            if message.get("tool_calls")
            else message
            for message in conversation.messages
        ]
    )


def _take_result(call_id: str | None, of_calls: set[str | None], results: list[Message]) -> list[Message]:
    """Remove the result of a call from ``results``, and return it in a list.

    That is the result with its id, or else the first of no call.
    """
    ids = [result.get("tool_call_id") for result in results]
    places = [i for i, of in enumerate(ids) if of == call_id] or [i for i, of in enumerate(ids) if of not in of_calls]
    return [results.pop(places[0])] if places else []


def _short(call_id: str) -> str:
    if SHORT_ID.fullmatch(call_id):
        return call_id
    number = int.from_bytes(hashlib.sha256(call_id.encode(errors="surrogatepass")).digest())
    digits = []
    for _ in range(9):
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return "".join(digits)
