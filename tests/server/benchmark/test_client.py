"""When the client says that tokens came, how many it counts, and when it says a request began."""

import asyncio
from typing import Any

import pytest

from jaxgen.server.benchmark.client import CompletionsClient, LoadError, Trace
from jaxgen.server.benchmark.load import Load, open_loop
from jaxgen.server.benchmark.requests import PlannedRequest


def chunk(text: str, tokens: int | None = None) -> dict[str, Any]:
    usage = None if tokens is None else {"prompt_tokens": 9, "completion_tokens": tokens}
    return {"choices": [{"index": 0, "text": text}], "usage": usage}


def test_trace_counts_by_usage() -> None:
    """A chunk without text can hold a token, one with text several; those of one read arrive together."""
    trace = Trace(start=0.0, prompt_tokens=5)
    for event, now in ((chunk("", 0), 1.0), (chunk("", 1), 2.0), (chunk("ab", 3), 3.0), (chunk("c", 4), 3.0)):
        trace.feed(event, now)
    trace.feed({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}}, 4.0)
    record = trace.record("completed")
    assert record.arrivals == ((2.0, 1), (3.0, 3))
    assert (record.prompt_tokens, record.output_tokens, record.counted_by) == (9, 4, "continuous usage")


def test_trace_counts_chunks_until_told() -> None:
    trace = Trace(start=0.0, prompt_tokens=5)
    for event, now in ((chunk("a"), 1.0), (chunk(""), 2.0), (chunk("bc"), 3.0)):
        trace.feed(event, now)
    assert (trace.num_tokens, trace.prompt_tokens, trace.counted_by) == (2, 5, "chunks")
    trace.feed({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}}, 4.0)
    record = trace.record("completed")
    assert record.arrivals == ((1.0, 1), (3.0, 1))
    assert (record.prompt_tokens, record.output_tokens, record.counted_by) == (9, 4, "final usage")


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ({"error": {"message": "no"}}, "error event: no"),
        ({"error": "no"}, "error event: no"),
        ({"object": "x"}, "not a completion chunk"),
        ({"choices": ["x"]}, "not a completion chunk"),
        ({"choices": [], "usage": {"prompt_tokens": 1}}, "usage without"),
    ],
)
def test_trace_refuses(event: dict[str, Any], message: str) -> None:
    with pytest.raises(LoadError, match=message):
        Trace(start=0.0, prompt_tokens=5).feed(event, 1.0)


def test_open_loop_times_count_from_when_a_request_was_due() -> None:
    class Silent(CompletionsClient):
        async def stream(self, body: bytes, trace: Trace) -> None:
            pass

    load = Load(Silent("http://nowhere"), timeout_s=60.0)
    asyncio.run(open_loop(load, [PlannedRequest(b"", 1)] * 3, [0.0, 0.125, 0.1875]))
    first, second, third = (record.start for record in load.records)
    assert second - first == pytest.approx(0.125, abs=1e-9)
    assert third - first == pytest.approx(0.1875, abs=1e-9)
