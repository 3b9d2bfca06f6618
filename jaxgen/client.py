"""What a face knows of an engine."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from jaxgen.core.model_info import ModelInfo
from jaxgen.core.request import Request, TokenEvent
from jaxgen.core.stats import EngineStats
from jaxgen.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """``starting`` until everything is compiled, then ``ready``; ``dead`` after a fatal error.

    ``stalled_seconds`` is how long work has been waiting with no step finished; 0 when idle.
    """

    state: Literal["starting", "ready", "dead"]
    reason: str = ""
    stalled_seconds: float = 0.0


@runtime_checkable
class EngineClient(Protocol):
    """What a face knows of an engine."""

    @property
    def model(self) -> ModelInfo: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    async def follow(self, request: Request, take: Callable[[TokenEvent], bool]) -> None:
        """Runs the request until its event with a finish_reason, which is its last.

        ``take`` gets each event as it comes, in the thread of the event loop, and says whether more are wanted. After
        the first no, an error of ``take``'s or a cancellation it gets no more, and the request is aborted.
        Raises what ``take`` raises, RequestRefusedError for a request that can never run, and EngineDeadError when the
        engine is dead.
        """
        ...

    def status(self) -> EngineStatus: ...

    def stats(self) -> EngineStats: ...
