"""POST /v1/chat/completions."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from jaxgen.client import EngineClient
from jaxgen.server.api.choices_builder import ChoicesBuilder
from jaxgen.server.api.endpoint import AppState, GeneratingEndpoint
from jaxgen.server.api.response_builder import ResponseBuilder
from jaxgen.server.generation.choice import Choice, ChoiceDelta
from jaxgen.server.generation.logprobs import ChatLogprobs
from jaxgen.server.middleware.context import RequestContext
from jaxgen.server.requests.answers import AnswerReading
from jaxgen.server.requests.grammars import answer_grammar
from jaxgen.server.requests.params import CompletionParams, resolve_chat_params
from jaxgen.server.requests.structured import closes_objects
from jaxgen.server.requests.tools import ToolChoice, only_allowed
from jaxgen.server.resume.ticket import AnswerIdentity
from jaxgen.server.schema.chat import ChatRequest
from jaxgen.server.schema.parsing import parse_body
from jaxgen.server.schema.tools import AllowedToolChoice, NamedToolChoice
from jaxgen.server.tool_calls.deltas import CallStart, Delta, Reasoning, calls_of, reasoning_of


class ChatEndpoint(GeneratingEndpoint[ChatRequest]):
    def parse(self, data: dict[str, Any]) -> ChatRequest:
        return parse_body(ChatRequest, data, self._services.config.limits)

    async def _build_response(
        self, body: ChatRequest, context: RequestContext, identity: AnswerIdentity
    ) -> ResponseBuilder:
        params, reading = await resolve_chat(body, self._services, context.caller)
        return ChatCompletion(self._engine, params, context, identity, reading)


async def resolve_chat(body: ChatRequest, services: AppState, caller: str) -> tuple[CompletionParams, AnswerReading]:
    """Return the parameters of a conversation, and how answers to its prompt are read. Raises ApiError."""
    config = services.config
    params = resolve_chat_params(body, services.engine.model, config.limits, config.service_classes)
    functions = [tool.function for tool in body.tools or ()]
    if isinstance(body.tool_choice, AllowedToolChoice):
        names = [tool.function.name for tool in body.tool_choice.allowed_tools.tools]
        functions = only_allowed(functions, names, "tool_choice.allowed_tools.tools")
    parallel = body.parallel_tool_calls is not False
    answer = await answer_grammar(body, config.answers, caller)
    if answer is not None:
        params = params.with_grammar(answer)
    closed = closes_objects(body, config.answers)
    tools = await services.answers.tools.use(
        functions, _tool_choice(body), parallel=parallel, answer=answer, closed=closed, caller=caller
    )
    shown = () if tools is None else tools.for_template()
    prompt = await services.conversations.read(body, params.least_room, shown, params.keep, caller)
    reading = services.answers.reading(body, prompt, tools)
    if (grammar := reading.grammar(answer)) is not None:
        params = params.with_grammar(grammar)
    return params, reading


def with_format_named(params: CompletionParams, name: str) -> CompletionParams:
    """Return a copy whose errors have the ``name`` of another API's field for ``response_format``."""
    grammar = params.sampling.grammar
    if grammar is None or grammar.source != "response_format":
        return params
    return params.with_grammar(replace(grammar, source=name))


class ChatCompletion(ChoicesBuilder):
    """OpenAI's chat.completion."""

    _chunk_object = "chat.completion.chunk"

    def __init__(
        self,
        engine: EngineClient,
        params: CompletionParams,
        context: RequestContext,
        identity: AnswerIdentity,
        reading: AnswerReading,
    ) -> None:
        super().__init__(
            engine,
            [reading.prompt],
            params,
            context,
            identity,
            prefix="chatcmpl",
            logprobs=ChatLogprobs,
            reading=reading,
        )
        self._begun: set[int] = set()
        self._spoken: set[int] = set()
        """Choices that have streamed content, reasoning or calls."""

    def full_response(self) -> dict[str, Any]:
        choices = []
        for choice in self.choices:
            piece = choice.take_whole()
            message: dict[str, Any] = {"role": "assistant", "content": piece.text, "refusal": None}
            if reasoning := reasoning_of(piece.deltas):
                message |= {"content": piece.text or None, **_reasoning_json(reasoning)}
            if calls := calls_of(piece.deltas):
                message |= {"content": piece.text or None, "tool_calls": calls}
            entry = _choice_json(choice.index, "message", message, piece.logprobs, piece.finish_reason)
            choices.append(entry | self._token_extras(piece) | self._end_extras(choice))
        usage = self._usage().as_json()
        return {**self._head("chat.completion"), "choices": choices, "usage": usage, **self._chunk_extras()}

    def _chunk_extras(self) -> dict[str, Any]:
        tier = {"service_tier": self.params.service.name} if self.params.names_service else {}
        return self._prompt_extras(self.choices[0]) | tier  # all choices have one prompt

    def _pieces(self, choice: Choice, piece: ChoiceDelta) -> Iterator[dict[str, Any]]:
        """Yield the role first, then text and calls, then the finish reason alone, as OpenAI's server does.

        The first content is null where the message may have none: in a message with only calls.
        """
        index = choice.index
        if index not in self._begun:
            self._begun.add(index)
            yield _choice_json(index, "delta", {"role": "assistant", "content": self._first_content(piece)}, None, None)
        extras, logprobs = self._token_extras(piece), piece.logprobs
        deltas = [_delta_json(delta) for delta in piece.deltas]
        if not deltas and (any(extras.values()) or (logprobs is not None and logprobs["content"])):
            deltas = [{}]
        for delta in deltas:
            yield _choice_json(index, "delta", delta, logprobs, None) | extras
            extras, logprobs = {}, None
        if piece.deltas:
            self._spoken.add(index)
        if piece.finish_reason is not None:
            rest = {} if index in self._spoken or not self._may_say_nothing else {"content": ""}
            yield _choice_json(index, "delta", rest, None, piece.finish_reason)

    def _first_content(self, piece: ChoiceDelta) -> str | None:
        return "" if not self._may_say_nothing or (piece.deltas and isinstance(piece.deltas[0], str)) else None

    @property
    def _may_say_nothing(self) -> bool:
        """Whether a message may have reasoning or calls, and no content."""
        reading = self._reading
        return reading is not None and (reading.tools is not None or reading.form.reasoning is not None)


def _tool_choice(body: ChatRequest) -> ToolChoice:
    choice = body.tool_choice
    if isinstance(choice, NamedToolChoice):
        return ToolChoice("required", choice.function.name)
    if isinstance(choice, AllowedToolChoice):
        return ToolChoice(choice.allowed_tools.mode)
    return ToolChoice(choice or "auto")


def _delta_json(delta: Delta) -> dict[str, Any]:
    if isinstance(delta, str):
        return {"content": delta}
    if isinstance(delta, Reasoning):
        return _reasoning_json(delta.text)
    if isinstance(delta, CallStart):
        call = {"id": delta.call_id, "type": "function", "function": {"name": delta.name, "arguments": ""}}
    else:
        call = {"function": {"arguments": delta.text}}
    return {"tool_calls": [{"index": delta.position, **call}]}


def _reasoning_json(text: str) -> dict[str, str]:
    """Return reasoning under the two names that clients read: DeepSeek's, and the one that vLLM has since 2026."""
    return {"reasoning_content": text, "reasoning": text}


def _choice_json(
    index: int, kind: str, content: dict[str, Any], logprobs: dict[str, Any] | None, finish_reason: str | None
) -> dict[str, Any]:
    return {"index": index, kind: content, "logprobs": logprobs, "finish_reason": finish_reason}
