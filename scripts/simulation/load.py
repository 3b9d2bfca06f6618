"""Loads in virtual or real time: who asks for how many tokens, and when. Seconds count from the load's start.

The caller asks what is due at its own time, because a virtual clock jumps, while ``jaxgen.server.benchmark.load`` sends
over HTTP and sleeps. Lengths, delays and arrivals are the benchmark's.
"""

import json
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf
from pathlib import Path
from typing import Any, Protocol

from jaxgen.core.request import Request
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.core.service_class import DEFAULT_CLASS, ServiceClass
from jaxgen.server.benchmark.requests import Lengths, poisson_arrivals, stagger


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRequest:
    """What a request asks for; lengths are tokens. Its answer has ``output_tokens``, whatever is sampled. The other
    fields are those of ``Request``."""

    prompt_tokens: int
    output_tokens: int
    priority: int = 0
    service: ServiceClass = DEFAULT_CLASS
    tenant: str = ""
    tenant_weight: float = 1.0

    def prompt(self, number: int) -> tuple[int, ...]:
        """Return token ids for the request with this number, where nothing computes them: no two begin alike."""
        return (number,) * self.prompt_tokens

    def to_request(self, request_id: str, prompt: tuple[int, ...]) -> Request:
        """``prompt``: its token ids, as many as ``prompt_tokens``."""
        params = SamplingParams(max_tokens=self.output_tokens, ignore_eos=True)
        return Request(
            request_id,
            prompt,
            params,
            priority=self.priority,
            service=self.service,
            tenant=self.tenant,
            tenant_weight=self.tenant_weight,
        )


@dataclass(frozen=True, slots=True)
class Due:
    """A request, and the time at which it is sent."""

    time: float
    request: SimulatedRequest


class Load(Protocol):
    @property
    def next_due(self) -> float:
        """When the next request is sent; infinite when that depends on the end of another, or none is left."""
        ...

    def take(self, now: float) -> list[Due]:
        """Those sent up to now and not taken before."""
        ...

    def ended(self, now: float, request: SimulatedRequest) -> None:
        """``request``, one of those taken, was answered."""
        ...


class OpenLoop:
    """Requests that are sent at their times, whatever became of those before."""

    def __init__(self, due: Iterable[Due]) -> None:
        self._due = deque(sorted(due, key=lambda one: one.time))

    @property
    def next_due(self) -> float:
        return self._due[0].time if self._due else inf

    def take(self, now: float) -> list[Due]:
        taken = []
        while self.next_due <= now:
            taken.append(self._due.popleft())
        return taken

    def ended(self, now: float, request: SimulatedRequest) -> None:
        """Makes no difference."""


class ClosedLoop:
    """Clients, each of which sends the next of the requests when it has the answer to the one before."""

    def __init__(self, requests: Iterable[SimulatedRequest], delays: Sequence[float]) -> None:
        """``delays``: seconds before each client's first request."""
        self._left = deque(requests)
        self._free = list(delays)
        heapify(self._free)

    @property
    def next_due(self) -> float:
        return self._free[0] if self._free and self._left else inf

    def take(self, now: float) -> list[Due]:
        taken = []
        while self.next_due <= now:
            taken.append(Due(heappop(self._free), self._left.popleft()))
        return taken

    def ended(self, now: float, request: SimulatedRequest) -> None:  # noqa: ARG002
        heappush(self._free, now)


class Waves:
    """Requests sent together, each wave when all of the one before are answered: from all at once down to one."""

    def __init__(self, waves: Iterable[Sequence[SimulatedRequest]]) -> None:
        self._waves = deque(waves)
        self._unanswered = 0
        self._free_at = 0.0

    @property
    def next_due(self) -> float:
        return self._free_at if self._waves and not self._unanswered else inf

    def take(self, now: float) -> list[Due]:
        if self.next_due > now:
            return []
        wave = self._waves.popleft()
        self._unanswered = len(wave)
        return [Due(self._free_at, request) for request in wave]

    def ended(self, now: float, request: SimulatedRequest) -> None:  # noqa: ARG002
        self._unanswered -= 1
        self._free_at = now


def normal_requests(prompt_mean: float, output_mean: float, num: int, seed: int) -> list[SimulatedRequest]:
    """Return requests with FastGen's lengths, those of ``jaxgen benchmark``."""
    drawn = Lengths.about(prompt_mean, output_mean).draw(seed, num)
    return [SimulatedRequest(prompt_tokens=prompt, output_tokens=output) for prompt, output in drawn]


def closed_loop(requests: Sequence[SimulatedRequest], clients: int, seed: int) -> ClosedLoop:
    return ClosedLoop(requests, stagger(seed, clients))


def open_loop(requests: Sequence[SimulatedRequest], rate: float, seed: int) -> OpenLoop:
    """They arrive by a Poisson process, ``rate`` a second."""
    times = poisson_arrivals(seed, rate, len(requests))
    return OpenLoop(Due(time, request) for time, request in zip(times, requests, strict=True))


def read_trace(path: Path) -> OpenLoop:
    """Lines of JSON: ``arrival`` in seconds and the fields of SimulatedRequest, ``service`` with those of ServiceClass.

    Raises ValueError that names the line and what is wrong with it.
    """
    due = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            due.append(_due(json.loads(line)))
        except (ValueError, TypeError, KeyError) as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"{path}, line {number}: {what}") from error
    if not due:
        raise ValueError(f"{path} has no request")
    return OpenLoop(due)


def _due(fields: dict[str, Any]) -> Due:
    arrival = float(fields.pop("arrival"))
    if "service" in fields:
        fields["service"] = ServiceClass(**fields["service"])
    request = SimulatedRequest(**fields)
    for name in ("prompt_tokens", "output_tokens"):
        count = getattr(request, name)
        if not isinstance(count, int) or count < 1:
            raise ValueError(f"{name} must be a whole number, 1 or more, not {count!r}")
    request.to_request("", (0,))  # says what is wrong with the other fields
    if not 0.0 <= arrival < inf:
        raise ValueError(f"arrival must be 0 or more seconds, not {arrival}")
    return Due(arrival, request)
