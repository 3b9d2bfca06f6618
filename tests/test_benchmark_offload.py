"""The benchmark of streamed decoding, with a model small enough for a test."""

from dataclasses import replace
from typing import Any

import pytest

from jaxgen.kernels import REFERENCE
from scripts.offload_benchmark.bench import Bench
from scripts.offload_benchmark.settings import SMOKE, Setting
from scripts.offload_benchmark.tables import paper, smoke

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
    links=(2e6,),
)


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench(TINY, REFERENCE)


def test_the_smoke_says_what_it_measured(bench: Bench) -> None:
    summary = smoke(bench, 2e6, repeats=1)
    assert summary["tokens_equal"] is True
    assert summary["bandwidth"] == 2e6
    for name in ("latency_ratio", "throughput_ratio", "prediction_error_median"):
        assert summary[name] > 0
    assert 0 <= summary["split"] <= 1
    assert [case["prompt"] for case in summary["latency"]] == list(TINY.prompts)
    assert set(summary["latency"][0]["seconds"]) == {"full", "overlapped", "fixed", "planned"}


def test_tokens_that_differ_are_told(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = bench.expected

    def wrong(*case: Any) -> list[list[int]]:
        return [tokens[::-1] for tokens in expected(*case)]

    monkeypatch.setattr(bench, "expected", wrong)
    assert smoke(bench, 2e6, repeats=1)["tokens_equal"] is False


def test_the_papers_table_has_a_row_for_every_case(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    summary = paper(bench, repeats=1)
    assert [(case["link"], case["prompt"]) for case in summary["cases"]] == [(2e6, 12), (2e6, 16)]
    assert all(case["tokens_equal"] for case in summary["cases"])
    assert capsys.readouterr().out.count("\n") == 2


def test_the_cache_holds_the_longest_case() -> None:
    assert isinstance(SMOKE, Setting)
    config = SMOKE.config()
    assert config.cache.num_slots >= SMOKE.larger_batch * config.scheduler.max_model_len
