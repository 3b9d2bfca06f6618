"""Compute the metrics of a load from records of its requests, with DeepSpeed-FastGen's definitions.

Times are seconds. A failed or aborted request is never dropped: its end-to-end latency counts as infinite, and it does
not count in the effective throughput.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat
from math import floor, inf, isfinite
from statistics import fmean
from typing import Any, Literal

PERCENTILES = (50, 90, 95, 99)
SLAS = (2.0, 4.0, 6.0)
"""FastGen's SLAs, tokens/s."""
TTFT_RATE = 512.0
"""FastGen's target of the first token: prompt tokens / this, seconds."""
EMA_SPAN = 16.0
"""Span of FastGen's moving average of inter-token times, tokens."""
MAX_REASONS = 20

Outcome = Literal["completed", "failed", "aborted"]
TokenCount = Literal["continuous usage", "final usage", "chunks"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """The client's record of one request.

    ``start`` and ``end`` are readings of one clock, seconds. ``arrivals``: reads that brought tokens, as (time, number
    of tokens), in order of time. ``output_tokens``: the server's count or, without one, the number of chunks.
    ``max_tokens``: as requested, where it is known.
    """

    outcome: Outcome
    reason: str = ""
    start: float
    end: float
    prompt_tokens: int
    output_tokens: int
    max_tokens: int | None = None
    arrivals: tuple[tuple[float, int], ...]
    counted_by: TokenCount = "continuous usage"

    @property
    def first_token_time(self) -> float:
        """Time to the first token; infinite when no token came."""
        return self.arrivals[0][0] - self.start if self.arrivals else inf

    @property
    def e2e_time(self) -> float:
        """Time from start to end; infinite when the request was not completed."""
        return self.end - self.start if self.outcome == "completed" else inf

    def arrival_gaps(self) -> list[float]:
        """Return the times between consecutive arrivals."""
        times = [time for time, _ in self.arrivals]
        return [later - earlier for earlier, later in pairwise(times)]

    def inter_token_times(self) -> list[float]:
        """Return one time for each token after the first.

        They are those of ``later_tokens``; tokens that came with the first one have 0.
        """
        if not self.arrivals:
            return []
        return [0.0] * (self.arrivals[0][1] - 1) + [seconds for _, seconds in self.later_tokens()]

    def later_tokens(self) -> Iterator[tuple[float, float]]:
        """Yield the arrival and the inter-token time of each token after the first arrival.

        The k tokens of one arrival share the gap before it, gap / k each.
        """
        for (before, _), (time, tokens) in pairwise(self.arrivals):
            yield from repeat((time, (time - before) / tokens), tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class SloTargets:
    """Targets that a request must meet to count in the effective throughput. Rates are tokens/s.

    TTFT must be <= prompt tokens / ``ttft_rate``, and the moving average of inter-token times (pandas'
    ``ewm(span=ema_span).mean()``) under 1 / ``sla`` at every token.
    """

    sla: float
    ttft_rate: float = TTFT_RATE
    ema_span: float = EMA_SPAN

    def first_token_in_time(self, record: RequestRecord) -> bool:
        return record.first_token_time <= record.prompt_tokens / self.ttft_rate

    def tokens_in_time(self, record: RequestRecord) -> bool:
        """Whether inter-token times meet the target. True for a request of one token: it has no inter-token time."""
        return all(mean < 1.0 / self.sla for mean in ewm_mean(record.inter_token_times(), self.ema_span))

    def met_by(self, record: RequestRecord) -> bool:
        return record.outcome == "completed" and self.first_token_in_time(record) and self.tokens_in_time(record)


def ewm_mean(values: Iterable[float], span: float) -> list[float]:
    """Return the weighted mean of the values so far, at each value: weights (1 - a)^age, a = 2 / (span + 1).

    This is pandas' ``ewm(span).mean()`` with its default adjust=True, which FastGen calls.
    """
    decay = 1.0 - 2.0 / (span + 1.0)
    total, weights = 0.0, 0.0
    means = []
    for value in values:
        total = value + decay * total
        weights = 1.0 + decay * weights
        means.append(total / weights)
    return means


def percentile(values: Sequence[float], q: float) -> float:
    """Interpolate linearly between the closest ranks of sorted, non-empty ``values``, which may be infinite."""
    place = (len(values) - 1) * q / 100.0
    low = floor(place)
    share = place - low
    if share == 0.0 or values[low] == values[low + 1]:
        return values[low]
    return values[low] + share * (values[low + 1] - values[low])


def spread(values: Iterable[float]) -> dict[str, float | None]:
    """Return ``count`` and ``mean`` of the finite values, and percentiles of all values; None for an infinite one."""
    ordered = sorted(values)
    finite = [value for value in ordered if isfinite(value)]
    figures: dict[str, float | None] = {"count": len(finite), "mean": fmean(finite) if finite else None}
    for q in PERCENTILES:
        reached = percentile(ordered, q) if ordered else inf
        figures[f"p{q}"] = reached if isfinite(reached) else None
    return figures


def latencies(records: Sequence[RequestRecord]) -> dict[str, dict[str, float | None]]:
    """Return the spreads of the times of all requests: to the first token, between tokens and arrivals, to the end."""
    return {
        "ttft_s": spread(record.first_token_time for record in records),
        "inter_token_s": spread(time for record in records for time in record.inter_token_times()),
        "arrival_gap_s": spread(gap for record in records for gap in record.arrival_gaps()),
        "e2e_s": spread(record.e2e_time for record in records),
    }


def summarize(records: Sequence[RequestRecord], all_targets: Sequence[SloTargets]) -> dict[str, Any]:
    """Return all metrics of one load, ready for JSON. Rates are over the time from the first start to the last end."""
    duration = max(r.end for r in records) - min(r.start for r in records) if records else 0.0
    outcomes = Counter(record.outcome for record in records)
    output_tokens = sum(record.output_tokens for record in records)
    prompt_tokens = sum(record.prompt_tokens for record in records)
    return {
        "requests": {
            "sent": len(records),
            **{outcome: outcomes[outcome] for outcome in ("completed", "failed", "aborted")},
            "reasons": dict(Counter(r.reason for r in records if r.outcome != "completed").most_common(MAX_REASONS)),
        },
        "duration_s": duration,
        "requests_per_s": _rate(outcomes["completed"], duration),
        "output_tokens_per_s": _rate(output_tokens, duration),
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "tokens_counted_by": dict(Counter(record.counted_by for record in records)),
        **latencies(records),
        "effective": [_effective(records, targets, duration) for targets in all_targets],
    }


def _effective(records: Sequence[RequestRecord], targets: SloTargets, duration: float) -> dict[str, Any]:
    """Return the effective throughput; ``late_first_token`` and ``slow_tokens`` may count the same request."""
    completed = [record for record in records if record.outcome == "completed"]
    ok = sum(targets.met_by(record) for record in completed)
    return {
        "sla_tokens_per_s": targets.sla,
        "ok": ok,
        "ok_ratio": ok / len(records) if records else None,
        "requests_per_s": _rate(ok, duration),
        "not_completed": len(records) - len(completed),
        "late_first_token": sum(not targets.first_token_in_time(record) for record in completed),
        "slow_tokens": sum(not targets.tokens_in_time(record) for record in completed),
    }


def _rate(count: int, duration: float) -> float | None:
    return count / duration if duration > 0.0 else None
