"""The interface of an engine for its front ends: the HTTP server and others."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from jaxgen.core.model_info import ModelInfo
from jaxgen.core.quote import Quote
from jaxgen.core.request import Request, TokenEvent
from jaxgen.core.stats import EngineStats
from jaxgen.journal import Journal
from jaxgen.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """``starting`` until everything is compiled, then ``ready``; ``dead`` after a fatal error.

    ``stalled_seconds``: how long requests have waited without a step that finished; 0 when idle.
    """

    state: Literal["starting", "ready", "dead"]
    reason: str = ""
    stalled_seconds: float = 0.0


@runtime_checkable
class EngineClient(Protocol):
    """An engine as its front ends use it."""

    @property
    def model(self) -> ModelInfo: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def digest(self) -> str:
        """Name what the bits of answers depend on: engines of one digest give the same. Empty while it starts."""
        ...

    @property
    def digest_parts(self) -> Mapping[str, Any]:
        """What the digest is made of, as named JSON values without paths and secrets. Empty while it starts."""
        ...

    async def follow(self, request: Request, take: Callable[[TokenEvent], bool]) -> None:
        """Run the request until its event with a finish_reason, which is its last.

        ``take`` gets each event as it comes, in the thread of the event loop, and returns whether more are wanted. If
        it returns False or raises, or the call is cancelled, it gets no more events and the request is aborted.
        Raises what ``take`` raises, RequestRefusedError for a request that can never run, and EngineDeadError if the
        engine is dead.
        """
        ...

    async def quote(self, request: Request) -> Quote:
        """Predict the latencies of a request that comes now, without taking it.

        Raises RequestRefusedError for one that can never run, WouldBeLateError for one that would be refused as late,
        and EngineDeadError if the engine is dead.
        """
        ...

    def status(self) -> EngineStatus: ...

    def stats(self) -> EngineStats: ...


@runtime_checkable
class JournalKeeper(Protocol):
    """An EngineClient that also notes down its steps and what happens to its requests."""

    @property
    def journal(self) -> Journal | None:
        """None while the engine starts."""
        ...
