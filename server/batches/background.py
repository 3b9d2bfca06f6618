"""Run requests of batches in the background of the engine."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from jaxgen.client import EngineClient, EngineStatus
from jaxgen.core.errors import RequestRefusedError
from jaxgen.core.model_info import ModelInfo
from jaxgen.core.quote import Quote
from jaxgen.core.request import Request, TokenEvent
from jaxgen.core.service_class import DEFAULT_CLASS
from jaxgen.core.stats import EngineStats
from jaxgen.text.tokenizer import Tokenizer


class BackgroundEngine:
    """An EngineClient that makes all requests background requests."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine

    @property
    def model(self) -> ModelInfo:
        return self._engine.model

    @property
    def tokenizer(self) -> Tokenizer:
        return self._engine.tokenizer

    @property
    def digest(self) -> str:
        return self._engine.digest

    @property
    def digest_parts(self) -> Mapping[str, Any]:
        return self._engine.digest_parts

    async def follow(self, request: Request, take: Callable[[TokenEvent], bool]) -> None:
        if request.service.has_targets and request.service.name != DEFAULT_CLASS.name:
            raise RequestRefusedError(
                f"service_tier {request.service.name!r} has latency targets, which a batch cannot keep: leave it out",
                "service_tier",
            )
        await self._engine.follow(replace(request, background=True, service=DEFAULT_CLASS), take)

    async def quote(self, request: Request) -> Quote:
        return await self._engine.quote(request)

    def status(self) -> EngineStatus:
        return self._engine.status()

    def stats(self) -> EngineStats:
        return self._engine.stats()
