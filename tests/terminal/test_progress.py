"""Progress is a bar on a terminal, and lines of the log elsewhere."""

import io
import logging
import sys
from threading import Event

import pytest

from jaxgen.terminal import progress as module
from jaxgen.terminal.progress import show_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def make_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    return shown


def test_a_terminal_gets_a_bar_and_no_line(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    terminal = make_terminal(monkeypatch)
    with caplog.at_level(logging.INFO), show_progress("loading weights", 4, "file", bar=True) as advance:
        advance(3)
        advance(1)
    assert "loading weights: 100%" in terminal.getvalue()
    assert "4/4" in terminal.getvalue()
    assert caplog.records == []


@pytest.mark.parametrize("bar", [True, False])
def test_elsewhere_a_line_says_how_long_it_took(
    bar: bool, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.INFO), show_progress("loading weights", 4, "B", bar=bar) as advance:
        advance(4)
    (record,) = caplog.records
    assert record.getMessage().startswith("loading weights took ")
    assert record.getMessage().endswith(" s")
    assert capsys.readouterr() == ("", "")


def test_a_log_in_json_has_no_bar_even_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    terminal = make_terminal(monkeypatch)
    with caplog.at_level(logging.INFO), show_progress("loading weights", 1, "it", bar=False):
        pass
    assert terminal.getvalue() == ""
    assert len(caplog.records) == 1


@pytest.mark.parametrize(("total", "said_last"), [(4, "compiling: 0 s so far, 25 %"), (None, "compiling: 0 s so far")])
def test_long_work_shows_that_it_goes_on(
    total: int | None, said_last: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told = Event()
    said: list[str] = []

    def info(line: str, *values: object) -> None:
        said.append(line % values)
        told.set()

    monkeypatch.setattr(module, "LINE_SECONDS", 0.01)
    monkeypatch.setattr(module.logger, "info", info)
    with show_progress("compiling", total, "step", bar=False) as advance:
        advance(1)
        told.clear()
        assert told.wait(60)
    assert said[-2] == said_last


def test_a_bar_shows_that_work_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    make_terminal(monkeypatch)
    refreshed = Event()
    monkeypatch.setattr(module, "BAR_SECONDS", 0.01)
    monkeypatch.setattr("tqdm.tqdm.refresh", lambda *_, **__: refreshed.set())
    with show_progress("compiling", 4, "step", bar=True):
        refreshed.clear()  # by the first showing
        assert refreshed.wait(120)


def test_work_that_fails_is_not_said_to_be_done(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), pytest.raises(KeyError), show_progress("compiling", 1, "step", bar=False):
        raise KeyError
    assert caplog.records == []
