"""python -m scripts.measure.pairs at a server whose steps take what a fake engine's pace says."""

import asyncio
import re
import sys
from functools import partial

import pytest

from jaxgen.core.request import Request
from jaxgen.core.service_class import ServiceClass
from jaxgen.server.benchmark.metrics import RequestRecord
from jaxgen.server.config import ServerConfig
from scripts.measure.pairs import compare, main
from tests.support.benchmark_runs import served
from tests.support.server_app import fake_engine

CLASSES = (ServiceClass(name="soon", first_token_seconds=60.0, inter_token_seconds=60.0),)


def test_what_a_class_buys_is_shown_and_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the class a first token takes at least 0.5 s, and the flood never ends."""

    async def pace(request: Request, index: int) -> None:
        if request.service.name != "soon" and index == 0:
            await asyncio.sleep(0.5 if request.params.max_tokens < 20 else 600.0)

    flags = ["--requests", "3", "--rate", "50", "--prompt-mean", "20", "--output-mean", "4", "--flood", "4"]
    flags += ["--flood-prompt-mean", "20", "--flood-output-mean", "60", "--vocab-size", "400", "--pairs", "1"]
    with served(fake_engine(pace=pace), ServerConfig(service_classes=CLASSES)) as url:
        monkeypatch.setattr(sys, "argv", ["x", "class", "--base-url", url, *flags, "--service-tier", "soon"])
        main()
    first, ttft, *_, last = capsys.readouterr().out.splitlines()
    assert first == "soon over no class, 4 clients, 1 pairs"
    times = re.fullmatch(r"  TTFT P50: (\S+) -> (\S+) ms, \S+ \(\S+ to \S+\)", ttft)
    assert times is not None
    assert float(times[1]) >= 500.0
    assert float(times[2]) > 0.0
    assert last == "the server's count of soon: 3 kept"


def test_sides_take_turns_at_being_first(capsys: pytest.CaptureFixture[str]) -> None:
    order: list[str] = []

    async def measure(name: str) -> list[RequestRecord]:
        order.append(name)
        return []

    asyncio.run(compare("a title", partial(measure, "without"), partial(measure, "beside"), 3))
    assert order == ["without", "beside", "beside", "without", "without", "beside"]
    assert capsys.readouterr().out == "a title, 3 pairs\n"
