"""python -m scripts.gpu from end to end in dry runs on the CPU, and how a run goes on with another."""

import argparse
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import pytest

from scripts.gpu import cli, programs
from scripts.gpu.cli import main, private_directory
from scripts.gpu.result.plan import PROCESSES
from scripts.gpu.result.report import COPY_RATE, MATRIX_RATE
from scripts.gpu.rows import server
from scripts.gpu.rows.bench import UnavailableError
from scripts.gpu.rows.listing import rows_of
from scripts.gpu.rows.sizes import DRY
from tests.support.device_benches import bench
from tests.support.paths import ROOT

ABSENT = (
    *("starlette", "uvicorn", "beartype", "pydantic", "pydantic_core", "configargparse", "psutil", "httpx2", "openai"),
    *("hypothesis", "importlinter", "mypy", "pytest", "platformdirs", "matplotlib", "torch", "jaxgen.server"),
)
SITE = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if any(name == one or name.startswith(one + ".") for one in {absent}):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""


def run(site: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Python, and all processes it starts, where the server's and the tests' packages are not installed."""
    (site / "sitecustomize.py").write_text(SITE.format(absent=ABSENT))
    ours = {"JAX_PLATFORMS": "cpu"}
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=os.environ | ours | environment | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


ALL_ROWS = """
import json, sys
from scripts.gpu import cli, supervisor
from scripts.gpu.rows import repeatability
from scripts.gpu.rows.sizes import DRY
from scripts.gpu.worker import Worker

class Here:
    worker = Worker(DRY)

    def __init__(self, process, **_):
        self.name = process
        if process == "afresh":
            repeatability._known.cache_clear()

    def ask(self, request, seconds):
        return json.loads(json.dumps(self.worker.answer(json.loads(json.dumps(request)))))

    def end(self):
        pass

supervisor.Child = Here
sys.exit(cli.main(sys.argv[1:]))
"""
"""The script with one process for all rows, which starts jax and compiles shared programs once."""


def result_in(directory: Path) -> Any:
    (path,) = directory.glob("*.json")
    return json.loads(path.read_text())


def test_all_rows_are_there_without_the_servers_packages(tmp_path: Path) -> None:
    modules = sorted({row.entry.partition(":")[0] for row in rows_of(DRY)})
    done = run(tmp_path, "-c", "\n".join(f"import scripts.gpu.rows.{module}" for module in modules))
    assert done.returncode == 0, done.stderr


SERVER = tuple(row.name for row in rows_of(DRY) if row.part == "server")


@pytest.mark.full
def test_dry_run_of_all_rows_without_the_servers_packages(tmp_path: Path) -> None:
    """In one process, in which XLA knows the flags of all that a real run has. Most rows compile something."""
    flags = " ".join(process.environment.get("XLA_FLAGS", "") for process in PROCESSES.values())
    arguments = ("--out", str(tmp_path / "out"), "--cache-dir", str(tmp_path / "cache"), "--dry-run")
    environment = {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}"}
    done = run(tmp_path, "-c", ALL_ROWS, *arguments, "--commit", "c0ffee", **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    result = result_in(tmp_path / "out")
    assert (result["device"], result["commit"], result["dry_run"], result["failures"]) == ("cpu", "c0ffee", True, [])
    assert result["versions"]["jax"] == jax.__version__
    assert "gpu_target_config" in result["target"]["missing"]
    assert {COPY_RATE, MATRIX_RATE, "host_to_device_pinned_bytes_per_second"} <= result["ceilings"].keys()
    rows = {row["name"]: row for row in result["rows"]}
    assert [*rows] == [row.name for row in rows_of(DRY)]
    assert {name for name, row in rows.items() if row["state"] != "ran"} == {
        *("cudnn_decode_attention_tiny", "launches_tiny_16", "ncu_decode_attention_tiny"),
        *("sanitizer_memcheck", "sanitizer_racecheck", "smoke_tiles_of_128_rows_128_registers_24_240"),
        *("smoke_start_tiny_16", *SERVER),
    }
    assert all(rows[name]["why"].startswith("jaxgen serve needs packages") for name in SERVER if "start" in name)
    assert_figures(rows, result["ceilings"])


def assert_figures(rows: dict[str, Any], ceilings: dict[str, float]) -> None:
    attention = rows["decode_attention_tiny"]
    assert attention["bytes"] == 2 * (75 * 2 + 2 * 4) * 16 * 2
    assert attention["flops"] == 4 * 4 * 16 * 75
    assert attention["detail"]["kernels"] == "XLA"
    assert 0 < attention["detail"]["largest_error"] < 2e-2
    step = rows["step_tiny_16"]
    assert step["floor_seconds"] == pytest.approx(
        max(step["bytes"] / ceilings[COPY_RATE], step["flops"] / ceilings[MATRIX_RATE])
    )
    assert step["fraction"] == pytest.approx(step["floor_seconds"] / step["seconds"])
    assert step["detail"]["returns_seconds"] > 0
    assert step["detail"]["rows"] == 16
    assert rows["step_tiny_16_top_p"]["detail"]["sampling"] == "top_p"
    assert rows["step_tiny_16_beside_copies"]["detail"]["copied_bytes_per_second"] > 0
    assert rows["parity_logits_llama"]["detail"]["relative_error"] < 1e-4
    assert rows["repeatability_among_strangers"]["detail"]["equal"] is True
    assert rows["repeatability_compiled_again"]["detail"]["equal"] is True
    knee = rows["step_tiny_knee"]
    assert knee["seconds"] == rows[f"step_tiny_{knee['detail']['token_budget']}"]["seconds"]
    assert rows["expert_product_tiny_mxfp4"]["detail"]["equal"] is True
    widths = rows["widths_tiny_int8_4_of_16"]["detail"]
    assert (widths["compared_rows"] > 0, widths["rows_with_other_hidden_states"]) == (True, 0)
    assert rows["check_bits"]["detail"]["equal"] is True
    assert rows["products_qkv"]["detail"]["tokens"].keys() == {"8", "16"}
    assert {found["products"] for found in rows["products_qkv"]["detail"]["tokens"].values()} == {2}
    assert [rows[name]["detail"]["equal"] for name in ("bits_products_own_qkv", "bits_norms_own")] == [True, True]
    assert rows["products_own_qkv"]["detail"]["tokens"].keys() == {"1", "8", "16"}
    host = rows["host_step_tiny_16_full"]["detail"]
    assert 0 < host["schedule_seconds"] < host["host_seconds"]
    assert host["not_profiled"].startswith("the profile has no stream")
    assert [rows[f"served_tiny_{users}"]["detail"]["decode_rows"] for users in (1, 4)] == [1, 4]
    assert 0 < rows["parity_kernels_tiny_moe"]["detail"]["error"] < 0.1


@pytest.mark.full
def test_rows_that_end_their_process_are_lost_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the processes of a real run, of which each takes seconds to start. Other faults are test_gpu_processes'."""
    faults = {"smoke_write_kv": "abort", "smoke_pieces_128": "device"}
    names = (*faults, "smoke_step_tiny_16", "smoke_expert_product", "smoke_start_tiny_16")
    common = ("--out", str(tmp_path / "out"), "--dry-run", "--commit", "c0ffee", "--rows", ",".join(names))
    monkeypatch.setenv("GPU_CHECK_FAULTS", json.dumps(faults))
    assert main([*common, "--cache-dir", str(tmp_path / "cache")]) == 1
    result = result_in(tmp_path / "out")
    rows = {row["name"]: row for row in result["rows"] if row["name"] in names}
    assert {name: row["state"] for name, row in rows.items()} == {
        **dict.fromkeys(faults, "lost"),
        "smoke_step_tiny_16": "not reached",  # they write K and V
        "smoke_expert_product": "ran",
        "smoke_start_tiny_16": "not reached",
    }
    assert rows["smoke_write_kv"]["why"] == "ended its process by SIGABRT"
    assert "faults.py" in rows["smoke_write_kv"]["detail"]["stderr"]
    assert rows["smoke_pieces_128"]["why"].startswith("lost the device: JaxRuntimeError: INTERNAL: CUDA_ERROR_ILLEGAL")
    assert rows["smoke_step_tiny_16"]["why"].startswith("write_kv (40/232 registers) ended its process")
    assert len(result["bad_configurations"]) == 2
    (path,) = (tmp_path / "out").glob("*.json")
    monkeypatch.delenv("GPU_CHECK_FAULTS")
    elsewhere = ("--cache-dir", str(tmp_path / "another machine's"))
    assert main([*common, *elsewhere, "--resume", str(path), "--again", ",".join(faults)]) == 0
    resumed = result_in(tmp_path / "out")
    states = {row["name"]: row["state"] for row in resumed["rows"] if row["name"] in rows}
    assert states.pop("smoke_start_tiny_16") == "unavailable"  # a driver knows of no GPU
    assert set(states.values()) == {"ran"}
    assert (resumed["bad_configurations"], resumed["failures"]) == ([], [])
    second = {row["name"] for row in resumed["rows"] if row["state"] == "ran" and row["call"] == 1}
    assert second == {*faults, "smoke_step_tiny_16"}
    (row,) = (row for row in resumed["rows"] if row["name"] == "smoke_write_kv")
    assert (row["programs"].get("compiled", 0), row["programs"]["reused"] > 0) == (0, True), (
        "compiled in the first call"
    )
    programs = resumed["calls"][1]["programs"]
    assert programs["unpacked"] == resumed["calls"][0]["programs"]["packed"] > 0
    assert_few_small_files(tmp_path / "out")


def assert_few_small_files(out: Path) -> None:
    """As a borrowed machine gives them back."""
    files = [*out.iterdir()]
    assert len(files) <= 8
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+", path.name) and path.stat().st_size < 16 * 2**20 for path in files)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--parts", "ceilings,kernel"], "'kernel'"),
        (["--rows", "smoke_write_kv,smoke_writes"], "'smoke_writes'"),
        (["--rows", "smoke_write_kv", "--parts", "steps,ceilings"], "'smoke_write_kv', which is of the part smoke"),
        ([], "--dry-run"),
    ],
)
def test_what_cannot_be_done_is_refused(
    arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["--out", str(tmp_path / "out"), "--cache-dir", str(tmp_path / "cache"), *arguments])
    assert exit_.value.code == 2
    assert says in capsys.readouterr().err
    assert list((tmp_path / "out").glob("*.json")) == []


def test_rows_run_in_the_order_in_which_they_are_named() -> None:
    def asked(parts: str, names: str) -> list[str]:
        return [row.name for row in cli._asked(argparse.ArgumentParser(), rows_of(DRY), parts.split(","), names)]

    assert asked(",".join(cli.PARTS), "served_*,ceiling_matrix_burst,served_tiny_1") == [
        *("served_tiny_1", "served_tiny_4", "ceiling_matrix_burst"),
    ]
    assert asked("ceilings", "") == [row.name for row in rows_of(DRY) if row.part == "ceilings"]


@pytest.fixture
def _device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A header without a process that finds it out, and rows that nothing runs."""
    header: dict[str, Any] = {"platform": "gpu", "device": "Some GPU", "target": {}, "nvidia_smi": None}
    monkeypatch.setattr("scripts.gpu.cli.Workers.header", lambda _: header)
    monkeypatch.setattr("scripts.gpu.cli.Supervisor.run", lambda _: None)


@pytest.mark.usefixtures("_device")
def test_only_a_file_of_the_same_device_code_and_versions_is_gone_on_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--out", str(tmp_path / "out"), "--cache-dir", str(tmp_path / "cache")]
    assert main([*common, "--commit", "one"]) == 3
    (path,) = (tmp_path / "out").glob("*.json")
    assert main([*common, "--commit", "one", "--resume", str(path)]) == 3
    assert [*(tmp_path / "out").glob("*.json")] == [path]
    for arguments, says in (
        (["--commit", "two", "--resume", str(path)], "its commit is one, not two"),
        (["--commit", "one", "--resume", str(path), "--again", "nothing"], "'nothing'"),
        (["--commit", "one", "--resume", str(tmp_path / "none.json")], "No such file"),
        (["--again", "nothing"], "--again is for a run with --resume"),
    ):
        with pytest.raises(SystemExit):
            main([*common, *arguments])
        assert says in capsys.readouterr().err


def test_a_cache_that_others_may_write_into_is_refused(tmp_path: Path) -> None:
    assert private_directory(tmp_path / "new").stat().st_mode & 0o777 == 0o700
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(Exception, match="not this user's alone"):
        private_directory(tmp_path / "open")


def test_compiled_programs_go_into_few_files_and_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "PART_BYTES", 2**16)
    monkeypatch.setattr(programs, "MOST_PARTS", 3)
    cache, result = tmp_path / "cache", tmp_path / "gpu-1.json"
    contents = {"large-cache": os.urandom(100_000), "small-cache": b"small", "autotuned/one": os.urandom(30_000)}
    for name, data in contents.items():
        (cache / name).parent.mkdir(parents=True, exist_ok=True)
        (cache / name).write_bytes(data)
    assert programs.pack(cache, result) == {"packed": 3, "left_out": 0}
    parts = programs.parts_of(result)
    assert [path.name for path in parts] == [f"gpu-1.programs-{n}.tar" for n in (1, 2, 3)]
    assert programs.unpack(parts, tmp_path / "next") == 3
    assert {name: (tmp_path / "next" / name).read_bytes() for name in contents} == contents
    with pytest.raises(tarfile.TarError):
        programs.unpack(parts[1:], tmp_path / "broken")
    (cache / "larger-cache").write_bytes(os.urandom(200_000))
    assert programs.pack(cache, result) == {"packed": 3, "left_out": 1}, "what does not fit"


@pytest.mark.parametrize(("status", "failure"), [(0, None), (1, "not all bits agree: 7 of 8 scenarios")])
def test_bits_of_a_server_that_differ_are_a_failure(
    status: int, failure: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def verified(command: str, flags: Mapping[str, Any]) -> tuple[int, str]:
        assert command == "verify-determinism"
        flags["json"].write_text('{"digest": "ab"}')
        return status, "words\n7 of 8 scenarios"

    monkeypatch.setattr(server, "_run", verified)
    monkeypatch.setattr(server, "model_directory", lambda _: Path("model"))
    found = server.verify(bench())
    assert (found.failure, found.detail) == (failure, {"digest": "ab"})
    monkeypatch.setattr(server, "_run", lambda *_: (2, "out of memory"))
    with pytest.raises(RuntimeError, match="verify-determinism ended with status 2: out of memory"):
        server.verify(bench())


def test_a_server_without_its_packages_is_unavailable() -> None:
    missing = server._error("jaxgen serve", 1, "ModuleNotFoundError: No module named 'uvicorn'")
    assert isinstance(missing, UnavailableError)
    assert str(missing) == "jaxgen serve needs packages that are not here: No module named 'uvicorn'"
    assert isinstance(server._error("jaxgen serve", 1, "out of memory"), RuntimeError)
    facts = server.facts_of('jaxgen_kernels_info{name="XLA"} 1.0\njaxgen_steps_total 3.0\nother_info{a="b"} 1.0\n')
    assert facts == {"jaxgen_kernels_info": 'name="XLA"'}
