"""POST /v1/completions/render and /v1/chat/completions/render: what a request would be to the engine (as vLLM)."""

from dataclasses import fields, replace
from typing import Any

from jaxgen.core.sampling_params import SamplingParams
from jaxgen.server.api.endpoint import AppState
from jaxgen.server.api.response_builder import ResponseBuilder
from jaxgen.server.generation.choice import Choice
from jaxgen.server.preview.endpoint import PreviewEndpoint
from jaxgen.server.requests.params import CompletionParams
from jaxgen.server.schema.base import SamplingFields

_ELSEWHERE = {"grammar", "truncate_prompt_tokens"}
"""Parameters that vLLM has by another name, or that say nothing of a prompt that is rendered."""
_SAME = [field.name for field in fields(SamplingParams) if field.name not in _ELSEWHERE]


class RenderEndpoint(PreviewEndpoint):
    """Answers with vLLM's GenerateRequest of a conversation, or with one for each prompt; ``text`` is jaxgen's own."""

    def __init__(self, services: AppState, *, chat: bool) -> None:
        super().__init__(services)
        self._is_chat = chat

    def parse(self, data: dict[str, Any]) -> SamplingFields:
        return self._chat.parse(data) if self._is_chat else self._completions.parse(data)

    async def _preview(self, builder: ResponseBuilder) -> Any:
        rendered = [await self._render(choice, builder.params) for choice in builder.choices[:: builder.params.best_of]]
        return rendered[0] if self._is_chat else rendered

    async def _render(self, choice: Choice, params: CompletionParams) -> dict[str, Any]:
        """Return the request of a prompt's first choice; its seed is the caller's, and no other is told."""
        request = choice.request
        usage = {"include_usage": params.include_usage, "continuous_usage_stats": params.continuous_usage}
        tokens = [*request.prompt, *request.answer]
        decode = self._engine.tokenizer.decode
        return {
            "request_id": request.request_id,
            "token_ids": tokens,
            "text": await self._services.prompts.work(lambda: decode(tokens), len(tokens)),
            "features": None,
            "sampling_params": {"n": params.n, **_sampling(replace(request.params, seed=params.sampling.seed))},
            "model": self._engine.model.name,
            "stream": params.stream,
            "stream_options": usage if any(usage.values()) else None,
            "cache_salt": request.cache_salt,
            "priority": request.priority,
            "kv_transfer_params": None,
        }


def _sampling(params: SamplingParams) -> dict[str, Any]:
    """Return the parameters by vLLM's names, with their defaults resolved."""
    result = {name: getattr(params, name) for name in _SAME}
    result["logit_bias"] = {str(token): bias for token, bias in params.logit_bias.items()} or None
    result["structured_outputs"] = None if params.grammar is None else {"grammar": params.grammar.text}
    return result
