"""What became of a load's requests, and its figures of merit."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxgen.core.service_class import ServiceClass
from jaxgen.server.benchmark.metrics import EMA_SPAN, SLAS, Outcome, RequestRecord, SloTargets, ewm_mean, summarize
from scripts.simulation.load import Due, SimulatedRequest

TARGETS = tuple(SloTargets(sla=sla) for sla in SLAS)


@dataclass(slots=True)
class _Live:
    due: Due
    arrivals: list[tuple[float, int]] = field(default_factory=list)


class Recorder:
    """Told of each request's beginning, tokens and end; knows requests by the numbers that ``begin`` gives."""

    def __init__(self) -> None:
        self.records: list[RequestRecord] = []
        self.requests: list[SimulatedRequest] = []
        """Those of ``records``, in the same order: as they ended."""
        self.ids: list[str] = []
        """Theirs, in the same order."""
        self._live: dict[str, _Live] = {}
        self._count = 0

    @property
    def num_live(self) -> int:
        return len(self._live)

    def begin(self, due: Due) -> str:
        """Returns the request's id."""
        request_id = str(self._count)
        self._count += 1
        self._live[request_id] = _Live(due)
        return request_id

    def token(self, request_id: str, now: float) -> None:
        self._live[request_id].arrivals.append((now, 1))

    def refuse(self, request_id: str, now: float, error: Exception) -> SimulatedRequest:
        """Returns the request."""
        return self._end(request_id, now, "failed", type(error).__name__)

    def end(self, request_id: str, now: float) -> SimulatedRequest:
        """Returns the request."""
        return self._end(request_id, now, "completed", "")

    def _end(self, request_id: str, now: float, outcome: Outcome, reason: str) -> SimulatedRequest:
        live = self._live.pop(request_id)
        self.requests.append(live.due.request)
        self.ids.append(request_id)
        self.records.append(
            RequestRecord(
                outcome=outcome,
                reason=reason,
                start=live.due.time,
                end=now,
                prompt_tokens=live.due.request.prompt_tokens,
                output_tokens=len(live.arrivals),
                arrivals=tuple(live.arrivals),
            )
        )
        return live.due.request

    def summary(self, targets: Sequence[SloTargets] = TARGETS) -> dict[str, Any]:
        """As the benchmark's (docs/benchmark.md); also what each service class and tenant got, where requests
        differ in that. ``kept``: the requests of a class that got what it promises."""
        figures = summarize(self.records, targets)
        classes = self._by(request.service.name for request in self.requests)
        tenants = self._by(request.tenant for request in self.requests)
        if len(classes) > 1:
            figures["service_classes"] = {
                name: {what: found[what] for what in ("requests", "ttft_s", "inter_token_s")}
                for name, found in ((name, summarize(records, ())) for name, records in classes.items())
            }
            for request, record in zip(self.requests, self.records, strict=True):
                of_class = figures["service_classes"][request.service.name]
                of_class["kept"] = of_class.get("kept", 0) + kept(record, request.service)
        if len(tenants) > 1:
            figures["tenants"] = {
                name: {
                    "prompt_tokens": sum(record.prompt_tokens for record in records),
                    "output_tokens": sum(record.output_tokens for record in records),
                }
                for name, records in tenants.items()
            }
        return figures

    def _by(self, names: Iterable[str]) -> dict[str, list[RequestRecord]]:
        groups: dict[str, list[RequestRecord]] = defaultdict(list)
        for name, record in zip(names, self.records, strict=True):
            groups[name].append(record)
        return dict(groups)


def kept(record: RequestRecord, service: ServiceClass) -> bool:
    """Whether a request got what its class promises: the first token in time, and a moving average of inter-token
    times, as FastGen's, under the target at every token."""
    first, between = service.first_token_target(record.prompt_tokens), service.inter_token_seconds
    return (
        record.outcome == "completed"
        and (first is None or record.first_token_time <= first)
        and (between is None or all(mean <= between for mean in ewm_mean(record.inter_token_times(), EMA_SPAN)))
    )
