"""What a start finds out of its programs is kept for the next one, and found out again where it is not whole."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxgen.core.step_plan import StepPlan
from jaxgen.engine.engine import Engine
from jaxgen.engine.start import narrow, warm_up
from jaxgen.engine.start.build import build_engine
from jaxgen.engine.start.findings import Findings, read_findings, write_findings
from jaxgen.engine.start.narrow import NarrowResult
from jaxgen.engine.start.step_time_probe import StepSamples
from jaxgen.scheduling.cost_model import StepSample
from tests.support.engines import LLAMA, compiled_step, engine_config, params_of

CONFIG = replace(engine_config(token_budget=32, max_num_seqs=8), narrow_width=8)
CHECKS = ("check_finite", "compare", "measure_step_time")


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of checks and measurements, as they are made."""
    made: list[str] = []

    def noted(name: str) -> Any:
        work = getattr(warm_up, name)

        def call(*args: Any) -> Any:
            made.append(name)
            return work(*args)

        return call

    for name in CHECKS:
        monkeypatch.setattr(warm_up, name, noted(name))
    return made


def start(findings: Path | None) -> Engine:
    return build_engine(
        LLAMA, CONFIG, params_of(LLAMA), frozenset(), compiled=compiled_step(LLAMA, CONFIG), findings=findings
    )


def test_the_next_start_takes_what_this_one_found(
    tmp_path: Path, done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(narrow, "CLEARLY_FASTER", np.inf)
    first = start(tmp_path / "found.json")
    assert done == [*CHECKS]
    second = start(tmp_path / "found.json")
    assert done == [*CHECKS]
    assert second.runner.uses_narrow(StepPlan(()))
    assert second.stats().pace == first.stats().pace
    start(None)
    assert done == [*CHECKS, *CHECKS]


def test_a_program_that_gave_other_bits_stays_unused(tmp_path: Path, done: list[str]) -> None:
    path = tmp_path / "found.json"
    samples = (StepSample(1, 0, 0.01), StepSample(8, 0, 0.02))
    write_findings(path, Findings(NarrowResult(equal=False, ratio=0.5), StepSamples(samples, ())))
    assert not start(path).runner.uses_narrow(StepPlan(()))
    assert done == []


def test_findings_are_read_as_they_were_written(tmp_path: Path) -> None:
    found = Findings(
        NarrowResult(equal=True, ratio=0.1), StepSamples((StepSample(3, 2, 0.1),), (StepSample(1, 0, 0.3),))
    )
    for one in (found, replace(found, narrow=None), replace(found, slow_starts=2)):
        write_findings(tmp_path / "found.json", one)
        assert read_findings(tmp_path / "found.json") == one
    assert read_findings(tmp_path / "others.json") is None
    assert read_findings(None) is None


def compared(monkeypatch: pytest.MonkeyPatch, done: list[str], ratio: float) -> None:
    """Let comparisons give this ratio from here on."""

    def compare(*_: Any) -> NarrowResult:
        done.append("compare")
        return NarrowResult(equal=True, ratio=ratio)

    monkeypatch.setattr(warm_up, "compare", compare)


def test_a_program_that_was_a_little_too_slow_is_timed_once_more(
    tmp_path: Path, done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    compared(monkeypatch, done, narrow.CLEARLY_FASTER + 0.01)
    for expected in ([*CHECKS], ["compare"], [], []):
        del done[:]
        assert not start(tmp_path / "found.json").runner.uses_narrow(StepPlan(()))
        assert done == expected


def test_a_program_that_is_fast_enough_at_the_second_time_is_used(
    tmp_path: Path, done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "found.json"
    compared(monkeypatch, done, narrow.CLEARLY_FASTER + 0.01)
    start(path)
    compared(monkeypatch, done, narrow.CLEARLY_FASTER)
    for expected in (["compare", "measure_step_time"], []):
        del done[:]
        assert start(path).runner.uses_narrow(StepPlan(()))
        assert done == expected


def test_a_program_that_is_clearly_slower_is_not_timed_again(
    tmp_path: Path, done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    compared(monkeypatch, done, narrow.CLEARLY_SLOWER)
    for expected in ([*CHECKS], []):
        del done[:]
        assert not start(tmp_path / "found.json").runner.uses_narrow(StepPlan(()))
        assert done == expected


def test_a_damaged_file_is_found_out_again(
    tmp_path: Path, done: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(narrow, "CLEARLY_FASTER", np.inf)
    path = tmp_path / "found.json"
    start(path)
    path.write_bytes(path.read_bytes().replace(b"true", b"True"))
    del done[:]
    with caplog.at_level(logging.WARNING):
        start(path)
    assert done == [*CHECKS]
    assert f"{path} is damaged: the programs are checked and timed again" in caplog.text
    assert read_findings(path) is not None
