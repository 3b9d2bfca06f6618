"""An engine as batches see it."""

from collections.abc import AsyncGenerator
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

    def generate(self, request: Request) -> AsyncGenerator[TokenEvent, None]:
        return self._engine.generate(replace(request, background=True))

    def status(self) -> EngineStatus:
        return self._engine.status()

    def stats(self) -> EngineStats:
        return self._engine.stats()
