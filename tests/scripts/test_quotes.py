"""python -m scripts.measure.quotes at a server whose steps take what a fake engine's pace says."""

import asyncio
import json
import sys

import pytest

from jaxgen.core.request import Request
from scripts.measure.quotes import main
from tests.support.benchmark_runs import served
from tests.support.server_app import fake_engine


@pytest.mark.parametrize(("seconds", "kept"), [(0.0, 1.0), (1.5, 0.0)])
def test_quotes_are_held_against_what_came(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], seconds: float, kept: float
) -> None:
    """Of two tokens that are not cached the fake engine says one second, two at most, and they come 1.5 s later."""

    async def pace(request: Request, index: int) -> None:
        if index == 0:
            await asyncio.sleep(seconds)

    flags = ["--clients", "2", "--seconds", "4", "--prompt-mean", "4", "--std-share", "0", "--output-mean", "3"]
    flags += ["--vocab-size", "400"]
    with served(fake_engine(pace=pace, cached=3)) as url:
        monkeypatch.setattr(sys, "argv", ["x", "--base-url", url, *flags])
        main()
    row = json.loads(capsys.readouterr().out)
    assert row["kept"] == kept
    assert row["requests"] >= 1
    assert row["refused"] == 0
    assert (row["later_p50"] is None) is (kept == 1.0)
