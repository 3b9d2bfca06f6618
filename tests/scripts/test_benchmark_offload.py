"""The benchmark of streamed decoding: its comparisons; in the full run also what it measures, with
models small enough for a test."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from jaxgen.kernels.choice import REFERENCE
from jaxgen.layerwise.planning.rates import transfer_all
from scripts.offload import parts as parts_module
from scripts.offload.bench import Bench, Mode
from scripts.offload.generation import Generation
from scripts.offload.modes import Measured, compare
from scripts.offload.parts import PARTS, Parts
from scripts.offload.restore import POLICIES
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
    restored=(llama(2, 1, 16, 2, 64, "float32"),),
    restored_tokens=256,
    restored_budget=32,
    links=(4e9, 32e9),
)
LINK = 2e6
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
    return {name: [case.name | case.measure() for case in part(parts)] for name, part in PARTS.items()}


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


@measuring
def test_each_part_of_the_scheme_is_left_out_once(found: Found) -> None:
    rows = found["ablation"]
    assert [row["batch"] for row in rows] == [2, 3]
    for row in rows:
        assert set(row["seconds"]) == {"planned", "planner off", "scheduler off", "all off"}
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


@pytest.mark.parametrize("setting", [SMOKE, SMALL_SETTING])
def test_the_cache_holds_the_longest_case(setting: Setting) -> None:
    config = setting.config()
    assert config.cache.num_slots >= setting.larger_batch * config.scheduler.max_model_len
    assert config.scheduler.max_model_len >= max(setting.prompts) + max(setting.generate)
