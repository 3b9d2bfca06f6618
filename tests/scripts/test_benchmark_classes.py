"""python -m scripts.measure.classes at a server whose steps take what a fake engine's pace says."""

import asyncio
import sys

import pytest

from jaxgen.core.request import Request
from jaxgen.core.service_class import ServiceClass
from jaxgen.server.config import ServerConfig
from scripts.measure.classes import main
from tests.support.benchmark_runs import served
from tests.support.server_app import fake_engine

CLASSES = (ServiceClass(name="soon", first_token_seconds=0.2, inter_token_seconds=9.0),)


def test_what_a_class_buys_is_shown_and_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the class a first token takes 0.5 s, and the flood never ends."""

    async def pace(request: Request, index: int) -> None:
        if request.service.name != "soon" and index == 0:
            await asyncio.sleep(0.5 if request.params.max_tokens < 20 else 600.0)

    flags = ["--requests", "3", "--rate", "50", "--prompt-mean", "20", "--output-mean", "4", "--flood", "4"]
    flags += ["--flood-prompt-mean", "20", "--flood-output-mean", "60", "--vocab-size", "400"]
    with served(fake_engine(pace=pace), ServerConfig(service_classes=CLASSES)) as url:
        monkeypatch.setattr(sys, "argv", ["x", "--base-url", url, *flags, "--service-tier", "soon"])
        main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines[-3:]] == [
        "all, without a class",
        "all, soon",
        "the server's count of soon",
    ]
    assert "9 of 9 done" in lines[-3]
    assert "9 of 9 done" in lines[-2]
    assert lines[-1].endswith(": 9 kept")
