"""POST /v1/completions."""

from collections.abc import Iterable, Sequence
from typing import Any

from jaxgen.client import EngineClient
from jaxgen.server.api.choices_builder import ChoicesBuilder
from jaxgen.server.api.endpoint import GeneratingEndpoint
from jaxgen.server.api.response_builder import ResponseBuilder
from jaxgen.server.generation.choice import Choice, ChoiceDelta
from jaxgen.server.generation.logprobs import LogprobList
from jaxgen.server.middleware.context import RequestContext
from jaxgen.server.requests.grammars import answer_grammar
from jaxgen.server.requests.params import CompletionParams, resolve_params
from jaxgen.server.requests.prompts import Prompt
from jaxgen.server.resume.ticket import AnswerIdentity
from jaxgen.server.schema.base import CompletionRequest
from jaxgen.server.schema.parsing import parse_body


class CompletionsEndpoint(GeneratingEndpoint[CompletionRequest]):
    def parse(self, data: dict[str, Any]) -> CompletionRequest:
        return parse_body(CompletionRequest, data, self._services.config.limits)

    async def _build_response(
        self, body: CompletionRequest, context: RequestContext, identity: AnswerIdentity
    ) -> ResponseBuilder:
        config = self._services.config
        params = resolve_params(body, self._engine.model, config.limits, config.service_classes)
        if (grammar := await answer_grammar(body, config.answers, context.caller)) is not None:
            params = params.with_grammar(grammar)
        prompts = await self._services.prompts.read(body, params)
        return Completion(self._engine, prompts, params, context, identity)


class Completion(ChoicesBuilder):
    """OpenAI's text_completion."""

    _chunk_object = "text_completion"

    def __init__(
        self,
        engine: EngineClient,
        prompts: Sequence[Prompt],
        params: CompletionParams,
        context: RequestContext,
        identity: AnswerIdentity,
    ) -> None:
        super().__init__(engine, prompts, params, context, identity, prefix="cmpl", logprobs=LogprobList)

    def full_response(self) -> dict[str, Any]:
        """Return the response as one object, with the n of best_of choices with the highest mean log-probability."""
        chosen = [choice for i in range(len(self._prompts)) for choice in self._best(i)]
        choices = [
            self._choice_json(index, choice, choice.take_whole()) | self._end_extras(choice)
            for index, choice in enumerate(chosen)
        ]
        return {**self._head(self._chunk_object), "choices": choices, "usage": self._usage().as_json()}

    def _best(self, i: int) -> Sequence[Choice]:
        n, best_of = self.params.n, self.params.best_of
        candidates = self.choices[i * best_of : (i + 1) * best_of]
        if n == best_of:
            return candidates
        return sorted(candidates, key=lambda choice: -choice.mean_logprob)[:n]

    def _pieces(self, choice: Choice, piece: ChoiceDelta) -> Iterable[dict[str, Any]]:
        return (self._choice_json(choice.index, choice, piece),)

    def _choice_json(self, index: int, choice: Choice, piece: ChoiceDelta) -> dict[str, Any]:
        return {
            "index": index,
            "text": piece.text,
            "logprobs": piece.logprobs,
            "finish_reason": piece.finish_reason,
            **self._prompt_extras(choice),
            **self._token_extras(piece),
        }
