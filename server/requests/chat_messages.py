"""Turn the messages of a conversation into the dicts that chat templates read."""

from collections.abc import Sequence
from typing import Any

import pydantic_core

from jaxgen.server.errors import bad_request
from jaxgen.server.schema.chat import Message
from jaxgen.server.schema.tools import ToolCall


def for_template(messages: Sequence[Message], *, objects: bool) -> list[dict[str, Any]]:
    """Return the messages for a template: parts of content joined to one text, tool results with the tool's name.

    A message without content has an empty text. ``objects``: arguments of calls are parsed JSON, not text. Raises
    ApiError 400 that names the field of a message that makes no sense in its place.
    """
    called: dict[str, str] = {}
    return [_message(message, f"messages.{i}", called, objects) for i, message in enumerate(messages)]


def _message(message: Message, field: str, called: dict[str, str], objects: bool) -> dict[str, Any]:
    """Return one message. ``called``: function names by call id so far; calls of this message are added."""
    if message.tool_calls and message.role != "assistant":
        raise bad_request(f"{field}.tool_calls: only the assistant calls tools.", f"{field}.tool_calls")
    if message.content is None and not message.tool_calls:
        raise bad_request(f"{field}.content: Field required.", f"{field}.content")
    found: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.name is not None:
        found["name"] = message.name
    if (message.tool_call_id is None) == (message.role == "tool"):
        raise bad_request(
            f"{field}.tool_call_id: a message of a tool, and no other, names the call it answers.",
            f"{field}.tool_call_id",
        )
    if message.tool_call_id is not None:
        if message.tool_call_id not in called:
            raise bad_request(f"{field}.tool_call_id: no call before it has this id.", f"{field}.tool_call_id")
        found = {"name": called[message.tool_call_id], **found, "tool_call_id": message.tool_call_id}
    if message.tool_calls:
        called |= {call.id: call.function.name for call in message.tool_calls}
        found["tool_calls"] = [
            _call(call, f"{field}.tool_calls.{i}.function.arguments", objects)
            for i, call in enumerate(message.tool_calls)
        ]
    return found


def _call(call: ToolCall, field: str, objects: bool) -> dict[str, Any]:
    arguments: Any = call.function.arguments
    if objects:
        arguments = parse_arguments(arguments, field)
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}


def parse_arguments(arguments: str, field: str) -> dict[str, Any]:
    """Parse the JSON text of a call's arguments. Raises ApiError 400 that names ``field``."""
    try:
        found = pydantic_core.from_json(arguments, allow_inf_nan=False)
    except ValueError as error:
        raise bad_request(f"{field}: not valid JSON: {error}.", field) from error
    if not isinstance(found, dict):
        raise bad_request(f"{field}: must be the JSON text of an object.", field)
    return found
