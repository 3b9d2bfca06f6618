"""python -m scripts.gpu: the arithmetic of its rows and of its report."""

import fnmatch
import json
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxgen.models.model import abstract_params
from scripts.gpu.result.plan import TOTAL_SECONDS, PlannedRow
from scripts.gpu.result.report import COPY_RATE, MATRIX_RATE, Report, Row, State
from scripts.gpu.result.target import describe
from scripts.gpu.rows import ceilings, clocks, families, parity, products, repeatability, step_times, timing, tools
from scripts.gpu.rows.bench import UnavailableError
from scripts.gpu.rows.listing import rows_of
from scripts.gpu.rows.needs import served_rows
from scripts.gpu.rows.sizes import DRY, FULL
from scripts.gpu.rows.work import StepLoad
from tests.support.device_benches import TINY_OPT, bench
from tests.support.paths import ROOT

MAX_CHECKOUT_BYTES = 40 * 2**20
ROWS = [PlannedRow(name, "part", "") for name in ("copies", "multiplies", "broken")]


def test_floors_are_of_the_ceilings_that_the_file_has(tmp_path: Path) -> None:
    report = Report(tmp_path / "result.json", {"device": "NVIDIA H200", "call": {}}, ROWS, {})
    report.record(Row(name="copies", state=State.RAN, seconds=4.0, bytes=200, flops=1000))
    report.record(Row(name="multiplies", state=State.RAN, seconds=4.0, bytes=200, flops=3000), {COPY_RATE: 50.0})
    report.record(Row(name="broken", state=State.RAISED, why="RuntimeError: out"), {COPY_RATE: 100.0, MATRIX_RATE: 1e3})
    rows = json.loads(report.path.read_text())["rows"]
    assert [(row["floor_seconds"], row["fraction"]) for row in rows] == [(2.0, 0.5), (3.0, 0.75), (None, None)]
    assert report.failures == ["broken: RuntimeError: out"]


def test_numbers_that_json_has_not_are_words(tmp_path: Path) -> None:
    report = Report(tmp_path / "result.json", {"device": "NVIDIA H200", "call": {}}, ROWS, {})
    report.record(Row(name="copies", state=State.RAN, detail={"largest_error": float("nan"), "all": [float("inf")]}))
    assert json.loads(report.path.read_text(), parse_constant=pytest.fail)["rows"][0]["detail"] == {
        "largest_error": "nan",
        "all": ["inf"],
    }


@pytest.mark.parametrize(("kind", "rate", "fails"), [("NVIDIA H200", 3.8e12, True), ("NVIDIA H200", 4.2e12, False)])
def test_an_h200_must_copy_fast(kind: str, rate: float, fails: bool) -> None:
    assert (ceilings.copy_failure(kind, rate) is not None) is fails
    assert ceilings.copy_failure("NVIDIA A100", 1.5e12) is None


@pytest.mark.parametrize(
    ("function", "says"),
    [(jax.jit(lambda x: x + 1, donate_argnums=0), "shares memory"), (jax.jit(lambda x: x[:1]), "writes 64 bytes")],
)
def test_what_does_not_copy_is_no_ceiling(function: jax.stages.Wrapped, says: str) -> None:
    with pytest.raises(RuntimeError, match=says):
        ceilings.measure_copy(DRY, jnp.zeros((8, 16)), function)


def test_a_call_has_products_for_longer_than_its_dispatch() -> None:
    """2 ms by the ceilings: for 64 tokens 34.6 MB at 4 TB/s, for 2,048 tokens 68.7 GFLOP at 800 TFLOP/s."""
    on_device = bench(replace(DRY, pallas=True), ceilings={COPY_RATE: 4e12, MATRIX_RATE: 8e14})
    assert [products._count(on_device, tokens, 4096, 4096) for tokens in (64, 2048)] == [232, 24]
    assert products._count(on_device, 8, 64, 64) == products.MOST_PRODUCTS


def test_the_share_of_the_host_shows_which_was_the_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that a dispatch moves by 1 and a wait by 60: of 80 seconds 20 are the host's; without a wait all are."""
    now = [0.0]

    def pass_(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    for wait, expected in ((60.0, (4.0, 0.25)), (0.0, (1.0, 1.0))):
        waited = SimpleNamespace(block_until_ready=lambda _, wait=wait: pass_(wait))
        monkeypatch.setattr(timing, "jax", waited)
        assert timing.back_to_back(lambda: pass_(1.0), 3) == expected


@pytest.mark.parametrize(
    ("own", "xla", "fails"), [(0.01, 0.01, False), (0.014, 0.01, False), (0.02, 0.01, True), (float("nan"), 0.01, True)]
)
def test_logits_of_other_families_are_about_as_exact_as_xlas(own: float, xla: float, fails: bool) -> None:
    assert (families.failure(own, xla) is not None) is fails


def test_a_wrong_token_or_logit_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parity, "greedy_tokens", lambda *_: ([[0]] * 3, None))
    monkeypatch.setattr(parity, "golden_answers", lambda _: golden_like(3))
    monkeypatch.setattr(parity, "relative_logit_error", lambda *_: float("nan"))
    assert [check(bench(), "llama").failure is None for check in (parity.greedy, parity.logits)] == [False, False]


def golden_like(count: int) -> list[Any]:
    class Answer:
        greedy = (1,)

    return [Answer() for _ in range(count)]


def test_only_a_run_that_differs_from_itself_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(range(100))

    class Unsteady:
        def __init__(self, *_: object):
            self.requests: list[Any] = []
            self.expected = self.answers(self.requests)

        def answers(self, requests: object) -> dict[str, list[tuple[int, int]]]:
            return {"r0": [(7, next(answers))]}

    monkeypatch.setattr(repeatability, "Subject", Unsteady)
    monkeypatch.setattr(repeatability, "_known", repeatability._known.__wrapped__)
    reference = repeatability.reference(bench())().detail
    found = {name: repeatability.compare(bench(), name)() for name in ("run_to_run", "reversed")}
    assert [one.failure is None for one in found.values()] == [False, True]
    assert {(one.detail["other_tokens"], one.detail["other_logprob_bits"]) for one in found.values()} == {(0, 1)}
    results = {"repeatability_reference": {"state": "ran", "detail": reference}}
    again = repeatability.compiled_again(bench(results=results))()
    assert (again.detail["equal"], again.failure) == (False, None)


def test_step_cost_of_llama() -> None:
    """Worked out by hand for the tiny shape: 4 decodes at 96 tokens and a prompt of 12."""
    load = DRY.steps
    config = step_times.step_config(load, 16, 5)
    plan = step_times.full_plan(load, config)
    assert [(chunk.start, chunk.length) for chunk in plan.chunks] == [(95, 1)] * 4 + [(0, 12)]
    assert len({id_ for chunk in plan.chunks for id_ in chunk.sequence.blocks.table}) == config.cache.num_blocks
    moved, flops = step_times.step_cost(load.model, config, plan)
    per_layer = (4 + 2 * 2) * 16 * 64 + 64 * 64 + 3 * 64 * 128
    norms = (2 * 2 + 1) * 64
    weights = 2 * per_layer + norms + 2048 * 64
    kv_token = 2 * 2 * 2 * 16
    assert moved == 2 * (weights + 16 * 64 + kv_token * (4 * 96 + 12 + 16))
    pairs = 4 * 96 + 12 * 13 // 2
    assert flops == 2 * (16 * 2 * per_layer + 5 * 2048 * 64) + 4 * 2 * 4 * 16 * pairs


def test_step_cost_of_opt() -> None:
    """Worked out by hand: 4 decodes at 64 tokens and a prompt of 12; biases, a head that is the embedding, and of the
    table of positions only 16 rows."""
    load = replace(DRY.opt_steps, model=TINY_OPT)
    config = step_times.step_config(load, 16, 5)
    plan = step_times.full_plan(load, config)
    moved, flops = step_times.step_cost(load.model, config, plan)
    matrices = 3 * 64 * 64 + 64 * 64 + 2 * 64 * 256
    biases = 3 * 64 + 64 + 256 + 64
    norms = (2 * 2 + 1) * 2 * 64
    weights = 2 * (matrices + biases) + norms + 512 * 64
    kv_token = 2 * 2 * 4 * 16
    assert moved == 2 * (weights + 16 * 64 + 16 * 64 + kv_token * (4 * 64 + 12 + 16))
    pairs = 4 * 64 + 12 * 13 // 2
    assert flops == 2 * (16 * 2 * matrices + 5 * 512 * 64) + 4 * 2 * 4 * 16 * pairs


@pytest.mark.parametrize(
    ("name", "parameters", "read_by_rows", "rows", "kv_token", "layer"),
    [
        ("steps", 8_030_261_248, 128_256 * 4096, 1, 131_072, 4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14_336),
        ("opt_steps", 6_658_473_984, 2050 * 4096, 2, 524_288, 4 * 4096 * 4096 + 2 * 4096 * 16_384),
    ],
)
def test_step_cost_of_the_real_shapes(
    name: str, parameters: int, read_by_rows: int, rows: int, kv_token: int, layer: int
) -> None:
    """A step of 256 tokens, from the published numbers of parameters and the sizes of the matrices."""
    load: StepLoad = getattr(FULL, name)
    config = step_times.step_config(load, 256, served_rows(256))
    plan = step_times.full_plan(load, config)
    assert sum(p.size for p in abstract_params(load.model).values()) == parameters
    moved, flops = step_times.step_cost(load.model, config, plan)
    kv = (32 * load.context + 224 + 256) * kv_token
    assert moved == 2 * (parameters - read_by_rows) + rows * 256 * 4096 * 2 + kv
    pairs = 32 * load.context + 224 * 225 // 2
    assert flops == 2 * 256 * 32 * layer + 2 * 33 * load.model.vocab_size * 4096 + 32 * 4 * 32 * 128 * pairs


def test_the_knee_is_the_budget_with_the_most_power() -> None:
    """Tokens / seconds ** 2 by hand: 64, 113.8, 128, 71; the roofline has 1000 * 2 / (2 * 5) = 200 tokens."""
    times = {64: 1.0, 256: 1.5, 512: 2.0, 1136: 4.0}
    results: dict[str, Any] = {
        f"step_x_{n}": {"state": "ran", "seconds": t, "bytes": n, "flops": n, "detail": {}} for n, t in times.items()
    }
    results["step_x_2048"] = {"state": "lost"}
    found = step_times.at_knee(bench(results=results, ceilings={MATRIX_RATE: 1000.0, COPY_RATE: 5.0}))
    assert (found.seconds, found.bytes) == (2.0, 512)
    assert found.detail["token_budget"] == 512
    assert found.detail["roofline_token_budget"] == 256
    assert found.detail["tokens_per_second"][256] == pytest.approx(256 / 1.5)


def test_the_step_that_a_server_has_is_compiled_once() -> None:
    load, budget = FULL.steps, FULL.served_budget
    config = step_times.config_of(FULL, load, budget)
    assert config == step_times.served_config(FULL)
    assert config.scheduler.max_num_seqs == 256
    for rows in FULL.served_decodes:
        plan = step_times.full_plan(replace(load, rows=rows), config, prompt=False)
        assert [(chunk.start, chunk.length) for chunk in plan.chunks] == [(load.context - 1, 1)] * rows
        assert len({block for chunk in plan.chunks for block in chunk.sequence.blocks.table}) == rows * 16
    for sampling in step_times.SAMPLING:
        plan = step_times.full_plan(load, config, sampling)
        ids = [block for chunk in plan.chunks for block in chunk.sequence.blocks.table]
        assert len(set(ids)) == len(ids)
        params = [chunk.sequence.params for chunk in plan.chunks]
        assert (params[0].logprobs is not None, params[1].top_p < 1) == (sampling == "logprobs", sampling == "top_p")


NCU = """==PROF== Connected
"ID","Process ID","Kernel Name","gpu__time_duration.sum","launch__registers_per_thread","unknown"
"","","","usecond","register/thread",""
"0","7","attention_of_pieces","512.3","168","1"
"1","7","attention_combine","9.1","64","1"
"""


def test_what_tools_print() -> None:
    first, second = tools.kernels_in(NCU)
    assert first == {
        "kernel": "attention_of_pieces",
        "gpu__time_duration.sum": "512.3 usecond",
        "launch__registers_per_thread": "168 register/thread",
    }
    assert second["kernel"] == "attention_combine"
    assert tools.kernels_in("==ERROR== nothing was profiled") == []
    assert tools.errors_in("========= ERROR SUMMARY: 3 errors") == 3
    assert tools.errors_in("========= RACECHECK SUMMARY: 5 hazards displayed (2 errors, 3 warnings)") == 2
    with pytest.raises(UnavailableError, match="Device not supported"):
        tools.errors_in("========= Error: Device not supported")


def test_clocks_of_lines_of_which_the_last_is_cut() -> None:
    found = clocks.summary("1980, 3201, 690.1, 60\n1755, 3201, 700.0, 62\n1770, 3201, 699.0, 64\n17")
    assert found["samples"] == 3
    assert (found["clocks.sm"], found["power.draw"]) == ([1755, 1770, 1980], [690.1, 699.0, 700.0])
    assert "missing" in clocks.summary("[N/A], 1, 2, 3\n")


def test_the_target_names_what_it_could_not_get() -> None:
    found = describe(jax.devices("cpu")[0])
    assert "gpu_target_config" in found["missing"]
    assert found.keys() >= {"platform_version", "missing"}


def test_the_checkout_stays_small() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    total = sum(path.lstat().st_size for path in files if path.exists())
    assert len(files) > 100
    assert total < MAX_CHECKOUT_BYTES


def test_the_documented_order_names_rows_and_fits_into_its_time() -> None:
    """Fifteen minutes, with the start of a machine; no row may be lost because its call ends."""
    page = (ROOT / "docs" / "reports" / "2026-11-28-gpu-experiments.md").read_text().split("## Fifteen minutes")[1]
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("|")
    ]
    planned = {row.name: row for row in rows_of(FULL)}
    calls: dict[str, int] = {}
    named: set[str] = set()
    for call, rows, seconds, _ in lines[2:-1]:
        calls[call] = calls.get(call, 0) + int(seconds)
        for pattern in rows.strip("`").split(","):
            found = fnmatch.filter(planned, pattern)
            assert found, pattern
            named |= {*found}
    assert {one for name in named for one in planned[name].reads} <= named
    assert max(calls.values()) < TOTAL_SECONDS
    assert sum(calls.values()) == int(lines[-1][2]) < 15 * 60 - 60
