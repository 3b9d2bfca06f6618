"""python -m scripts.measure.quotes at a server whose fake engine quotes far more, or less, than an answer takes."""

import json
import sys

import pytest

from scripts.measure import quotes
from tests.support.benchmark_runs import served
from tests.support.server_app import fake_engine


@pytest.mark.parametrize(("cached", "kept"), [(0, 1.0), (120, 0.0)])
def test_quotes_are_held_against_what_came(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cached: int, kept: float
) -> None:
    """Of 120 tokens the fake engine says a minute where none is cached, and no time at all where all are."""
    monkeypatch.setattr(quotes, "PER_CLIENT_SECOND", 1 / 60)  # the load ends with its requests, not with its time
    monkeypatch.setattr(quotes, "stagger", lambda *_: [0.0])
    flags = ["--clients", "1", "--seconds", "240", "--prompt-mean", "120", "--std-share", "0", "--output-mean", "3"]
    flags += ["--vocab-size", "400"]
    with served(fake_engine(cached=cached)) as url:
        monkeypatch.setattr(sys, "argv", ["x", "--base-url", url, *flags])
        quotes.main()
    row = json.loads(capsys.readouterr().out)
    assert row["kept"] == kept
    assert row["requests"] == 5
    assert row["refused"] == 0
    assert (row["later_p50"] is None) is (kept == 1.0)
