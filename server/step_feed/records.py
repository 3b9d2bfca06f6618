"""Encode records of the journal for readers of the feed: once for all of them, except what is theirs alone."""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jaxgen.client import EngineClient
from jaxgen.journal import EventRecord, Journal, LiveRequest, StepRecord
from jaxgen.server.api.sse import sse_event
from jaxgen.server.middleware.context import CALLER_DIGITS
from jaxgen.server.step_feed.readings import CounterSnapshot, Meter, blocks, kinds, links, per_second, snapshots
from jaxgen.server.step_feed.views import Views

EVENT_FIELDS = ("time", "request", "kind", "values")
_OF_A_RESPONSE = "resp-"
_ID = re.compile(r"[a-z]+-[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class NewEvent:
    """New steps and events as an event of the feed, without the number of dropped ones at its end."""

    head: bytes
    count: int
    """Records in it."""
    dropped: int
    """Records that nobody got."""

    def encoded(self, dropped: int) -> bytes:
        """Return the event for a reader who lost ``dropped`` records more."""
        return b"%b%d}\n\n" % (self.head, self.dropped + dropped)


class NewRecords:
    """The steps and events of the journal between two numbers each."""

    def __init__(self, journal: Journal, views: Views, steps: tuple[int, int], events: tuple[int, int]) -> None:
        self._views = views
        self._steps = journal.steps.between(*steps)
        self._events = journal.events.between(*events)
        self._dropped = steps[1] - steps[0] + events[1] - events[0] - len(self._steps) - len(self._events)
        self._made: dict[str, NewEvent | None] = {}

    def event(self, view: str) -> NewEvent | None:
        """Return what a view has of them, encoded once; None where that is nothing."""
        if view not in self._made:
            self._made[view] = self._encode(self._views.seen(self._events, view))
        return self._made[view]

    @cached_property
    def _shown_steps(self) -> list[tuple[float, ...]]:
        return [_step(record) for record in self._steps]

    def _encode(self, events: list[EventRecord]) -> NewEvent | None:
        count = len(self._steps) + len(events)
        if not count:
            return None
        shown = {"steps": self._shown_steps, "events": [(round(time, 4), *rest) for time, *rest in events]}
        whole = sse_event({**shown, "dropped": 0}, name="steps")
        return NewEvent(whole.removesuffix(b"0}\n\n"), count, self._dropped)


def _step(record: StepRecord) -> tuple[float, ...]:
    rounded = round(record.time, 4), round(record.seconds, 6), round(record.predicted, 6)
    return record.number, *rounded, *record[4:]


def make_hello(engine: EngineClient, journal: Journal, interval: float) -> bytes:
    """Encode the first event of a stream: what does not change."""
    shown = {
        "model": engine.model.name,
        "token_budget": journal.token_budget,
        "max_num_seqs": journal.max_num_seqs,
        "block_size": journal.block_size,
        "skips_padding": journal.skips_padding,
        "max_model_len": engine.model.max_model_len,
        "interval_seconds": interval,
        "step_fields": StepRecord._fields,
        "event_fields": EVENT_FIELDS,
    }
    return sse_event(shown, name="hello")


def make_now(engine: EngineClient, meter: Meter, before: CounterSnapshot, now: CounterSnapshot) -> dict[str, Any]:
    """Return what the engine does now, and what it did since ``before``."""
    status, stats = engine.status(), now.stats
    first, between = meter.first_token(before, now), meter.inter_token(before, now)
    return {
        "time": round(now.time, 3),
        "ttft": None if first is None else first.as_json(),
        "gap": None if between is None else between.as_json(),
        "tokens_per_second": per_second(before, now),
        "blocks": blocks(stats),
        "kinds": kinds(stats),
        "snapshots": snapshots(stats),
        "compilations_after_ready": stats.compilations_after_ready,
        "preemptions": stats.preemptions,
        "longest_step_seconds": round(stats.pace.longest_step, 6),
        "offload": links(before, now),
        "stalled_seconds": round(status.stalled_seconds, 3),
        "state": status.state,
    }


def by_class(live: Iterable[LiveRequest]) -> dict[str, dict[str, int]]:
    """Return the running and the waiting requests of each class that has any."""
    return _counted((request.service, request.running) for request in live)


def by_caller(live: Iterable[LiveRequest], reader: str) -> dict[str, dict[str, int]]:
    """Return the requests of ``reader`` and those of all others together; none where callers have no names."""
    if not reader:
        return {}
    return _counted(
        (reader[:CALLER_DIGITS] if request.caller == reader else "others", request.running) for request in live
    )


def _counted(named: Iterable[tuple[str, bool]]) -> dict[str, dict[str, int]]:
    result: dict[str, dict[str, int]] = defaultdict(lambda: {"running": 0, "waiting": 0})
    for name, running in named:
        result[name]["running" if running else "waiting"] += 1
    return result


def make_mine(requests: Iterable[LiveRequest], reader: str, *, keyed: bool) -> bytes:
    """Encode the numbers of the reader's own requests, with the ids that their answers have; empty if there are none.

    Where no caller needs a key (not ``keyed``) all requests are everybody's. An id is then enough to read a kept
    response, so such ids are left out.
    """
    shown = {
        request.number: answer_id(request.request_id)
        for request in requests
        if request.caller == reader and (keyed or not request.request_id.startswith(_OF_A_RESPONSE))
    }
    return sse_event({"requests": shown}, name="mine") if shown else b""


def answer_id(request_id: str) -> str:
    """Return the id of an answer by that of one of its requests to the engine, which ends with numbers."""
    match = _ID.match(request_id)
    name = request_id if match is None else match[0]
    return name.replace("-", "_") if name.startswith(_OF_A_RESPONSE) else name


def encode_now(shown: dict[str, Any], classes: dict[str, Any], callers: dict[str, Any]) -> bytes:
    """Encode the event ``now``."""
    return sse_event({**shown, "classes": classes, "callers": callers}, name="now")
