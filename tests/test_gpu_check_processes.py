"""scripts/gpu_check.py runs its parts in processes of which any may crash or hang."""

import json
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from scripts.device_check import supervisor
from scripts.device_check.header import ROOT
from scripts.device_check.plan import PARTS, TOTAL_SECONDS, deadlines
from scripts.device_check.report import Report
from scripts.device_check.supervisor import RefusedError, Supervisor
from scripts.device_check.worker import Job

WORKER = """
import json, os, sys, time

job, behaviour = json.loads(sys.argv[2]), json.loads(sys.argv[1])

def say(*message):
    print(json.dumps(message), flush=True)

if behaviour.get("start") == "crash":
    os._exit(9)
if behaviour.get("start") == "refuse":
    say("refused")
    time.sleep(60)
if job["header"]:
    say("header", "Some GPU", {"about": 1})
for name in job["deadlines"]:
    say("part", name)
    say("add_ceiling", name, 2.0)
    say("begin", name + "_row")
    if behaviour.get(name) == "crash":
        os._exit(7)
    if behaviour.get(name) == "hang":
        time.sleep(60)
    detail = {"xla": job["reference_kernels"], "pid": os.getpid(), "flags": os.environ.get("XLA_FLAGS")}
    found = {"seconds": 1.0, "detail": {**detail, **job["ceilings"]}}
    say("record", name + "_row", found, None, 0.1)
say("end")
time.sleep(60)
"""
NAMES = ["ceilings", "attention", "steps"]


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs NAMES with workers that behave so; the report."""
    monkeypatch.setattr(supervisor, "GRACE_SECONDS", 0.0)

    def run(behaviour: dict[str, str], seconds: float = 60.0) -> Report:
        monkeypatch.setattr(supervisor, "WORKER", (sys.executable, "-c", WORKER, json.dumps(behaviour)))
        monkeypatch.setattr(supervisor, "deadlines", lambda names: dict.fromkeys(names, seconds))
        return Supervisor(NAMES, dry_run=True, make_report=lambda *about: Report(tmp_path, *about)).run()

    return run


def test_parts_that_run_share_a_process_and_are_all_recorded(rows: Any) -> None:
    report = rows({})
    assert [row.name for row in report.rows] == [f"{name}_row" for name in NAMES]
    assert len({row.detail["pid"] for row in report.rows}) == 1
    assert report.ceilings == dict.fromkeys(NAMES, 2.0)
    assert json.loads(report.path.read_text())["about"] == 1
    assert report.failures == []


def test_a_crash_loses_its_part_alone_and_the_kernels_that_may_be_to_blame(rows: Any) -> None:
    report = rows({"attention": "crash"})
    assert [(row.name, row.ran) for row in report.rows] == [
        ("ceilings_row", True),
        ("attention_row", False),
        ("steps_row", True),
    ]
    assert report.rows[1].error == "its process ended with status 7"
    assert [row.detail["xla"] for row in report.rows[::2]] == [False, True]
    assert report.rows[2].detail["ceilings"] == 2.0, "the next process knows the ceilings"
    assert report.failures == ["attention: its process ended with status 7"]


def test_a_comparison_that_crashes_fails_nothing(rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PARTS, "attention", replace(PARTS["attention"], compares=True, process="other"))
    report = rows({"attention": "crash"})
    assert report.rows[1].error == "unavailable: its process ended with status 7"
    assert report.failures == []
    assert [row.detail["xla"] for row in report.rows[::2]] == [False, False]


def test_flags_of_a_part_are_added_to_those_of_the_run(rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--one")
    flags = {"XLA_FLAGS": "--two", "OTHER": "3"}
    monkeypatch.setitem(PARTS, "steps", replace(PARTS["steps"], process="other", environment=flags))
    report = rows({})
    assert [row.detail["flags"] for row in report.rows] == ["--one", "--one", "--one --two"]
    assert len({row.detail["pid"] for row in report.rows}) == 2


def test_a_part_that_hangs_is_killed_at_its_deadline(rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    report = rows({"ceilings": "hang", "attention": "hang", "steps": "hang"}, seconds=2.0)
    assert [row.error for row in report.rows] == ["killed 2 s after the start of the run"] * 3


def test_nothing_runs_past_the_end_of_the_run(rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "TOTAL_SECONDS", 2.0)
    report = rows({"ceilings": "hang"})
    assert [row.name for row in report.rows] == ["ceilings_row"]


@pytest.mark.parametrize(("start", "error"), [("crash", RuntimeError), ("refuse", RefusedError)])
def test_without_a_device_there_is_no_report(start: str, error: type[Exception], rows: Any, tmp_path: Path) -> None:
    with pytest.raises(error):
        rows({"start": start})
    assert list(tmp_path.iterdir()) == []


def test_a_worker_ends_with_its_supervisor() -> None:
    """Which closes the worker's stdin when it ends, however it does."""
    job = Job({"ceilings": 60.0}, time.monotonic(), {}, dry_run=True, reference_kernels=False, header=True)
    command = [*supervisor.WORKER, json.dumps(asdict(job))]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdin is not None
        worker.stdin.close()
        assert worker.wait(60) == 1


def test_all_parts_end_in_time() -> None:
    assert max(deadlines(PARTS).values()) <= TOTAL_SECONDS < 9 * 60
    assert all(plan.seconds < 120 for plan in PARTS.values())
    assert deadlines(["ceilings", "steps"]) == {
        "ceilings": PARTS["ceilings"].seconds,
        "steps": PARTS["ceilings"].seconds + PARTS["steps"].seconds,
    }
