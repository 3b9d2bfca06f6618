"""Turn the messages of a conversation into the dicts that chat templates read."""

from collections.abc import Sequence
from typing import Any

from jaxgen.server.errors import bad_request
from jaxgen.server.schema.chat import Message
from jaxgen.server.schema.tools import ToolCall


def for_template(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return the messages for a template: parts of content joined to one text, tool results with the tool's name, what
    was thought under the names that templates have for it.

    A message without content has an empty text. Raises ApiError 400 that names the field of a message that makes no
    sense in its place.
    """
    calls = _Calls()
    return [_message(message, f"messages.{i}", calls) for i, message in enumerate(messages)]


class _Calls:
    """The calls of a conversation so far."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._num = 0
        self._open: list[tuple[str, str]] = []
        """Ids and names of functions of those of the last calls that have no result yet."""

    def make(self, calls: Sequence[ToolCall]) -> list[str]:
        """Add the calls of a message, and return their ids; a call without one is given one."""
        # Nine letters and digits: some templates take no other ids.
        ids = [call.id or f"call{self._num + i:05}" for i, call in enumerate(calls)]
        self._num += len(calls)
        self._open = [(made, call.function.name) for made, call in zip(ids, calls, strict=True)]
        self._names |= self._open
        return ids

    def answered_by(self, message: Message) -> tuple[str | None, str | None]:
        """Return the id and the function's name of the call whose result the message is; None: not known.

        It is the call of its id, or of its name if it is of the role ``function``. Where no call has that id, which
        others may have rewritten, the first one without a result is meant.
        """
        call_id = message.tool_call_id
        answered: tuple[str | None, str | None]
        if message.role == "function":
            answered = next((call for call in self._open if call[1] == message.name), (None, message.name))
        elif call_id is not None and call_id in self._names:
            answered = next((call for call in self._open if call[0] == call_id), (call_id, self._names[call_id]))
        else:
            answered = self._open[0] if self._open else (call_id, None)
        self._open = [call for call in self._open if call is not answered]
        return answered


def _message(message: Message, field: str, calls: _Calls) -> dict[str, Any]:
    _check(message, field)
    result: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.name:
        result["name"] = message.name
    if message.role in ("tool", "function"):
        call_id, name = calls.answered_by(message)
        result["role"] = "tool"
        if name is not None:
            result.setdefault("name", name)
        if call_id is not None:
            result["tool_call_id"] = call_id
    if message.thought:
        # The templates of gpt-oss name it thinking, and refuse it together with content.
        result |= {"reasoning_content": message.thought, "thinking": "" if message.text else message.thought}
    if message.calls:
        ids = calls.make(message.calls)
        result["tool_calls"] = [_call(call, made) for call, made in zip(message.calls, ids, strict=True)]
    return result


def _check(message: Message, field: str) -> None:
    """Raise ApiError 400 for a message that says nothing where it must, or has what its role never has."""
    if message.calls and message.role != "assistant":
        name = "tool_calls" if message.tool_calls else "function_call"
        raise bad_request(f"{field}.{name}: only the assistant calls tools.", f"{field}.{name}")
    if message.content is None and message.role in ("developer", "system", "user"):
        raise bad_request(f"{field}.content: Field required.", f"{field}.content")
    if message.audio is not None and not message.text and not message.calls:
        raise bad_request(
            f"{field}.audio: audio is not supported. Send the transcript as content.",
            f"{field}.audio",
        )


def _call(call: ToolCall, call_id: str) -> dict[str, Any]:
    function = {"name": call.function.name, "arguments": call.function.arguments or ""}
    return {"id": call_id, "type": "function", "function": function}
