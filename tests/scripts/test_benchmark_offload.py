"""The benchmark of streamed decoding: its records, page and comparisons; in the full run also what it measures, with
models small enough for a test."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from math import inf
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import pytest

from jaxgen.kernels.choice import REFERENCE
from jaxgen.layerwise.rates import transfer_all
from scripts.offload import parts as parts_module
from scripts.offload.__main__ import DOCS
from scripts.offload.bench import Bench, Mode
from scripts.offload.generation import Generation
from scripts.offload.modes import Measured, compare
from scripts.offload.page import PAGE, reached, write_page
from scripts.offload.parts import PARTS, Case, Parts, run_part
from scripts.offload.restore import POLICIES
from scripts.offload.results import Record, read_all, rounded, write_record
from scripts.offload.settings import SMALL_SETTING, SMOKE, Setting, llama, projection_part
from scripts.offload.smoke import smoke

TINY = replace(
    SMOKE,
    model=replace(
        SMOKE.model,
        vocab_size=64,
        hidden_size=32,
        embed_size=32,
        intermediate_size=64,
        num_layers=2,
        num_heads=2,
        num_kv_heads=2,
        head_dim=16,
    ),
    block_size=4,
    token_budget=16,
    batch=2,
    larger_batch=3,
    prompts=(12, 16),
    calibrated=(8, 20),
    generate=(4,),
    columns=2,
    column_batch=2,
    column_prompts=(12, 16),
    column_steps=2,
    restored=(llama(2, 1, 16, 2, 64, "float32"),),
    restored_tokens=256,
    restored_budget=32,
    links=(4e9, 32e9),
)
LINK = 2e6
NOT_RUN = {"prompt": 512, "batch": 32, "not_run": "no room"}
Found = dict[str, list[dict[str, Any]]]
measuring = pytest.mark.full
"""For tests that compile everything which a hand-run measurement needs."""


@pytest.fixture(scope="module")
def parts() -> Iterator[Parts]:
    """Over links that need no measurement: a tiny model's projection is lost in noise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts_module, "scaled_link", lambda bench, part: LINK)
        patch.setattr(parts_module, "kernels_here", lambda model, block_size: REFERENCE)
        yield Parts(TINY, REFERENCE, repeats=1)


@pytest.fixture(scope="module")
def bench(parts: Parts) -> Bench:
    return parts.bench


@pytest.fixture(scope="module")
def found(parts: Parts) -> Found:
    """The rows of all parts."""
    return {name: list(run_part(parts, name, [], inf)) for name in PARTS}


@measuring
def test_the_smoke_says_what_it_measured(bench: Bench) -> None:
    summary = smoke(bench, LINK, repeats=1)
    assert summary["tokens_equal"] is True
    assert summary["bandwidth"] == LINK
    for name in ("latency_ratio", "throughput_ratio", "prediction_error_median"):
        assert summary[name] > 0
    assert 0 <= summary["split"] <= 1
    assert summary["repeats"] == 1
    assert [case["prompt"] for case in summary["latency"]] == list(TINY.prompts)
    assert set(summary["latency"][0]["seconds"]) == {"full", "overlapped", "fixed", "planned"}


@measuring
def test_the_smoke_tells_tokens_that_differ(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = bench.expected

    def wrong(*case: Any) -> list[list[int]]:
        return [tokens[::-1] for tokens in expected(*case)]

    monkeypatch.setattr(bench, "expected", wrong)
    assert smoke(bench, LINK, repeats=1)["tokens_equal"] is False


def generation(seconds: float, tokens: list[int]) -> Generation:
    """Of two steps."""
    return Generation([tokens], [seconds, seconds], [(20, 10), (21, 10)], idle_seconds=seconds)


@pytest.mark.parametrize("tokens", [[5, 6], [5, 7]])
def test_modes_are_compared(tokens: list[int]) -> None:
    runs = {False: generation(2.0, [5, 6]), True: generation(1.0, tokens)}
    measured = Measured(lambda mode: runs[mode.overlap], lambda mode, streamed, project: 1.25, step_tokens=3)
    modes = {"overlapped": Mode(transfer_all, overlap=False), "planned": Mode(transfer_all)}
    found = compare(measured, modes, repeats=2)
    assert found["tokens_equal"] is (tokens == [5, 6])
    assert found["tokens"] == [[5, 6]]
    assert found["seconds"] == found["fastest"] == {"overlapped": 4.0, "planned": 2.0}
    assert found["ratios"] == [0.5, 0.5]
    assert found["split"] == pytest.approx(10 / 21)
    assert found["tokens_per_second"] == {"overlapped": 1.5, "planned": 3.0}
    assert found["idle_share"] == {"overlapped": 0.5, "planned": 0.5}
    assert found["predicted_seconds"] == {"overlapped": 2.5, "planned": 2.5}
    assert found["prediction_errors"] == pytest.approx({"overlapped": 0.375, "planned": 0.25})


@measuring
def test_latency_has_a_row_for_every_case(found: Found) -> None:
    assert [(row["prompt"], row["generate"]) for row in found["latency"]] == [(12, 4), (16, 4)]
    assert all(row["tokens_equal"] for row in found["latency"])


def test_a_part_prints_its_rows_and_measures_no_case_twice_or_late(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = [Case({"prompt": prompt}, lambda: {"seconds": 1.0}) for prompt in (12, 16, 20, 24)]
    monkeypatch.setitem(PARTS, "latency", lambda parts: iter(cases))
    times = iter((1.0, 1.9, 2.0))
    known: list[dict[str, Any]] = [{"prompt": 16, "seconds": 9.0}, {"prompt": 20, "not_run": "no room"}]
    rows = list(run_part(Parts(TINY, REFERENCE, repeats=1), "latency", known, 2.0, lambda: next(times)))
    assert rows == [
        {"prompt": 12, "seconds": 1.0},
        {"prompt": 16, "seconds": 9.0},
        {"prompt": 20, "seconds": 1.0},
        {"prompt": 24, "not_run": "the time was up"},
    ]
    assert [json.loads(line)["prompt"] for line in capsys.readouterr().out.splitlines()] == [12, 20]


@measuring
def test_columns_have_the_tokens_of_the_whole_step(found: Found) -> None:
    rows = found["throughput"]
    assert [(row["prompt"], row["columns"]) for row in rows] == [(12, 2), (16, 2)]
    for row in rows:
        assert row["tokens_equal"]
        assert set(row["seconds"]) == {"overlapped", "fixed", "planned"}
        assert row["tokens_per_second"]["planned"] == pytest.approx(2 * 2 * 2 / row["seconds"]["planned"])


def test_a_case_too_large_for_the_host_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts_module, "HOST_PART", 0.0)
    monkeypatch.setattr(Parts, "columns", SimpleNamespace(setting=TINY.of_column(), bench=None))
    rows = list(run_part(Parts(TINY, REFERENCE, repeats=1), "throughput", [], inf))
    assert [row["prompt"] for row in rows] == [12, 16]
    assert all("GiB" in row["not_run"] for row in rows)


@measuring
def test_each_part_of_the_scheme_is_left_out_once(found: Found) -> None:
    rows = found["ablation"]
    assert [row["batch"] for row in rows] == [2, 3]
    for row in rows:
        assert set(row["seconds"]) == {"planned", "planner off", "scheduler off", "runtime off", "all off"}
        assert row["tokens_equal"]
        assert all(0 <= share < 1 for share in row["idle_share"].values())
        assert row["idle_share"]["all off"] > 0


@measuring
def test_links_stand_for_the_papers(found: Found) -> None:
    rows = found["links"]
    assert [row["papers_link"] for row in rows] == [4e9, 32e9]
    assert [row["link"] for row in rows] == [LINK * projection_part(link) for link in (4e9, 32e9)]


def test_the_papers_link_is_scaled() -> None:
    assert projection_part(32e9) == pytest.approx(0.42, abs=1e-3)


@measuring
def test_contexts_come_back_as_predicted_or_not(found: Found) -> None:
    *rows, halved = found["restore"]
    for row in rows:
        assert row["model"] == "GQA"
        assert set(row["seconds"]) == set(row["predicted_seconds"]) == set(POLICIES)
        assert 0 <= row["computed_tokens"] < 256
    assert rows[0]["measured_link"] == pytest.approx(rows[0]["link"], rel=0.5)
    assert len(halved["halved_errors"]) > 1


@measuring
def test_the_page_and_its_plot_show_every_part(found: Found, tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    record = Record("tiny", "A Device, 2 cores")
    for name, rows in found.items():
        record.put(name, rows, repeats=1, seconds=1.0)
    record.put("throughput", [*found["throughput"], NOT_RUN], repeats=1, seconds=1.0)
    write_record(tmp_path / "results", record)
    assert [one.parts for one in read_all(tmp_path / "results")] == [rounded(record.parts)]
    write_page(tmp_path)
    page = (tmp_path / "offload-results.md").read_text()
    assert f"{median(found['latency'][0]['ratios']):.2f}" in page
    assert "Not run: prompt 512, batch 32; no room." in page
    assert "Not run.\n" not in page
    for line in page.splitlines():
        assert "nan" not in line
    assert (tmp_path / "offload-tiny-a-device-2-cores.png").stat().st_size > 10_000


def test_the_page_is_that_of_the_records(tmp_path: Path) -> None:
    """Of all parts, as docs/results has them; and with a case that was not run."""
    shutil.copytree(DOCS / "results", tmp_path / "results")
    write_page(tmp_path)
    assert (tmp_path / PAGE).read_text() == (DOCS / PAGE).read_text()
    record, *others = read_all(tmp_path / "results")
    assert set(record.parts) == set(PARTS)
    assert not others
    assert (tmp_path / f"{record.stem}.png").stat().st_size > 10_000
    record.put("throughput", [*record.rows("throughput"), NOT_RUN], repeats=1, seconds=1.0)
    write_record(tmp_path / "results", record)
    assert [one.parts for one in read_all(tmp_path / "results")] == [rounded(record.parts)]
    write_page(tmp_path)
    assert "Not run: prompt 512, batch 32; no room." in (tmp_path / PAGE).read_text()


def test_the_page_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    write_page(tmp_path)
    assert "Nothing has been measured" in (tmp_path / "offload-results.md").read_text()
    write_record(tmp_path / "results", Record("tiny", "A Device"))
    write_page(tmp_path)
    assert (tmp_path / "offload-results.md").read_text().count("Not run.\n") == len(PARTS)


@pytest.mark.parametrize(("measured", "share"), [([0.75], 0.5), ([0.4, 0.5, 0.9], 1.0), ([1.1], -0.2)])
def test_what_was_reached_of_the_ideal_gain(measured: list[float], share: float) -> None:
    row = {"ratios": measured, "predicted_seconds": {"planned": 2.0, "overlapped": 4.0}}
    assert reached(row, "overlapped") == pytest.approx(share)


@pytest.mark.parametrize("setting", [SMOKE, SMALL_SETTING, SMALL_SETTING.of_column()])
def test_the_cache_holds_the_longest_case(setting: Setting) -> None:
    config = setting.config()
    assert config.cache.num_slots >= setting.larger_batch * config.scheduler.max_model_len
    assert config.scheduler.max_model_len >= max(setting.prompts) + max(setting.generate)
