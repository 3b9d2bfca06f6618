"""Figures of merit against cases worked out by hand, plain definitions and numpy."""

from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxgen.server.benchmark.metrics import RequestRecord, SloTargets, ewm_mean, percentile, spread, summarize

times = st.floats(0.0, 100.0)


def record(*arrivals: float | tuple[float, int], **fields: Any) -> RequestRecord:
    """A completed request of 512 prompt tokens from 0 on, ended by its last arrival; a bare time brings one token."""
    pairs = tuple(arrival if isinstance(arrival, tuple) else (arrival, 1) for arrival in arrivals)
    known = {
        "outcome": "completed",
        "start": 0.0,
        "end": pairs[-1][0] if pairs else 0.0,
        "prompt_tokens": 512,
        "output_tokens": sum(tokens for _, tokens in pairs),
        "arrivals": pairs,
    }
    return RequestRecord(**{**known, **fields})


def steady(gap: float, tokens: int, **fields: Any) -> RequestRecord:
    """The first token after half a second, then one every ``gap``."""
    return record(*(0.5 + gap * i for i in range(tokens)), **fields)


def test_times_of_a_request() -> None:
    one = record(3.0, 3.5, 4.25, start=1.0, end=5.0)
    assert one.first_token_time == 2.0
    assert one.inter_token_times() == [0.5, 0.75]
    assert one.arrival_gaps() == [0.5, 0.75]
    assert one.e2e_time == 4.0


def test_tokens_of_one_arrival_share_its_gap() -> None:
    several = record((1.0, 3), (2.0, 4), (2.5, 1))
    assert several.inter_token_times() == [0.0, 0.0, 0.25, 0.25, 0.25, 0.25, 0.5]
    assert list(several.later_tokens()) == [(2.0, 0.25)] * 4 + [(2.5, 0.5)]
    assert several.arrival_gaps() == [1.0, 0.5]
    assert len(several.inter_token_times()) == several.output_tokens - 1


def test_times_of_a_request_without_tokens_or_end() -> None:
    nothing = record(outcome="failed")
    assert nothing.first_token_time == inf
    assert nothing.e2e_time == inf
    assert nothing.inter_token_times() == nothing.arrival_gaps() == []
    assert record(1.0, 2.0, outcome="aborted").e2e_time == inf
    assert record(1.0, 2.0, outcome="aborted").inter_token_times() == [1.0]


@given(st.lists(times, max_size=40), st.sampled_from([1.0, 3.0, 16.0]))
def test_ewm_mean_is_the_weighted_mean(values: list[float], span: float) -> None:
    decay = 1.0 - 2.0 / (span + 1.0)
    for i, mean in enumerate(ewm_mean(values, span)):
        weights = [decay ** (i - j) for j in range(i + 1)]
        expected = sum(w * value for w, value in zip(weights, values, strict=False)) / sum(weights)
        assert mean == pytest.approx(expected, abs=1e-12)


def test_ewm_mean_by_hand() -> None:
    """Span 3 halves the weight with each step: (2 + 0.5 * 1) / 1.5, (4 + 0.5 * 2 + 0.25 * 1) / 1.75. The values are
    those that pandas' documentation calls adjust=True; adjust=False would give 1.5 and 2.75."""
    assert ewm_mean([1.0, 2.0, 4.0], 3.0) == pytest.approx([1.0, 2.5 / 1.5, 5.25 / 1.75])


@given(st.lists(times, min_size=1, max_size=50), st.sampled_from([0, 50, 90, 95, 99, 100]))
def test_percentile_is_numpys(values: list[float], q: int) -> None:
    assert percentile(sorted(values), q) == pytest.approx(float(np.percentile(values, q)))


def test_spread_keeps_what_never_came() -> None:
    """Of 20 requests one failed: the 99th percentile is not reached, and it is told from an absent one."""
    figures = spread([*map(float, range(19)), inf])
    assert figures["count"] == 19
    assert figures["mean"] == 9.0
    assert figures["p50"] == 9.5
    assert figures["p90"] == pytest.approx(17.1)
    assert figures["p95"] is None
    assert figures["p99"] is None
    assert spread([inf, inf])["p50"] is None
    assert spread([]) == {"count": 0, "mean": None, "p50": None, "p90": None, "p95": None, "p99": None}
    assert spread([2.0])["p99"] == 2.0


def test_first_token_must_come_in_time() -> None:
    targets = SloTargets(sla=4.0)
    assert targets.met_by(record(1.0))
    assert not targets.met_by(record(1.0000001))
    assert not targets.met_by(record(1.0, prompt_tokens=511))
    assert SloTargets(sla=4.0, ttft_rate=256.0).met_by(record(2.0))


def test_the_average_must_stay_under_the_limit() -> None:
    assert not SloTargets(sla=4.0).met_by(steady(0.25, 5)), "equal is not under"
    assert SloTargets(sla=4.0).met_by(steady(0.249, 5))
    assert SloTargets(sla=2.0).met_by(steady(0.25, 5))


def test_every_token_is_looked_at() -> None:
    """A late pause among quick tokens is forgiven by the average, an early one is not, though it recovers."""
    gaps = [0.1] * 40
    late = np.cumsum([0.5, *gaps, 1.0, *gaps]).tolist()
    early = np.cumsum([0.5, 1.0, *gaps, *gaps]).tolist()
    assert SloTargets(sla=4.0).met_by(record(*late))
    assert not SloTargets(sla=4.0).met_by(record(*early))
    assert ewm_mean(record(*early).inter_token_times(), 16.0)[-1] < 0.25


def test_the_span_is_a_setting() -> None:
    late = record(*np.cumsum([0.5, *[0.1] * 40, 1.0]).tolist())
    assert SloTargets(sla=4.0).met_by(late)
    assert not SloTargets(sla=4.0, ema_span=3.0).met_by(late)


def test_one_token_has_no_rate_to_miss() -> None:
    assert SloTargets(sla=1000.0).met_by(record(0.9))
    assert not SloTargets(sla=1000.0).met_by(record(1.1))


@pytest.mark.parametrize("outcome", ["failed", "aborted"])
def test_only_completed_requests_count(outcome: str) -> None:
    assert SloTargets(sla=4.0).met_by(steady(0.1, 9))
    assert not SloTargets(sla=4.0).met_by(steady(0.1, 9, outcome=outcome))


def test_a_request_without_tokens_does_not_count() -> None:
    assert not SloTargets(sla=4.0).met_by(record(end=0.1))


def test_summary_by_hand() -> None:
    """Ten seconds: a good request, a slow one, one late to begin, a failed one and an aborted one."""
    records = [
        steady(0.1, 11, end=1.5),
        steady(0.3, 11, start=0.25, end=10.0),
        record(2.0, 2.1, end=2.1),
        record(outcome="failed", reason="HTTP 500", end=0.5),
        steady(0.1, 4, outcome="aborted", reason="stopped", end=9.0, counted_by="chunks"),
    ]
    figures = summarize(records, [SloTargets(sla=2.0), SloTargets(sla=4.0)])
    assert figures["requests"] == {
        "sent": 5,
        "completed": 3,
        "failed": 1,
        "aborted": 1,
        "reasons": {"HTTP 500": 1, "stopped": 1},
    }
    assert figures["duration_s"] == 10.0
    assert figures["requests_per_s"] == pytest.approx(0.3)
    assert figures["output_tokens"] == 11 + 11 + 2 + 4
    assert figures["output_tokens_per_s"] == pytest.approx(2.8)
    assert figures["prompt_tokens"] == 5 * 512
    assert figures["tokens_counted_by"] == {"continuous usage": 4, "chunks": 1}
    assert figures["ttft_s"]["count"] == 4
    assert figures["ttft_s"]["p50"] == pytest.approx(0.5)
    assert figures["ttft_s"]["p90"] is None
    assert figures["e2e_s"]["count"] == 3
    assert figures["e2e_s"]["p50"] == pytest.approx(9.75), "of 1.5, 2.1, 9.75 and two that never ended"
    assert figures["inter_token_s"]["count"] == 10 + 10 + 1 + 3
    two, four = figures["effective"]
    assert two == {
        "sla_tokens_per_s": 2.0,
        "ok": 2,
        "ok_ratio": 0.4,
        "requests_per_s": pytest.approx(0.2),
        "not_completed": 2,
        "late_first_token": 1,
        "slow_tokens": 0,
    }
    assert (four["ok"], four["slow_tokens"], four["late_first_token"]) == (1, 1, 1)


def test_summary_of_nothing() -> None:
    figures = summarize([], [SloTargets(sla=2.0)])
    assert figures["requests"]["sent"] == 0
    assert figures["requests_per_s"] is None
    assert figures["effective"][0]["ok_ratio"] is None
