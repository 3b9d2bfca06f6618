"""Convert a request to /v1/responses to a request for a chat completion."""

import re

from jaxgen.server.errors import ApiError, bad_request
from jaxgen.server.requests.tools import only_allowed, say_dropped
from jaxgen.server.responses.items import RequestItems
from jaxgen.server.schema.base import JsonSchema, OpenAIFields, ResponseFormat
from jaxgen.server.schema.chat import ChatRequest, Message
from jaxgen.server.schema.items import FunctionCallItem, FunctionCallOutputItem, MessageItem, text_of
from jaxgen.server.schema.responses import AllowedTools, ConversationFields, NamedFunction, OtherTool, ResponsesRequest
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
    "reasoning_effort": "reasoning.effort",
    "response_format": FORMAT,
}
_SAME = {"chat_template_kwargs", "parallel_tool_calls", *OpenAIFields.model_fields} - {"resume", "return_event_ids"}
"""Fields that mean the same in both requests."""


def as_chat(body: ConversationFields, asked: RequestItems) -> ChatRequest:
    """Return the same request to /v1/chat/completions. Raises ApiError 400 for invalid input."""
    messages = [] if body.instructions is None else [Message(role="system", content=body.instructions)]
    choice, functions = _tools(body)
    fields = {name: getattr(body, name, None) for name in _SAME}
    if isinstance(body, ResponsesRequest):
        fields["max_completion_tokens"] = body.max_output_tokens
        if body.wants_logprobs:
            fields |= {"logprobs": True, "top_logprobs": body.top_logprobs}
    fields["reasoning_effort"] = None if body.reasoning is None else body.reasoning.effort
    return ChatRequest(
        messages=messages + _messages(asked),
        tools=functions,
        tool_choice=choice,
        response_format=_response_format(body),
        **fields,
    )


def _tools(body: ConversationFields) -> tuple[ToolMode | NamedToolChoice | None, list[FunctionTool]]:
    for tool in body.tools or ():
        if isinstance(tool, OtherTool):
            say_dropped(tool.type[:100])
    choice = body.tool_choice
    defined = [FunctionDefinition(**function.model_dump(exclude={"type"})) for function in body.functions]
    if isinstance(choice, AllowedTools):
        names = (tool.name for tool in choice.tools if tool.type == "function")
        defined = only_allowed(defined, names, "tool_choice.tools")
        choice = choice.mode
    tools = [FunctionTool(type="function", function=function) for function in defined]
    if isinstance(choice, NamedFunction):
        return NamedToolChoice(type="function", function=FunctionChoice(name=choice.name)), tools
    return choice if isinstance(choice, str) else None, tools


def _response_format(body: ConversationFields) -> ResponseFormat | None:
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
    message = re.sub(r"\breasoning_effort\b", "reasoning.effort", message)
    return ApiError(error.status, message, param=_NAMES.get(name, error.param), code=error.code, headers=error.headers)


def _messages(asked: RequestItems) -> list[Message]:
    """Return the messages of the items. Calls join the assistant's message before them, or one without content."""
    messages: list[Message] = []
    calls: dict[int, list[ToolCall]] = {}  # by the message that they belong to
    called: set[str] = set()
    fields = [*("previous_response_id" for _ in asked.earlier), *asked.fields]
    for item, field in zip([*asked.earlier, *asked.own], fields, strict=True):
        match item:
            case MessageItem():
                messages.append(Message(role=item.role, content=text_of(item.content)))
            case FunctionCallItem():
                called.add(item.call_id)
                if not messages or messages[-1].role != "assistant":
                    messages.append(Message(role="assistant"))
                calls.setdefault(len(messages) - 1, []).append(_call(item))
            case FunctionCallOutputItem():
                if item.call_id not in called:
                    raise bad_request(f"{field}.call_id: no call before it has this id.", f"{field}.call_id")
                messages.append(Message(role="tool", content=text_of(item.output), tool_call_id=item.call_id))
    for i, made in calls.items():
        messages[i] = messages[i].model_copy(update={"tool_calls": made})
    return messages


def _call(item: FunctionCallItem) -> ToolCall:
    function = CalledFunction(name=item.name, arguments=item.arguments)
    return ToolCall(id=item.call_id, type="function", function=function)
