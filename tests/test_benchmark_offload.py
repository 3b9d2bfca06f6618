"""The benchmark of streamed decoding, with models small enough for a test."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from jaxgen.kernels import REFERENCE
from scripts.offload_benchmark import parts as parts_module
from scripts.offload_benchmark.bench import Bench
from scripts.offload_benchmark.parts import PARTS, Parts, run_part
from scripts.offload_benchmark.restore import POLICIES
from scripts.offload_benchmark.settings import SMALL_SETTING, SMOKE, Setting, llama, projection_part
from scripts.offload_benchmark.smoke import smoke

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


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench(TINY, REFERENCE)


@pytest.fixture(scope="module")
def parts() -> Iterator[Parts]:
    """Over links that need no measurement: a tiny model's projection is lost in noise."""
    parts = Parts(TINY, REFERENCE, repeats=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts_module, "scaled_link", lambda bench, part: LINK)
        patch.setattr(parts_module, "kernels_here", lambda model, block_size: REFERENCE)
        yield parts


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


def test_tokens_that_differ_are_told(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = bench.expected

    def wrong(*case: Any) -> list[list[int]]:
        return [tokens[::-1] for tokens in expected(*case)]

    monkeypatch.setattr(bench, "expected", wrong)
    assert smoke(bench, LINK, repeats=1)["tokens_equal"] is False


def test_latency_has_a_row_for_every_case(parts: Parts, capsys: pytest.CaptureFixture[str]) -> None:
    rows = run_part(parts, "latency")
    assert [(row["prompt"], row["generate"]) for row in rows] == [(12, 4), (16, 4)]
    assert all(row["tokens_equal"] for row in rows)
    assert [json.loads(line)["prompt"] for line in capsys.readouterr().out.splitlines()] == [12, 16]


def test_columns_have_the_tokens_of_the_whole_step(parts: Parts) -> None:
    rows = run_part(parts, "throughput")
    assert [(row["prompt"], row["columns"]) for row in rows] == [(12, 2), (16, 2)]
    for row in rows:
        assert row["tokens_equal"]
        assert set(row["seconds"]) == {"overlapped", "fixed", "planned"}
        assert row["tokens_per_second"]["planned"] == pytest.approx(2 * 2 * 2 / row["seconds"]["planned"])


def test_a_case_too_large_for_the_host_is_not_run(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts_module, "HOST_PART", 0.0)
    assert all("GiB" in row["not_run"] for row in run_part(parts, "throughput"))


def test_each_part_of_the_scheme_is_left_out_once(parts: Parts) -> None:
    rows = run_part(parts, "ablation")
    assert [row["batch"] for row in rows] == [2, 3]
    for row in rows:
        assert set(row["seconds"]) == {"planned", "planner off", "scheduler off", "runtime off", "all off"}
        assert row["tokens_equal"]
        assert all(0 <= share < 1 for share in row["idle_share"].values())
        assert row["idle_share"]["all off"] > 0


def test_links_stand_for_the_papers(parts: Parts) -> None:
    rows = run_part(parts, "links")
    assert [row["papers_link"] for row in rows] == [4e9, 32e9]
    assert [row["link"] for row in rows] == [LINK * projection_part(link) for link in (4e9, 32e9)]
    assert projection_part(32e9) == pytest.approx(0.42, abs=1e-3)


def test_contexts_come_back_as_predicted_or_not(parts: Parts) -> None:
    *rows, halved = run_part(parts, "restore")
    for row in rows:
        assert row["model"] == "GQA"
        assert set(row["seconds"]) == set(row["predicted_seconds"]) == set(POLICIES)
        assert 0 <= row["computed_tokens"] < 256
    assert rows[0]["measured_link"] == pytest.approx(rows[0]["link"], rel=0.5)
    assert len(halved["halved_errors"]) > 1


def test_there_is_a_test_of_every_part() -> None:
    assert set(PARTS) == {"latency", "throughput", "ablation", "links", "restore"}


@pytest.mark.parametrize("setting", [SMOKE, SMALL_SETTING, SMALL_SETTING.of_column()])
def test_the_cache_holds_the_longest_case(setting: Setting) -> None:
    config = setting.config()
    assert config.cache.num_slots >= setting.larger_batch * config.scheduler.max_model_len
    assert config.scheduler.max_model_len >= max(setting.prompts) + max(setting.generate)
