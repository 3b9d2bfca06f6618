"""An engine as batches see it."""

from collections.abc import Callable
from dataclasses import replace

from jaxgen.request import EngineClient, EngineStatus, ModelInfo, Request, TokenEvent
from jaxgen.stats import EngineStats
from jaxgen.tokenizer import Tokenizer


class BackgroundEngine:
    """An EngineClient all of whose requests are in the background."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine

    @property
    def model(self) -> ModelInfo:
        return self._engine.model

    @property
    def tokenizer(self) -> Tokenizer:
        return self._engine.tokenizer

    async def follow(self, request: Request, take: Callable[[TokenEvent], bool]) -> None:
        await self._engine.follow(replace(request, background=True), take)

    def status(self) -> EngineStatus:
        return self._engine.status()

    def stats(self) -> EngineStats:
        return self._engine.stats()
