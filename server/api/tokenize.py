"""POST /tokenize and /detokenize: turn a text or a conversation into token ids, and token ids into text (as vLLM)."""

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from jaxgen.server.api.endpoint import AppState, check_model
from jaxgen.server.api.query import caller
from jaxgen.server.errors import bad_request
from jaxgen.server.requests.prompts import Prompt
from jaxgen.server.requests.tools import for_template
from jaxgen.server.schema.base import Body, ListOf
from jaxgen.server.schema.chat import Conversation
from jaxgen.server.schema.integers import Integer
from jaxgen.server.schema.parsing import parse_body


class TokenizeRequest(Conversation):
    """A ``prompt``, or a conversation. ``add_special_tokens`` (true) is for prompts: templates write their own."""

    model: str | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Body):
    """Token ids, whose text is asked for."""

    model: str | None = None
    tokens: ListOf[Integer] | None = None


class TokensEndpoint:
    def __init__(self, services: AppState) -> None:
        self._services = services
        self._engine = services.engine

    async def tokenize(self, request: Request) -> Response:
        body = await self._read(TokenizeRequest, request)
        prompt = await self._prompt(body, caller(request))
        answer: dict[str, Any] = {
            "count": len(prompt.tokens),
            "max_model_len": self._engine.model.max_model_len,
            "tokens": prompt.tokens,
        }
        if body.return_token_strs:
            answer["token_strs"] = [self._engine.tokenizer.token_text(token) for token in prompt.tokens]
        return JSONResponse(answer)

    async def detokenize(self, request: Request) -> Response:
        tokens = (await self._read(DetokenizeRequest, request)).tokens
        if tokens is None:
            raise bad_request("tokens is missing: send a list of token ids.", "tokens")
        vocabulary = self._engine.model.vocab_size
        if bad := [token for token in tokens if not 0 <= token < vocabulary]:
            raise bad_request(f"tokens: {bad[0]} is not a valid token id: ids are 0 to {vocabulary - 1}.", "tokens")
        text = await self._services.prompts.work(lambda: self._engine.tokenizer.decode(tokens), len(tokens))
        return JSONResponse({"prompt": text})

    async def _prompt(self, body: TokenizeRequest, caller: str) -> Prompt:
        text = body.prompt
        if (text is None) == (body.messages is None):
            raise bad_request("send one of prompt and messages.", "prompt")
        if text is None:
            tools = [for_template(tool.function) for tool in body.tools or ()]
            return await self._services.conversations.read(body, max_tokens=0, tools=tools, caller=caller)
        special = body.add_special_tokens is not False
        return await self._services.prompts.read_text(
            lambda: text, len(text), special=special, field="prompt", max_tokens=0
        )

    async def _read[Fields: (TokenizeRequest, DetokenizeRequest)](self, kind: type[Fields], request: Request) -> Fields:
        data = await self._services.bodies.read_json_object(request.scope, request.receive)
        body = parse_body(kind, data, self._services.config.limits)
        check_model(body.model, self._engine)
        return body
