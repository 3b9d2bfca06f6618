"""Convert a request to /v1/messages to a request for a chat completion."""

import json
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from jaxgen.core.errors import ContextLengthError
from jaxgen.server.errors import ApiError, bad_request
from jaxgen.server.requests.chat_template import EFFORT
from jaxgen.server.requests.service_tier import AUTO
from jaxgen.server.requests.tools import say_dropped
from jaxgen.server.schema.base import JsonSchema, ResponseFormat, SharedFields
from jaxgen.server.schema.blocks import (
    Block,
    InputMessage,
    ResultContent,
    TextBlock,
    TextContent,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from jaxgen.server.schema.chat import ChatRequest, Message
from jaxgen.server.schema.messages import CustomTool, MessagesRequest, PromptFields, Thinking
from jaxgen.server.schema.tools import (
    CalledFunction,
    FunctionChoice,
    FunctionDefinition,
    FunctionTool,
    NamedToolChoice,
    ToolCall,
    ToolMode,
)

FORMAT = "output_config.format"
THINKING_SWITCHES = ("enable_thinking", "thinking")
"""Arguments by which chat templates let a model think, or not; a template that has no such argument ignores it."""
_NO_PROMPT = "x-anthropic-billing-header:"
"""How a block begins that Claude Code puts before its system prompt for the provider's books. It differs from one
conversation to the next: as a part of the prompt it would keep every prefix from being found again."""
_NAMES = {"messages": "messages", "response_format": FORMAT, "stop": "stop_sequences"}
"""Fields by their names in a request for a chat completion."""
_MODES: dict[str, ToolMode] = {"auto": "auto", "any": "required", "none": "none"}


def as_chat(body: PromptFields, most: int) -> ChatRequest:
    """Return the same request to /v1/chat/completions, without ``max_tokens``. Raises ApiError 400 for bad input, and
    for more than ``most`` messages: each tool_result is one."""
    fields = {name: getattr(body, name, None) for name in SharedFields.model_fields}
    if isinstance(body, MessagesRequest):
        tier = body.service_tier
        fields |= {"stop": body.stop_sequences, "service_tier": AUTO if tier == "standard_only" else tier}
    choice = body.tool_choice
    goes_on = _goes_on(body.messages or ())
    messages = [*_system(body.system), *islice(_messages(body.messages or ()), most + 1)]
    if len(messages) > most:
        raise bad_request(
            f"messages: with each tool_result as one there are more than {most}; this server takes {most} "
            "(--max-messages).",
            "messages",
        )
    return ChatRequest(
        messages=messages,
        tools=_tools(body),
        tool_choice=_tool_choice(body),
        parallel_tool_calls=not (choice is not None and choice.disable_parallel_tool_use),
        response_format=_response_format(body),
        chat_template_kwargs=_template_arguments(body) or None,
        include_reasoning=_shows_thinking(body.thinking),
        continue_final_message=goes_on,
        add_generation_prompt=not goes_on,
        **fields,
    )


def renamed(error: ApiError) -> ApiError:
    """Return an error of the chat request with the field names and, for a prompt that is too long, the words of
    /v1/messages, by which agents shorten a conversation."""
    name, _, rest = (error.param or "").partition(".")
    param = _NAMES.get(name, error.param)
    message, cause = error.message, error.__cause__
    if isinstance(cause, ContextLengthError):
        least = "at least " if cause.at_least else ""
        message = f"prompt is too long: {least}{cause.num_prompt} tokens > {cause.max_model_len} maximum"
    elif name == "messages" and rest:
        message = message.replace(f"messages.{rest}", "messages")
    message = re.sub(r"\bresponse_format\b", FORMAT, message)
    message = re.sub(r"^stop\b", "stop_sequences", message)
    if param == "stop_sequences" and rest:
        param = f"{param}.{rest}"
    return ApiError(error.status, message, param=param, code=error.code, headers=error.headers)


def _system(content: TextContent | None) -> list[Message]:
    blocks = [content] if isinstance(content, str) else [block.text for block in content or ()]
    texts = [text for text in blocks if not text.startswith(_NO_PROMPT)]
    return [Message(role="system", content="\n".join(texts))] if texts else []


def _goes_on(messages: Iterable[InputMessage]) -> bool:
    """Whether the answer continues the last message. Raises ApiError 400 where that calls a tool."""
    *_, last = [None, *messages]
    if last is None or last.role != "assistant":
        return False
    if any(isinstance(block, ToolUseBlock) for block in last.blocks):
        raise bad_request(
            "messages: the last one has a tool_use block, and no tool_result block comes after it.", "messages"
        )
    return True


def _messages(messages: Iterable[InputMessage]) -> Iterator[Message]:
    called: set[str] = set()
    for i, message in enumerate(messages):
        _check_roles(message, f"messages.{i}")
        blocks = message.blocks
        if message.role == "assistant":
            calls = [block for block in blocks if isinstance(block, ToolUseBlock)]
            called |= {call.id for call in calls}
            yield _answer(blocks, calls)
            continue
        results = [(j, block) for j, block in enumerate(blocks) if isinstance(block, ToolResultBlock)]
        for j, result in results:
            if result.tool_use_id not in called:
                field = f"messages.{i}.content.{j}.tool_use_id"
                raise bad_request(f"{field}: no tool_use block before it has this id.", field)
            yield Message(role="tool", content=_result_text(result), tool_call_id=result.tool_use_id)
        texts = [block.text for block in blocks if isinstance(block, TextBlock)]
        if texts or not results:
            yield Message(role=message.role, content="\n".join(texts))


def _check_roles(message: InputMessage, field: str) -> None:
    """Raise ApiError 400 for a block that the role of its message never has."""
    others = {ToolUseBlock: "assistant", ThinkingBlock: "assistant", ToolResultBlock: "user"}
    for j, block in enumerate(message.blocks):
        role = others.get(type(block), message.role)
        if role != message.role:
            name = f"{field}.content.{j}"
            raise bad_request(f"{name}: only messages of the role {role} have a {block.type} block.", name)


def _answer(blocks: Iterable[Block], calls: list[ToolUseBlock]) -> Message:
    """Return an earlier answer. Its texts are pieces of one, as the model wrote it."""
    thought = "".join(block.thinking for block in blocks if isinstance(block, ThinkingBlock))
    return Message(
        role="assistant",
        content="".join(block.text for block in blocks if isinstance(block, TextBlock)),
        reasoning_content=thought or None,
        tool_calls=[_call(call) for call in calls] or None,
    )


def _call(block: ToolUseBlock) -> ToolCall:
    arguments = json.dumps(block.input, ensure_ascii=False)
    return ToolCall(id=block.id, type="function", function=CalledFunction(name=block.name, arguments=arguments))


def _result_text(block: ToolResultBlock) -> str:
    """Return what the model reads of a result. No chat template has a place for its failure, so the text says it."""
    text = _joined(block.content)
    return f"Error: {text}" if block.is_error else text


def _joined(content: ResultContent | None) -> str:
    return content if isinstance(content, str) else "\n".join(block.text for block in content or ())


def _tools(body: PromptFields) -> list[FunctionTool]:
    result = []
    for tool in body.tools or ():
        if isinstance(tool, CustomTool):
            function = FunctionDefinition(name=tool.name, description=tool.description, parameters=tool.input_schema)
            result.append(FunctionTool(type="function", function=function))
        else:
            say_dropped(tool.type[:100])
    return result


def _tool_choice(body: PromptFields) -> ToolMode | NamedToolChoice | None:
    choice = body.tool_choice
    if choice is None:
        return None
    if choice.type != "tool":
        return _MODES[choice.type]
    if choice.name is None:
        raise bad_request("tool_choice.name: Field required.", "tool_choice.name")
    return NamedToolChoice(type="function", function=FunctionChoice(name=choice.name))


def _response_format(body: PromptFields) -> ResponseFormat | None:
    asked = None if body.output_config is None else body.output_config.format
    if asked is None:
        return None
    return ResponseFormat(type="json_schema", json_schema=JsonSchema(schema=asked.schema_))


def _template_arguments(body: PromptFields) -> dict[str, Any]:
    """Return the arguments of the chat template. Those of the caller's ``chat_template_kwargs`` count."""
    arguments: dict[str, Any] = {}
    if body.thinking is not None:
        arguments |= dict.fromkeys(THINKING_SWITCHES, body.thinking.type != "disabled")
    if body.output_config is not None and body.output_config.effort is not None:
        arguments[EFFORT] = body.output_config.effort
    return arguments | (body.chat_template_kwargs or {})


def _shows_thinking(thinking: Thinking | None) -> bool:
    return thinking is None or (thinking.type != "disabled" and thinking.display != "omitted")
