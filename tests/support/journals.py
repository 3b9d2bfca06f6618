"""A fake engine with a journal that tests write themselves."""

from dataclasses import dataclass, field
from time import time

from jaxgen.core.stats import EngineStats
from jaxgen.journal import Journal, LiveRequest, StepRecord
from tests.support.fakes import FakeEngine
from tests.support.server_app import TOKENIZER

BLOCKS = EngineStats(blocks_total=100, blocks_free=60, blocks_cached=20)


@dataclass
class JournalingEngine(FakeEngine):
    """A FakeEngine that is a JournalKeeper."""

    journal: Journal | None = field(default_factory=lambda: Journal(32, 4, 16))

    @property
    def written(self) -> Journal:
        assert self.journal is not None
        return self.journal

    def write_step(self, number: int, *, decodes: int = 3, prompt: int = 5) -> StepRecord:
        record = StepRecord(number, time(), 0.0123456789, 0.02, 32, decodes, prompt, 4, 2, 50, 20, 7)
        self.written.steps.append(record)
        return record

    def write_event(self, number: int, kind: str, *values: int | str) -> None:
        self.written.events.append((time(), number, kind, *values))

    def write_arrival(self, number: int, request_id: str, caller: str = "", service: str = "default") -> LiveRequest:
        live = LiveRequest(number, request_id, caller, service)
        self.written.live[number] = live
        self.written.arrivals.append(live)
        self.write_event(number, "queued", service, 8)
        return live


def journaling_engine() -> JournalingEngine:
    return JournalingEngine(TOKENIZER, numbers=BLOCKS)
