"""python -m scripts.gpu runs its rows in processes of which any may hang or die."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import jax
import pytest

from jaxgen.server.flags.serve_options import make_parser
from scripts.gpu import child, worker
from scripts.gpu.child import environment
from scripts.gpu.cli import exit_status
from scripts.gpu.result.header import ROOT
from scripts.gpu.result.plan import MEMORY_FRACTION, OTHER_REGISTERS, REGISTERS, TOTAL_SECONDS, PlannedRow
from scripts.gpu.result.report import Report, State
from scripts.gpu.rows.bench import UnavailableError
from scripts.gpu.rows.listing import rows_of
from scripts.gpu.rows.sizes import DRY, FULL
from scripts.gpu.supervisor import Supervisor, Workers

WORKER = """
import json, os, signal, sys, threading, time

faults = json.loads(os.environ["GPU_CHECK_FAULTS"])
if faults.get(sys.argv[1] + " process") == "dies":
    os._exit(9)
for line in sys.stdin:
    request = json.loads(line)
    answer = {"wall_seconds": 0.1}
    if "row" in request:
        prepared = request
        if faults.get(request["row"]) == "slow to compile":
            time.sleep(3600)
    elif "run" in request:
        request = prepared
        print("began", request["row"], file=sys.stderr, flush=True)
        fault = faults.get(request["row"])
        if fault == "hang":
            time.sleep(3600)
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "abort":
            os.abort()
        if fault == "device":
            answer |= {"state": "lost", "why": "lost the device: illegal address"}
        elif fault == "raise":
            answer |= {"state": "raised", "why": "ValueError: on purpose"}
        else:
            detail = {"pid": os.getpid(), "registers": request["registers"], "ceilings": request["ceilings"]}
            detail |= {"reads": sorted(request["results"]), "process": sys.argv[1]}
            answer["found"] = {"seconds": 1.0, "ceilings": {request["row"]: 2.0}, "detail": detail}
    print(json.dumps(answer), flush=True)
"""
A, B = PlannedRow("a", "part", "", limit=10.0, configuration="A"), PlannedRow("b", "part", "", needs=("A",))
OTHER_A = replace(A, name="other_a", registers=OTHER_REGISTERS, instead_of="a")
C = PlannedRow("c", "part", "", configuration="C")
Run = Callable[..., Report]


def report_of(path: Path, rows: Sequence[PlannedRow], earlier: Mapping[str, Any] | None = None) -> Report:
    return Report(path, {"device": "Some GPU", "call": {}}, rows, dict(earlier or {}))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs rows by a worker without JAX that has these faults; ``earlier`` is a result to go on with."""
    monkeypatch.setattr(child, "WORKER", (sys.executable, "-S", "-c", WORKER))

    def run(
        rows: Sequence[PlannedRow],
        faults: dict[str, str],
        earlier: Any = None,
        seconds: float = 60.0,
        compile_limit: float | None = None,
    ) -> Report:
        monkeypatch.setenv("GPU_CHECK_FAULTS", json.dumps(faults))
        report = report_of(tmp_path / "result.json", rows, earlier)
        workers = Workers(dry_run=True, cache_dir=tmp_path, log=tmp_path / "log")
        try:
            ends = time.monotonic() + seconds
            Supervisor(rows, report, workers, ends=ends, compile_limit=compile_limit).run()
        finally:
            workers.end()
        return report

    return run


def states(report: Report) -> dict[str, str]:
    return {row.name: row.state.value for row in report.rows.values()}


def written(report: Report) -> Any:
    return json.loads(report.path.read_text())


def test_rows_that_run_share_a_process_and_are_all_recorded(run: Run) -> None:
    report = run([A, B, C], {})
    assert states(report) == {"a": "ran", "b": "ran", "c": "ran"}
    assert len({row.detail["pid"] for row in report.rows.values()}) == 1
    assert report.rows["c"].detail["ceilings"] == {"a": 2.0, "b": 2.0}, "each row is told what is known"
    assert [row["name"] for row in written(report)["rows"]] == ["a", "b", "c"]
    assert exit_status(report, [A, B, C]) == 0


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("hang", "hung and was killed after 0.3 s"),
        ("kill", "ended its process by SIGKILL"),
        ("abort", "ended its process by SIGABRT"),
        ("device", "lost the device: illegal address"),
    ],
)
def test_a_lost_process_loses_its_row_and_what_needs_its_configuration(fault: str, why: str, run: Run) -> None:
    report = run([C, replace(A, limit=0.3), B, replace(C, name="d")], {"a": fault})
    assert states(report) == {"c": "ran", "a": "lost", "b": "not reached", "d": "ran"}
    assert report.rows["a"].why == why
    assert report.rows["a"].detail["stderr"] == "began a\n"
    assert report.rows["b"].why == f"A (40/232 registers) {why} in a"
    assert report.rows["c"].detail["pid"] != report.rows["d"].detail["pid"]
    assert written(report)["bad_configurations"] == [f"A (40/232 registers) {why} in a"]
    assert report.failures == [f"a: {why}"]


def test_a_row_that_is_slow_to_compile_loses_no_other_and_marks_nothing(run: Run) -> None:
    report = run([C, replace(A, compile_limit=0.3), B], {"a": "slow to compile"})
    assert states(report) == {"c": "ran", "a": "slow to compile", "b": "ran"}
    assert report.rows["a"].why == "not ready to run after 0.3 s"
    assert (written(report)["bad_configurations"], report.failures) == ([], [])
    assert exit_status(report, [A, B, C]) == 3
    assert run([A, B], {}, written(report)).rows["a"] == report.rows["a"], "as of a lost row, --again runs it again"


def test_the_time_to_compile_does_not_count_as_running(run: Run) -> None:
    """A row that hangs when it runs is lost after its own limit, whatever that of compiling."""
    report = run([replace(A, limit=0.3), B], {"a": "hang"}, compile_limit=0.9)
    assert states(report) == {"a": "lost", "b": "not reached"}
    assert report.rows["a"].why == "hung and was killed after 0.3 s"
    slow = run([replace(A, limit=0.3), B], {"a": "slow to compile"}, compile_limit=0.9)
    assert slow.rows["a"].why == "not ready to run after 0.9 s"


def test_a_row_that_the_end_of_the_run_cuts_while_it_compiles_is_not_reached(run: Run) -> None:
    report = run([A, B], {"a": "slow to compile"}, seconds=0.5)
    assert states(report) == {"a": "not reached", "b": "not reached"}


def test_a_row_that_raises_keeps_its_process_and_its_configuration(run: Run) -> None:
    report = run([C, A, B], {"a": "raise"})
    assert states(report) == {"c": "ran", "a": "raised", "b": "ran"}
    assert report.rows["c"].detail["pid"] == report.rows["b"].detail["pid"]
    assert report.failures == ["a: ValueError: on purpose"]


def test_other_registers_are_tried_and_taken_where_the_first_are_bad(run: Run) -> None:
    report = run([A, OTHER_A, B], {"a": "kill"})
    assert states(report) == {"a": "lost", "other_a": "ran", "b": "ran"}
    assert report.rows["b"].detail["registers"] == [*OTHER_REGISTERS]
    assert report.rows["b"].registers == OTHER_REGISTERS


def test_where_both_registers_are_bad_what_needs_them_is_not_reached(run: Run) -> None:
    report = run([A, OTHER_A, B], {"a": "kill", "other_a": "kill"})
    assert states(report) == {"a": "lost", "other_a": "lost", "b": "not reached"}
    assert len(written(report)["bad_configurations"]) == 2


def test_other_registers_are_not_tried_where_the_first_are_good(run: Run) -> None:
    report = run([A, OTHER_A, B], {})
    assert states(report) == {"a": "ran", "other_a": "not needed", "b": "ran"}
    assert report.rows["b"].registers == REGISTERS
    assert exit_status(report, [A, OTHER_A, B]) == 0


def test_a_comparison_that_is_lost_fails_nothing(run: Run) -> None:
    report = run([replace(A, compares=True), B], {"a": "abort"})
    assert states(report) == {"a": "unavailable", "b": "ran"}
    assert report.failures == []


def test_another_process_is_for_rows_that_want_one(run: Run) -> None:
    report = run([A, replace(C, process="tools"), B], {})
    assert [row.detail["process"] for row in report.rows.values()] == ["engine", "tools", "engine"]
    assert len({row.detail["pid"] for row in report.rows.values()}) == 3


def test_a_process_that_does_not_start_is_a_failure_of_its_rows_alone(run: Run) -> None:
    report = run([A, replace(C, process="tools"), B], {"tools process": "dies"})
    assert states(report) == {"a": "ran", "c": "raised", "b": "ran"}
    assert report.rows["c"].why == "no process: it ended its process with status 9\n"
    assert report.loss("C", REGISTERS) is None, "its configuration has not been seen"


def test_nothing_runs_past_the_end_of_the_run(run: Run) -> None:
    report = run([A, C, replace(B, reads=("c",))], {"a": "hang"}, seconds=0.5)
    assert states(report) == {"a": "not reached", "c": "not reached", "b": "not reached"}
    assert [row.why for row in report.rows.values()] == [
        *("the run ended in it", "no time was left", "it reads c, which was not reached")
    ]
    assert report.loss("A", REGISTERS) is None, "that time ran out says nothing of a configuration"
    assert exit_status(report, [A, B, C]) == 3


def test_a_run_that_goes_on_runs_what_was_not_reached_and_nothing_else(run: Run) -> None:
    first = run([A, B, C], {"a": "kill"})
    assert states(first) == {"a": "lost", "b": "not reached", "c": "ran"}
    again = written(first)
    again["rows"] = [row for row in again["rows"] if row["name"] != "a"]  # as --again a leaves it
    second = run([A, B, C], {}, again)
    assert states(second) == {"a": "ran", "b": "ran", "c": "ran"}
    assert [row.call for row in second.rows.values()] == [1, 1, 0]
    assert second.rows["c"] == first.rows["c"]
    assert second.ceilings.keys() == {"a", "b", "c"}
    assert (len(written(second)["calls"]), written(second)["bad_configurations"]) == (2, [])
    unchanged = run([A, B, C], {"a": "kill"}, written(second))
    assert unchanged.rows == second.rows


def test_the_file_is_whole_at_every_moment(run: Run, tmp_path: Path) -> None:
    path, stop = tmp_path / "result.json", Event()
    seen: set[int] = set()

    def read() -> None:
        while not stop.is_set():
            if path.exists():
                seen.add(sum(row["state"] != "not reached" for row in json.loads(path.read_text())["rows"]))

    reader = Thread(target=read)
    reader.start()
    run([replace(C, name=str(i)) for i in range(20)], {"3": "kill", "7": "abort"})
    stop.set()
    reader.join()
    assert seen <= set(range(21))
    assert len(seen) > 2, "it was read while the run went on"


def test_a_worker_ends_with_its_supervisor(tmp_path: Path) -> None:
    """Which closes the worker's stdin when it ends, however it does."""
    command = [*child.WORKER, "tools", "dry"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(b'{"header": false}\n')
        process.stdin.flush()
        assert process.stdout is not None
        assert json.loads(process.stdout.readline()) == {}
        process.stdin.close()
        assert process.wait(120) == 0


def test_the_environment_of_a_process() -> None:
    base = {"XLA_FLAGS": "--one", "OTHER": "kept"}
    engine = environment("engine", Path("/cache"), base)
    assert (engine["XLA_FLAGS"], engine["OTHER"]) == ("--one", "kept")
    assert engine["JAX_COMPILATION_CACHE_DIR"] == "/cache"
    assert environment("plain launches", Path("/cache"), base)["XLA_FLAGS"] == "--one --xla_gpu_enable_command_buffer="
    assert environment("smoke", Path("/cache"), base)["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert "JAX_COMPILATION_CACHE_DIR" not in environment("afresh", Path("/cache"), base)


def test_memory_is_shared_out_as_by_a_server() -> None:
    options = make_parser().parse_args(["--model", "m"])
    assert environment("engine", Path(), {})["XLA_CLIENT_MEM_FRACTION"] == str(options.gpu_memory_utilization)
    assert float(MEMORY_FRACTION) == options.gpu_memory_utilization


def test_the_plan() -> None:
    for sizes in (DRY, FULL):
        rows = {row.name: row for row in rows_of(sizes)}
        assert len(rows) == len(rows_of(sizes)), "names are one row's alone"
        assert all(set(row.reads) <= rows.keys() for row in rows.values())
    made = {row.configuration for row in rows.values()}
    assert {need for name in ("step_llama3_8b_1024", "step_llama3_8b_256") for need in rows[name].needs} <= made
    retried = [row for row in rows.values() if row.instead_of is not None]
    assert retried
    for row in retried:
        assert (row.configuration, row.registers) == (rows[row.instead_of or ""].configuration, OTHER_REGISTERS)
    assert "1+2" in " ".join(rows["prompt_attention_2048_8k"].needs)
    assert "1+2" not in " ".join(rows["decode_attention_256x2k_gqa"].needs)
    assert all(
        row.limit == 20 for row in rows.values() if row.part == "smoke" and row.configuration and "step" not in row.name
    )
    assert all(row.compile_limit >= 120 for row in rows.values())
    order = [*rows]
    first = [order.index(name) for name in (f"step_llama3_8b_256{end}" for end in ("", "_whole_sums"))]
    assert order.index("server_llama3_8b_start") < min(first)
    assert max(first) < order.index("decode_attention_256x2k_gqa")
    assert not any("step" in name for name in order[: order.index("server_llama3_8b_start")] if "smoke" not in name)
    assert TOTAL_SECONDS < 9 * 60


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory"), State.RAISED),
        (jax.errors.JaxRuntimeError("INTERNAL: CUDA_ERROR_ILLEGAL_ADDRESS"), State.LOST),
        (UnavailableError("no such tool"), State.UNAVAILABLE),
        (ValueError("wrong"), State.RAISED),
    ],
)
def test_only_an_error_that_sticks_loses_the_device(error: Exception, state: State) -> None:
    def fail() -> dict[str, Any]:
        raise error

    found = worker.guarded(fail)
    assert found["state"] == state
    assert str(error) in found["why"]


def test_a_device_on_which_nothing_runs_any_more_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> dict[str, Any]:
        raise jax.errors.JaxRuntimeError("INTERNAL: whatever it says")

    monkeypatch.setattr(jax, "device_put", fail)
    assert worker.guarded(fail)["state"] == State.LOST


def test_every_row_that_splits_compiles_before_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of compiling is met in the first request, one of running in the second."""
    met: list[tuple[str, str]] = []
    monkeypatch.setattr(worker, "inject", lambda row, stage: met.append((row, stage)))
    working = worker.Worker(DRY)
    request = {"row": "smoke_write_kv", "registers": REGISTERS, "ceilings": {}, "results": {}, "out": ".", "limit": 60}
    assert "found" not in working.answer(request)
    assert met == [("smoke_write_kv", "prepare")]
    assert working.answer({"run": "smoke_write_kv", "limit": 60})["found"]["failure"] is None
    assert met == [("smoke_write_kv", "prepare"), ("smoke_write_kv", "run")]
