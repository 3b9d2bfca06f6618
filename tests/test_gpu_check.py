"""scripts/gpu_check.py in a dry run on the CPU, and the arithmetic of its report."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxgen.models import abstract_params
from scripts.device_check import ceilings, step_times
from scripts.device_check.cli import CUT_SHORT, FAILED, exit_status, main
from scripts.device_check.parity import run as run_parity
from scripts.device_check.part import Part, Shared
from scripts.device_check.repeatability import run as run_repeatability
from scripts.device_check.report import COPY_RATE, MATRIX_RATE, Measurement, Report
from scripts.device_check.sizes import DRY, FULL, StepLoad
from scripts.device_check.target import describe

ROOT = Path(__file__).parent.parent
MAX_CHECKOUT_BYTES = 40 * 2**20
ABSENT = (
    *("starlette", "uvicorn", "beartype", "pydantic", "pydantic_core", "configargparse", "psutil", "httpx2", "openai"),
    *("hypothesis", "importlinter", "mypy", "pytest", "platformdirs", "matplotlib", "torch", "server"),
)
SITE = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if any(name == one or name.startswith(one + ".") for one in {absent}):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""


def run_script(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The script, and all processes it starts, where the server's and the tests' packages are not installed."""
    (site / "sitecustomize.py").write_text(SITE.format(absent=ABSENT))
    environment = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_backend_optimization_level=0"}  # compiles sooner
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "gpu_check.py"), *arguments],
        env=os.environ | environment | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def test_dry_run_of_all_parts_without_the_servers_packages(tmp_path: Path) -> None:
    done = run_script(tmp_path, "--out", str(tmp_path / "out"), "--dry-run", "--commit", "c0ffee")
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = (tmp_path / "out").iterdir()
    result = json.loads(path.read_text())
    assert path.name.startswith("cpu-20")
    assert (result["device"], result["commit"], result["dry_run"], result["failures"]) == ("cpu", "c0ffee", True, [])
    assert result["versions"]["jax"] == jax.__version__
    assert "gpu_target_config" in result["target"]["missing"]
    assert {COPY_RATE, MATRIX_RATE, "host_to_device_pinned_bytes_per_second"} <= result["ceilings"].keys()
    rows = {row["name"]: row for row in result["rows"]}
    not_run = {name: row["error"] for name, row in rows.items() if not row["ran"]}
    assert not_run.keys() == {
        *("cudnn_decode_attention_tiny", "torch_sdpa_decode_attention_tiny", "serving_tiny_transformers"),
        *("launches_tiny_16", "launches_tiny_16_without_command_buffers"),
    }
    assert all(error.startswith("unavailable: ") for error in not_run.values())
    attention = rows["decode_attention_tiny"]
    assert attention["bytes"] == 2 * (75 * 2 + 2 * 4) * 16 * 2
    assert attention["flops"] == 4 * 4 * 16 * 75
    assert attention["detail"] == attention["detail"] | {"kernels": "XLA", "largest_error": 0.0}
    step = rows["step_tiny_16"]
    assert step["floor_seconds"] == pytest.approx(
        max(step["bytes"] / result["ceilings"][COPY_RATE], step["flops"] / result["ceilings"][MATRIX_RATE])
    )
    assert step["fraction"] == pytest.approx(step["floor_seconds"] / step["seconds"])
    assert rows["parity_logits_llama"]["detail"]["relative_error"] < 1e-4
    assert rows["repeatability_among_strangers"]["detail"]["equal"] is True
    knee = rows["step_tiny_knee"]
    assert knee["seconds"] == rows[f"step_tiny_{knee['detail']['token_budget']}"]["seconds"]
    assert rows["step_tiny_opt_16"]["fraction"] > 0
    assert rows["check_bits"]["detail"]["equal"] is True
    host = rows["host_step_tiny_16_full"]["detail"]
    assert 0 < host["schedule_seconds"] < host["host_seconds"]


@pytest.mark.parametrize(("arguments", "says"), [(["--parts", "ceilings,kernel"], "'kernel'"), ([], "--dry-run")])
def test_what_cannot_be_done_is_refused(
    arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["--out", str(tmp_path / "out"), *arguments])
    assert exit_.value.code == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def written(report: Report) -> Any:
    return json.loads(report.path.read_text())


def test_every_row_is_written_and_an_error_ends_only_its_row(tmp_path: Path) -> None:
    report = Report(tmp_path, "NVIDIA H200", {})
    assert report.path.name.startswith("nvidia-h200-20")
    part = Part(report, 100.0)

    def broken() -> Measurement:
        raise RuntimeError("out of memory")

    assert part.measure("broken", broken) is None
    assert [(row["name"], row["ran"]) for row in written(report)["rows"]] == [("broken", False)]
    assert "RuntimeError: out of memory" in written(report)["rows"][0]["error"]
    report.ceilings |= {COPY_RATE: 100.0, MATRIX_RATE: 1000.0}
    part.measure("copies", lambda: Measurement(seconds=4.0, bytes=200, flops=1000))
    part.measure("multiplies", lambda: Measurement(seconds=4.0, bytes=200, flops=3000))
    rows = written(report)["rows"][1:]
    assert [(row["floor_seconds"], row["fraction"]) for row in rows] == [(2.0, 0.5), (3.0, 0.75)]
    assert exit_status(report) == FAILED
    assert Report(tmp_path, "NVIDIA H200", {}).path != report.path


def test_rows_over_the_budget_are_cut(tmp_path: Path) -> None:
    report = Report(tmp_path, "cpu", {})
    Part(report, -1.0).measure("late", lambda: Measurement(seconds=1.0))
    (row,) = written(report)["rows"]
    assert (row["ran"], row["seconds"], row["error"][:5]) == (False, None, "cut: ")
    assert exit_status(report) == CUT_SHORT


@pytest.mark.parametrize(
    ("kind", "rate", "failures"),
    [("NVIDIA H200", 3.8e12, 1), ("NVIDIA H200", None, 1), ("NVIDIA H200", 4.2e12, 0), ("NVIDIA A100", 1.5e12, 0)],
)
def test_an_h200_must_copy_fast(kind: str, rate: float | None, failures: int, tmp_path: Path) -> None:
    report = Report(tmp_path, kind, {})
    if rate is not None:
        report.add_ceiling(COPY_RATE, rate)
    ceilings.check_copy_rate(Part(report, 1.0), kind)
    assert len(written(report)["failures"]) == failures
    assert exit_status(report) == (FAILED if failures else 0)


@pytest.mark.parametrize(
    ("function", "says"),
    [(jax.jit(lambda x: x + 1, donate_argnums=0), "shares memory"), (jax.jit(lambda x: x[:1]), "writes 64 bytes")],
)
def test_what_does_not_copy_is_no_ceiling(function: jax.stages.Wrapped, says: str, tmp_path: Path) -> None:
    part = Part(Report(tmp_path, "cpu", {}), 1.0)
    with pytest.raises(RuntimeError, match=says):
        ceilings.measure_copy(part, DRY, jnp.zeros((8, 16)), function)
    assert part.report.ceilings == {}


def test_a_wrong_token_or_logit_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scripts.device_check.parity.greedy_tokens", lambda *_: ([[0]] * 3, None))
    monkeypatch.setattr("scripts.device_check.parity.golden_answers", lambda _: golden_like(3))
    monkeypatch.setattr("scripts.device_check.parity.relative_logit_error", lambda *_: float("nan"))
    report = Report(tmp_path, "cpu", {})
    run_parity(Part(report, 100.0), DRY, Shared())
    assert [failure.partition(":")[0] for failure in report.failures] == ["parity_greedy_llama", "parity_logits_llama"]


def golden_like(count: int) -> list[Any]:
    class Answer:
        greedy = (1,)

    return [Answer() for _ in range(count)]


def test_only_a_run_that_differs_from_itself_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(range(100))

    class Unsteady:
        def __init__(self, *_: object):
            self.requests: list[Any] = []
            self.compiled = None

        def compile(self) -> None:
            pass

        def answers(self, requests: object, compiled: object = None) -> dict[str, list[tuple[int, int]]]:
            return {"r0": [(7, next(answers))]}

    monkeypatch.setattr("scripts.device_check.repeatability.Subject", Unsteady)
    monkeypatch.setattr("scripts.device_check.repeatability.compile_step", lambda *_: None)
    report = Report(tmp_path, "cpu", {})
    run_repeatability(Part(report, 100.0), DRY, Shared())
    assert [failure.partition(":")[0] for failure in report.failures] == ["repeatability_run_to_run"]
    unequal = {row.name: row.detail for row in report.rows if row.detail.get("equal") is False}
    assert unequal.keys() >= {"repeatability_run_to_run", "repeatability_reversed", "repeatability_compiled_again"}
    assert {(detail["other_tokens"], detail["other_logprob_bits"]) for detail in unequal.values()} == {(0, 1)}


def test_step_cost_of_llama() -> None:
    """Worked out by hand for the tiny shape: 4 decodes at 96 tokens and a prompt of 12."""
    load = DRY.steps
    config = step_times.step_config(load, 16)
    plan = step_times.full_plan(load, config)
    assert [(chunk.start, chunk.length) for chunk in plan.chunks] == [(95, 1)] * 4 + [(0, 12)]
    assert len({id_ for chunk in plan.chunks for id_ in chunk.sequence.block_table}) == config.cache.num_blocks
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
    load = DRY.opt_steps
    config = step_times.step_config(load, 16)
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
    config = step_times.step_config(load, 256)
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
    measured = {n: Measurement(seconds=t, bytes=n, flops=n) for n, t in reversed(times.items())}
    found = step_times.at_knee(measured, {MATRIX_RATE: 1000.0, COPY_RATE: 5.0})
    assert (found.seconds, found.bytes) == (2.0, 512)
    assert found.detail["token_budget"] == 512
    assert found.detail["roofline_token_budget"] == 256
    assert found.detail["tokens_per_second"][256] == pytest.approx(256 / 1.5)


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
