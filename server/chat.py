"""POST /v1/chat/completions."""

from collections.abc import Iterator
from typing import Any

from jaxgen.request import EngineClient
from server.answer import Answer
from server.chat_schema import ChatRequest
from server.choice import Choice
from server.endpoint import GeneratingEndpoint
from server.logprobs import ChatLogprobs
from server.params import CompletionParams, most_tokens, resolve_chat_params
from server.prompts import Prompt
from server.schema import parse_body


class ChatEndpoint(GeneratingEndpoint[ChatRequest]):
    def _parse(self, data: dict[str, Any]) -> ChatRequest:
        body = parse_body(ChatRequest, data, self._services.config)
        body.refuse_what_is_missing()
        return body

    async def _answer(self, body: ChatRequest) -> Answer:
        params = resolve_chat_params(body, self._engine.model, self._services.config)
        prompt = await self._services.conversations.read(body, most_tokens(body) or 1)
        room = self._engine.model.max_model_len - len(prompt.tokens)
        return ChatCompletion(self._engine, prompt, params.within(room))


class ChatCompletion(Answer):
    """OpenAI's chat.completion."""

    _chunk_object = "chat.completion.chunk"

    def __init__(self, engine: EngineClient, prompt: Prompt, params: CompletionParams) -> None:
        super().__init__(engine, [prompt], params, prefix="chatcmpl", logprobs=ChatLogprobs)
        self._begun: set[int] = set()

    def whole(self) -> dict[str, Any]:
        choices = []
        for choice in self.choices:
            piece = choice.take()
            message = {"role": "assistant", "content": piece.text, "refusal": None}
            made = _choice_json(choice.index, "message", message, piece.logprobs, piece.finish_reason)
            choices.append(made | self._token_extras(piece) | self._end_extras(choice))
        usage = self._usage().as_json()
        return {**self._head("chat.completion"), "choices": choices, "usage": usage, **self._chunk_extras()}

    def _chunk_extras(self) -> dict[str, Any]:
        return self._prompt_extras(self.choices[0])  # all have one prompt

    def _pieces(self, choice: Choice) -> Iterator[dict[str, Any]]:
        """The role first, then text, then the reason of the end with nothing else, as OpenAI's own server has it."""
        index, piece = choice.index, choice.take()
        if index not in self._begun:
            self._begun.add(index)
            yield _choice_json(index, "delta", {"role": "assistant", "content": ""}, None, None)
        extras = self._token_extras(piece)
        if piece.text or any(extras.values()) or (piece.logprobs is not None and piece.logprobs["content"]):
            yield _choice_json(index, "delta", {"content": piece.text}, piece.logprobs, None) | extras
        if piece.finish_reason is not None:
            yield _choice_json(index, "delta", {}, None, piece.finish_reason)


def _choice_json(
    index: int, kind: str, content: dict[str, Any], logprobs: dict[str, Any] | None, finish_reason: str | None
) -> dict[str, Any]:
    return {"index": index, kind: content, "logprobs": logprobs, "finish_reason": finish_reason}
