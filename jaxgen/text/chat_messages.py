"""Turn messages as dicts in OpenAI's shape into the dicts that chat templates read. Host only, no jax."""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxgen.core.errors import RequestRefusedError
from jaxgen.text.conversation import Message


def for_template(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return the messages with content as one text, and what else they have.

    Raises RequestRefusedError for an invalid message, and for content other than text.
    """
    return [_message(message, f"messages.{i}") for i, message in enumerate(messages)]


def _message(message: Message, field: str) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise RequestRefusedError(f"{field}: must be a dict with role and content", field)
    return {**message, "content": _text(message.get("content"), f"{field}.content")}


def _text(content: Any, field: str) -> str:
    parts = content if isinstance(content, list) else [{"type": "text", "text": "" if content is None else content}]
    texts = [part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise RequestRefusedError(f"{field}: must be a text, or a list of parts of type text", field)
    return "".join(map(str, texts))
