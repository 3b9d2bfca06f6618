"""Turn messages as dicts in OpenAI's shape into the dicts that chat templates read. Host only, no jax."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jaxgen.core.errors import RequestRefusedError

type Message = Mapping[str, Any]


def for_template(messages: Sequence[Message], *, objects: bool) -> list[dict[str, Any]]:
    """Return the messages with content as one text, and what else they have.

    ``objects``: the JSON of calls' arguments is parsed where it is that of an object. Raises RequestRefusedError for
    content that is no text.
    """
    return [_message(message, f"messages.{i}", objects) for i, message in enumerate(messages)]


def _message(message: Message, field: str, objects: bool) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise RequestRefusedError(f"{field}: must be a dict with role and content", field)
    found = {**message, "content": _text(message.get("content"), f"{field}.content")}
    if calls := message.get("tool_calls"):
        found["tool_calls"] = [_call(call) if objects else call for call in calls]
    return found


def _text(content: Any, field: str) -> str:
    parts = content if isinstance(content, list) else [{"type": "text", "text": "" if content is None else content}]
    texts = [part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise RequestRefusedError(f"{field}: must be a text, or a list of parts of type text", field)
    return "".join(map(str, texts))


def _call(call: Message) -> dict[str, Any]:
    function = dict(call["function"])
    try:
        parsed = json.loads(function["arguments"])
    except (TypeError, ValueError):  # an object already, or a text that is none
        return dict(call)
    return {**call, "function": {**function, "arguments": parsed}} if isinstance(parsed, dict) else dict(call)
