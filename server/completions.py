"""POST /v1/completions."""

from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter, time
from typing import Any
from uuid import uuid4

from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from jaxgen.request import EngineClient, Request, choice_seed
from server.body import read_json_object
from server.choice import Choice, Piece
from server.config import ServerConfig
from server.errors import ApiError, as_api_error, bad_request
from server.generation import Generation
from server.lifecycle import Lifecycle
from server.metrics import Metrics
from server.params import CompletionParams, resolve_params
from server.prompts import Prompt, PromptReader
from server.schema import parse_completion
from server.sse import DONE, send_events, sse_event, until_disconnect


class CompletionsEndpoint:
    """An ASGI app rather than a function of a request: it must see the caller leave while it works."""

    def __init__(self, engine: EngineClient, config: ServerConfig, lifecycle: Lifecycle, metrics: Metrics) -> None:
        self._engine = engine
        self._config = config
        self._lifecycle = lifecycle
        self._metrics = metrics
        self._prompts = PromptReader(engine, config)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrival = perf_counter()
        with self._lifecycle.request():
            try:
                data = await read_json_object(scope, receive, self._config.max_body_bytes)
            except ClientDisconnect:
                return
            body = parse_completion(data, self._config)
            check_model(body.model, self._engine)
            params = resolve_params(body, self._engine.model, self._config)

            async def answer() -> None:
                completion = Completion(self._engine, await self._prompts.read(body, params), params)
                async with Generation(self._engine, completion.choices, self._metrics, arrival) as generation:
                    if params.stream:
                        # Until its first token an answer can still be an error with a status of its own.
                        first = await generation.next_news()
                        await send_events(send, completion.events(generation, first))
                        return
                    await generation.finish()
                await JSONResponse(completion.whole())(scope, receive, send)

            await until_disconnect(receive, answer())


def check_model(name: str | None, engine: EngineClient) -> None:
    """Raises ApiError: 400 without a name, 404 for another model's."""
    if name is None:
        raise bad_request("model is missing: name the model to use.", "model")
    if name != engine.model.name:
        raise model_not_found(name)


def model_not_found(name: str) -> ApiError:
    return ApiError(404, f"The model {name[:200]!r} does not exist.", param="model", code="model_not_found")


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts. A prompt counts once, however many choices it has; every token generated counts.

    ``cached_tokens``: those of the prompt whose keys and values the prefix cache had when its first choice began.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    def as_json(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


class Completion:
    """The choices of one request, and OpenAI's objects for them."""

    def __init__(self, engine: EngineClient, prompts: Sequence[Prompt], params: CompletionParams) -> None:
        self._id = f"cmpl-{uuid4().hex}"
        self._head = {"id": self._id, "object": "text_completion", "created": int(time()), "model": engine.model.name}
        self._prompts = prompts
        self._params = params
        self.choices = [
            self._choice(engine, prompt, i, j) for i, prompt in enumerate(prompts) for j in range(params.best_of)
        ]

    def _choice(self, engine: EngineClient, prompt: Prompt, i: int, j: int) -> Choice:
        sampling = self._params.sampling
        # Counted within its prompt, so that an answer does not depend on what else is in the request.
        seed = None if sampling.seed is None else choice_seed(sampling.seed, j)
        request = Request(f"{self._id}-{i}-{j}", prompt.tokens, replace(sampling, seed=seed), self._params.cache_salt)
        return Choice(i * self._params.best_of + j, prompt, request, engine.tokenizer, self._params)

    def whole(self) -> dict[str, Any]:
        """The answer in one object; of best_of candidates the n with the highest mean log-probability."""
        chosen = [choice for i in range(len(self._prompts)) for choice in self._best(i)]
        choices = [_choice_json(index, choice.take()) for index, choice in enumerate(chosen)]
        return {**self._head, "choices": choices, "usage": self._usage().as_json()}

    def _best(self, i: int) -> Sequence[Choice]:
        n, best_of = self._params.n, self._params.best_of
        candidates = self.choices[i * best_of : (i + 1) * best_of]
        if n == best_of:
            return candidates
        return sorted(candidates, key=lambda choice: -choice.mean_logprob)[:n]

    async def events(self, generation: Generation, first: Iterable[Choice]) -> AsyncGenerator[list[bytes], None]:
        """Server-sent events, in the groups to write together. An error ends them without [DONE]."""
        news = first
        try:
            while events := [self._chunk(choice) for choice in news]:
                yield events
                news = await generation.next_news()
        except Exception as error:
            # The status line has gone out, so the error becomes an event.
            yield [sse_event(as_api_error(error).body())]
            return
        if self._params.include_usage:
            yield [sse_event({**self._head, "choices": [], "usage": self._usage().as_json()}), DONE]
        else:
            yield [DONE]

    def _chunk(self, choice: Choice) -> bytes:
        chunk = {**self._head, "choices": [_choice_json(choice.index, choice.take())]}
        if self._params.continuous_usage:
            chunk["usage"] = Usage(len(choice.prompt.tokens), choice.num_tokens, choice.cached_tokens).as_json()
        elif self._params.include_usage:
            chunk["usage"] = None
        return sse_event(chunk)

    def _usage(self) -> Usage:
        return Usage(
            sum(len(prompt.tokens) for prompt in self._prompts),
            sum(choice.num_tokens for choice in self.choices),
            sum(choice.cached_tokens for choice in self.choices[:: self._params.best_of]),
        )


def _choice_json(index: int, piece: Piece) -> dict[str, Any]:
    return {
        "index": index,
        "text": piece.text,
        "logprobs": piece.logprobs,
        "finish_reason": piece.finish_reason,
    }
