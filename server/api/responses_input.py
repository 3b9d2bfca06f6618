"""Convert a request to /v1/responses to a request for a chat completion."""

import re
from collections.abc import Sequence

from jaxgen.server.errors import ApiError, bad_request
from jaxgen.server.schema.base import JsonSchema, ResponseFormat
from jaxgen.server.schema.chat import ChatRequest, Message
from jaxgen.server.schema.responses import (
    FunctionCallItem,
    FunctionCallOutputItem,
    Item,
    ItemContent,
    MessageItem,
    NamedFunction,
    ResponsesRequest,
)
from jaxgen.server.schema.tools import (
    CalledFunction,
    FunctionChoice,
    FunctionDefinition,
    FunctionTool,
    NamedToolChoice,
    ToolCall,
    ToolMode,
)

FORMAT = "text.format"
_NAMES = {
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "response_format": FORMAT,
}


def as_chat(body: ResponsesRequest) -> ChatRequest:
    """Return the same request to /v1/chat/completions. Raises ApiError 400 for invalid input."""
    if not body.input:
        raise bad_request("input is missing: send a text or a list of items.", "input")
    messages = [] if body.instructions is None else [Message(role="system", content=body.instructions)]
    if isinstance(body.input, str):
        messages.append(Message(role="user", content=body.input))
    else:
        messages += _messages(body.input)
    return ChatRequest(
        model=body.model,
        messages=messages,
        tools=[
            FunctionTool(type="function", function=FunctionDefinition(**tool.model_dump(exclude={"type"})))
            for tool in body.tools or ()
        ],
        tool_choice=_tool_choice(body),
        response_format=_response_format(body),
        parallel_tool_calls=body.parallel_tool_calls,
        max_completion_tokens=body.max_output_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        stream=body.stream,
        cache_salt=body.cache_salt,
        service_tier=body.service_tier,
        return_latency=body.return_latency,
    )


def _tool_choice(body: ResponsesRequest) -> ToolMode | NamedToolChoice | None:
    choice = body.tool_choice
    if isinstance(choice, NamedFunction):
        return NamedToolChoice(type="function", function=FunctionChoice(name=choice.name))
    return choice


def _response_format(body: ResponsesRequest) -> ResponseFormat | None:
    asked = None if body.text is None else body.text.format
    if asked is None:
        return None
    schema = asked.model_dump(by_alias=True, exclude={"type"}, exclude_none=True)
    return ResponseFormat(type=asked.type, json_schema=JsonSchema(**schema) if schema else None)


def renamed(error: ApiError) -> ApiError:
    """Return an error of the chat request with the field names of /v1/responses."""
    name = (error.param or "").partition(".")[0]
    message = error.message.replace(error.param, "input") if error.param and name == "messages" else error.message
    message = re.sub(r"\b(the|your) messages\b", r"\1 input", message)
    message = re.sub(r"\bmax_(completion_)?tokens\b", "max_output_tokens", message)
    message = re.sub(r"\bresponse_format\b", FORMAT, message)
    return ApiError(error.status, message, param=_NAMES.get(name, error.param), code=error.code, headers=error.headers)


def _messages(items: Sequence[Item]) -> list[Message]:
    """Return the messages of the items. Calls join the assistant's message before them, or one without content."""
    messages: list[Message] = []
    calls: dict[int, list[ToolCall]] = {}  # by the message that they belong to
    called: set[str] = set()
    for i, item in enumerate(items):
        match item:
            case MessageItem():
                messages.append(Message(role=item.role, content=_text(item.content)))
            case FunctionCallItem():
                called.add(item.call_id)
                if not messages or messages[-1].role != "assistant":
                    messages.append(Message(role="assistant"))
                calls.setdefault(len(messages) - 1, []).append(_call(item))
            case FunctionCallOutputItem():
                if item.call_id not in called:
                    raise bad_request(f"input.{i}.call_id: no call before it has this id.", f"input.{i}.call_id")
                messages.append(Message(role="tool", content=_text(item.output), tool_call_id=item.call_id))
    for i, made in calls.items():
        messages[i] = messages[i].model_copy(update={"tool_calls": made})
    return messages


def _call(item: FunctionCallItem) -> ToolCall:
    function = CalledFunction(name=item.name, arguments=item.arguments)
    return ToolCall(id=item.call_id, type="function", function=function)


def _text(content: ItemContent) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)
