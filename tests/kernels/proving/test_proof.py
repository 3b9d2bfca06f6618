"""The process that proves kernels may end in any way, and what comes of it is kept for the next start."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from jaxgen.files.cache_files import keep_json, named_by
from jaxgen.hardware import nvidia
from jaxgen.hardware.device_info import DeviceInfo
from jaxgen.hardware.nvidia import Gpu, compiler_trouble, find_gpu
from jaxgen.kernels.proving import proof as kernel_proof
from jaxgen.kernels.proving.proof import judge, run_proof
from jaxgen.kernels.proving.verdict import Finding, Report, ServedShapes, Verdict
from tests.support.damaged_files import DAMAGES
from tests.support.paths import ROOT

H200 = Gpu(DeviceInfo("gpu", "NVIDIA H200", 132, compute_capability=(9, 0)), "13000 580.65.06", 141 * 2**30)
SHAPES = ServedShapes(32, 8, 128, "bfloat16", (None,), 64, (256,), 256, 8192)
OPERATIONS = ["attention", "copies"]
JOB = {"operations": OPERATIONS}


def telling(found: dict[str, Finding], proving: str | None = None, then: str = "") -> str:
    """Return the code of a proof that tells what it has found of operations that it is asked for, and ``then``."""
    report = json.dumps(asdict(Report(found, proving)))
    return f"import pathlib, sys; pathlib.Path(sys.argv[1]).write_text({report!r}); {then}"


RIGHT = telling(dict.fromkeys(OPERATIONS, Finding("right")))
WRONG = telling(dict.fromkeys(OPERATIONS, Finding("wrong", "wrong by 0.1")))


@pytest.fixture
def proof(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Lets a proof be this Python code."""

    def set_code(code: str) -> None:
        monkeypatch.setattr(kernel_proof, "COMMAND", (sys.executable, "-c", code))

    return set_code


@pytest.mark.parametrize(
    ("code", "outcome", "says", "final"),
    [
        (RIGHT, "right", "", True),
        (WRONG, "wrong", "wrong by 0.1", True),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "killed", "was ended by SIGKILL", False),
        ("import os; os.abort()", "crashed", "was ended by SIGABRT", True),
        ("import ctypes; ctypes.string_at(0)", "crashed", "was ended by SIGSEGV", True),
        ("raise SystemExit('no such thing')", "crashed", "ended with status 1: no such thing", True),
        ("pass", "crashed", "ended with status 0: it said nothing", True),
    ],
)
def test_how_a_proof_ends(proof: Callable[[str], None], code: str, outcome: str, says: str, final: bool) -> None:
    proof(code)
    verdict = run_proof(JOB, seconds=60)
    found = verdict.findings.get("copies", verdict.otherwise)
    assert (found.outcome, found.is_final) == (outcome, final)
    assert says in found.reason
    assert ("copies" in verdict.refused(OPERATIONS)) == (outcome != "right")


def test_what_ends_a_proof_is_found_of_the_operation_that_it_was_at(proof: Callable[[str], None]) -> None:
    """Another process proves those that follow."""
    names = ["norms", "attention", "copies"]
    aborts = telling({"norms": Finding("right")}, "attention", "import os; os.abort()")
    follows = telling({"copies": Finding("wrong", "by 1")})
    proof(f"import sys; sys.stdin.readline().count('attention') or exec({follows!r}) or sys.exit(); {aborts}")
    assert run_proof({"operations": names}, seconds=60) == Verdict(
        {
            "norms": Finding("right"),
            "attention": Finding("crashed", "the process of their proof was ended by SIGABRT"),
            "copies": Finding("wrong", "by 1"),
        }
    )


def test_one_that_is_killed_says_nothing_of_the_rest(proof: Callable[[str], None]) -> None:
    proof(telling({"attention": Finding("right")}, "copies", "import os; os.kill(os.getpid(), 9)"))
    verdict = run_proof(JOB, seconds=60)
    assert list(verdict.refused(OPERATIONS)) == ["copies"]
    assert not verdict.otherwise.is_final


def test_one_that_hangs_is_ended_with_all_that_it_started(proof: Callable[[str], None], tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    proof(
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(pids) + '.part'!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        f"os.replace({str(pids) + '.part'!r}, {str(pids)!r})\n"
        "time.sleep(600)"
    )
    verdict = run_proof(JOB, seconds=2)
    assert verdict == Verdict(otherwise=Finding("timed out", "their proof was not done after 2 s"))
    deadline = time.monotonic() + 120
    while any(_runs(int(pid)) for pid in pids.read_text().split()):
        assert time.monotonic() < deadline


def _runs(pid: int) -> bool:
    """A zombie has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def test_the_real_one_ends_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as there is no GPU. That Python is told to leave out assertions must not let all pass."""
    monkeypatch.setenv("PYTHONOPTIMIZE", "1")
    verdict = run_proof({**JOB, "shapes": asdict(SHAPES), "device": asdict(H200.device)}, seconds=120)
    assert (dict(verdict.findings), verdict.otherwise.outcome) == ({}, "unavailable")
    assert "another process opened" in verdict.otherwise.reason


@pytest.mark.full  # a process that proves: tests/tools/test_prove_kernels.py proves here
def test_right_kernels_are_found_right_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_proof, "COMMAND", (sys.executable, "-m", "tests.support.fake_gpu", "right"))
    shapes = replace(SHAPES, heads=4, kv_heads=2, head_dim=16, token_budgets=(32,), max_num_seqs=4, max_model_len=128)
    verdict = run_proof({**JOB, "shapes": asdict(shapes), "device": asdict(H200.device)}, seconds=120)
    assert verdict.findings == dict.fromkeys(OPERATIONS, Finding("right"))


def test_it_ends_with_the_process_that_asked(tmp_path: Path) -> None:
    """Even with one that is killed."""
    pid = tmp_path / "pid"
    asks = (
        "import os; from jaxgen.kernels.proving import proof as kernel_proof\n"
        "code = '''import os, sys, time; from pathlib import Path; from threading import Thread\n"
        "from jaxgen.tools.prove_kernels import _end_with_parent\n"
        "sys.stdin.readline(); Thread(target=_end_with_parent, daemon=True).start()\n"
        f"Path({str(pid)!r}).write_text(str(os.getpid())); time.sleep(600)'''\n"
        "kernel_proof.COMMAND = (kernel_proof.sys.executable, '-c', code)\n"
        "kernel_proof.run_proof({'operations': ['copies']}, 600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", asks], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    deadline = time.monotonic() + 120
    try:
        while not (pid.is_file() and pid.read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    while _runs(int(pid.read_text())):
        assert time.monotonic() < deadline


def judged(
    folder: Path | None,
    *,
    shapes: ServedShapes = SHAPES,
    gpu: Gpu = H200,
    sources: str = "code",
    operations: Sequence[str] = OPERATIONS,
    may_run: bool = True,
    again: bool = False,
) -> Finding:
    """Return what is found of the last operation."""
    verdict = judge(shapes, gpu, sources, folder, operations, may_run=may_run, again=again)
    return verdict.findings.get(operations[-1], verdict.otherwise)


def test_a_second_start_does_not_prove_again(proof: Callable[[str], None], tmp_path: Path) -> None:
    proof(RIGHT)
    assert judged(tmp_path).is_right
    proof(WRONG)
    assert judged(tmp_path).is_right
    assert judged(tmp_path, may_run=False).is_right  # nor does one that holds the device


def test_what_no_start_has_proven_is_proven_alone(proof: Callable[[str], None], tmp_path: Path) -> None:
    proof(telling({"attention": Finding("wrong", "by 1")}))
    assert judged(tmp_path, operations=["attention"]).outcome == "wrong"
    proof(f"import json, sys; assert json.loads(sys.stdin.readline())['operations'] == ['copies']; {RIGHT}")
    assert judged(tmp_path).is_right
    assert judged(tmp_path, operations=["attention"]).outcome == "right"  # told by the last


@pytest.mark.parametrize(
    "other", [{"outcome": "right", "reason": ""}, {"outcome": "wrong", "reason": "", "experts": ""}]
)
def test_findings_of_another_form_are_not_read(
    proof: Callable[[str], None], tmp_path: Path, other: dict[str, Any]
) -> None:
    key = kernel_proof.proof_key(SHAPES, H200, "code")
    keep_json(tmp_path / named_by(key), {**other, "key": key})
    proof(telling(dict.fromkeys(OPERATIONS, Finding("crashed", "by itself"))))
    assert judged(tmp_path).outcome == "crashed"
    assert judged(tmp_path, may_run=False).outcome == "crashed"


@pytest.mark.parametrize(
    "other",
    [
        {"shapes": replace(SHAPES, token_budgets=(512,))},
        {"gpu": Gpu(H200.device, "13000 590.1")},
        {"gpu": Gpu(replace(H200.device, kind="NVIDIA H100"), H200.driver)},
        {"sources": "other code"},
    ],
)
def test_what_is_kept_holds_for_nothing_else(
    proof: Callable[[str], None], tmp_path: Path, other: dict[str, Any]
) -> None:
    proof(RIGHT)
    judged(tmp_path)
    proof(WRONG)
    assert judged(tmp_path, **other).outcome == "wrong"


def test_one_that_hung_is_tried_again_on_request_only(
    proof: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it kept from being proven is proven at the next start."""
    monkeypatch.setattr(kernel_proof, "PROOF_SECONDS", 0.5)
    proof(telling({}, "attention", "import time; time.sleep(600)"))
    assert judged(tmp_path).outcome == "unavailable"
    assert judged(tmp_path, operations=["attention"]).outcome == "timed out"
    monkeypatch.setattr(kernel_proof, "PROOF_SECONDS", 60)
    proof(telling({"copies": Finding("right")}))
    assert judged(tmp_path).is_right
    kept = judged(tmp_path, operations=["attention"])
    assert kept.outcome == "timed out"
    assert "--kernels prove" in kept.reason
    proof(RIGHT)
    assert judged(tmp_path, operations=["attention"], again=True).is_right
    assert judged(tmp_path, operations=["attention"]).is_right


def test_one_that_was_killed_is_tried_again(proof: Callable[[str], None], tmp_path: Path) -> None:
    proof("import os; os.kill(os.getpid(), 9)")
    assert judged(tmp_path).outcome == "killed"
    proof(RIGHT)
    assert judged(tmp_path).is_right


def test_none_runs_beside_an_open_device(proof: Callable[[str], None], tmp_path: Path) -> None:
    proof(RIGHT)
    found = judged(tmp_path, may_run=False)
    assert found.outcome == "unavailable"
    assert "kernels='unproven'" in found.reason


def test_nothing_is_kept_without_a_folder_and_a_damaged_file_is_made_anew(
    proof: Callable[[str], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    proof(RIGHT)
    assert judged(None).is_right
    assert judged(tmp_path).is_right
    (kept,) = tmp_path.iterdir()
    whole = kept.read_bytes()
    assert json.loads(whole.partition(b"\nSHA-256")[0])["key"]["driver"] == H200.driver
    for damage in DAMAGES.values():
        kept.write_bytes(damage(whole))
        caplog.clear()
        assert judged(tmp_path) == Finding("right")
        assert [one.getMessage() for one in caplog.records] == [f"{kept} is damaged: the kernels are proven again"]
        assert kept.read_bytes() == whole


class Driver:
    """What libcuda would answer."""

    def __init__(self, name: bytes = b"NVIDIA H200", fails: str = ""):
        self._name, self._fails = name, fails

    def __getattr__(self, call: str) -> Any:
        return lambda *args: 100 if call == self._fails else self._answer(call, *args)

    def _answer(self, call: str, *args: Any) -> int:
        values = {"cuDriverGetVersion": 13000, "cuDeviceGet": 0, "cuDeviceTotalMem_v2": 141 * 2**30}
        if call == "cuDeviceGetName":
            ctypes.memmove(args[0], self._name + b"\0", len(self._name) + 1)
        elif call == "cuDeviceGetAttribute":
            args[0]._obj.value = {16: 132, 75: 9, 76: 0}[args[1]]
        elif call in values:
            args[0]._obj.value = values[call]
        return 0


def test_what_the_driver_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "version").write_text("580.65.06\n")
    monkeypatch.setattr(nvidia, "plugin", lambda: 13)
    monkeypatch.setattr(nvidia, "_MODULE_VERSION", tmp_path / "version")
    monkeypatch.setattr(ctypes, "CDLL", lambda _: Driver())
    assert find_gpu(None) == find_gpu("") == find_gpu("cuda,cpu") == H200
    assert find_gpu("cpu") is None
    monkeypatch.setattr(ctypes, "CDLL", lambda _: Driver(fails="cuDeviceTotalMem_v2"))
    assert find_gpu(None) == replace(H200, memory_bytes=None)
    for call in ("cuInit", "cuDeviceGet", "cuDeviceGetAttribute"):
        monkeypatch.setattr(ctypes, "CDLL", lambda _, call=call: Driver(fails=call))
        assert find_gpu(None) is None


def test_no_gpu_without_jaxs_plugin_or_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> None:
        raise OSError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert find_gpu(None) is None
    monkeypatch.setattr(nvidia, "plugin", lambda: 12)
    assert find_gpu(None) is None


@pytest.mark.parametrize(("found", "trouble"), [("12.9.41", True), ("12.9.86", False), ("13.0.48", False)])
def test_which_compilers_are_trusted(monkeypatch: pytest.MonkeyPatch, found: str, trouble: bool) -> None:
    monkeypatch.setattr(nvidia, "plugin", lambda: 12)
    monkeypatch.setattr(nvidia, "version", lambda _: found)
    said = compiler_trouble()
    assert (said is not None) == trouble
    assert said is None or ("12.9.1" in said and found in said)
