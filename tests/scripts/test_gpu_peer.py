"""python -m scripts.gpu.peer: a dry run with fake servers, what it keeps, its plan, the servers and the page."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scripts.gpu.peer import cli, servers
from scripts.gpu.peer.loads import Clients
from scripts.gpu.peer.page import sections
from scripts.gpu.peer.plan import ALL_SECONDS, CALL_SECONDS, plan, turn_seconds
from scripts.gpu.peer.run import Run, shown, without_folders
from scripts.gpu.peer.servers import Attempt, Server
from scripts.gpu.peer.settings import DRY, FULL, closed_loops
from scripts.page.markdown import write_page
from scripts.peers.peer import Launch, PeerError
from scripts.peers.process import free_port, running
from scripts.peers.records import Records
from tests.support.paths import ROOT
from tests.support.peers import lines_with


def fake(name: str) -> Server:
    """Return a server that computes nothing, and that is ready at its first attempt."""
    return replace(servers.fake(), name=name, attempts=servers.fake().attempts[1:])


@pytest.fixture
def dry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Flags of a dry run with a fake server in jaxgen's place too."""
    monkeypatch.setattr(servers, "jaxgen", lambda *_: fake("jaxgen"))
    return ["--dry-run", "--work-dir", str(tmp_path), "--rounds", "1"]


def test_a_dry_run_keeps_every_load_and_goes_on_where_it_ended(
    tmp_path: Path, dry: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    results, real = tmp_path / "dry-run.jsonl", Clients.measure

    def interrupted(load: Clients, *args: Any) -> dict[str, Any]:
        if load.clients == 4:
            raise KeyboardInterrupt
        return real(load, *args)

    with monkeypatch.context() as patched:
        patched.setattr(Clients, "measure", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cli.main(dry)
    (kept,) = Records.read(results).of_kind("load")
    assert (kept["peer"], kept["clients"]) == ("jaxgen", 1)
    assert kept["output_tokens_per_s"] > 0
    assert set(kept["effective_per_s"]) == {"2", "4", "6"}

    assert cli.main(dry) == 0
    records = Records.read(results)
    assert [(line["peer"], line["clients"], line.get("requests")) for line in records.of_kind("load")] == [
        (peer, clients, requests)
        for peer in ("jaxgen", "fake server")
        for clients, requests in ((1, None), (4, None), (1, 2))
    ]
    attempts = [(line["attempt"], line["error"] is None) for line in records.of_kind("start", peer="fake server")]
    assert attempts == [("default", False), ("without compile", True)]
    assert "this attempt fails" in records.of_kind("start", attempt="default")[0]["error"]
    assert all(line["wrong_lengths"] == 0 for line in records.of_kind("load"))
    text = (tmp_path / "dry-run.md").read_text()
    assert "This is a dry run" in text
    assert lines_with(text, "| 4 | fake server |")
    assert "- fake server, round 0, start (default): `the server ended" in text

    size = len(records.lines)
    assert cli.main(dry) == 0
    assert len(Records.read(results).lines) == size


def test_no_turn_begins_that_would_not_end_in_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = Records.read(tmp_path / "r.jsonl")
    run = Run(records, DRY.warm_up, DRY.loads, time.monotonic() + 49.0, tmp_path)
    late = Server("late", (Attempt("default", fake("x").attempts[0].launch, 200.0),))
    assert not run.go([late], 1, same_weights=False)
    assert records.of_kind("missing")[0]["why"] == "no time was left to start it: default"
    records.add("turn", round=0, peer="slow", seconds=99.0, complete=True)
    assert not run.go([replace(fake("slow"), url="http://127.0.0.1:9/v1")], 1, same_weights=False)
    assert records.of_kind("missing", peer="slow")[0]["why"] == "no time was left: it takes 99 s"
    run = Run(records, DRY.warm_up, DRY.loads, time.monotonic() + 30.0, tmp_path)
    assert not run.go([Server("short", (), url="http://127.0.0.1:9/v1")], 1, same_weights=False)
    whys = [line["why"] for line in records.of_kind("missing", peer="short")]
    assert whys == [f"{load.name}: no time was left" for load in (DRY.warm_up, *DRY.loads)]
    assert not records.of_kind("load")


def test_a_server_that_runs_already_is_measured_at_its_address(tmp_path: Path) -> None:
    port = free_port()
    with running(
        fake("other").attempts[0].launch(port), port, sorted(os.sched_getaffinity(0)), tmp_path / "log"
    ) as server:
        flags = ["--dry-run", "--servers", "peer", "--peer-url", server.base_url, "--peer-name", "other"]
        assert cli.main([*flags, "--rounds", "1", "--work-dir", str(tmp_path)]) == 0
    records = Records.read(tmp_path / "dry-run.jsonl")
    assert {line["peer"] for line in records.of_kind("load")} == {"other"}
    assert "No load has been measured with two servers." in (tmp_path / "dry-run.md").read_text()


def test_the_defaults_fit_into_a_call_and_two_calls_into_all() -> None:
    loads = (FULL.warm_up, *FULL.loads)
    compared = [
        servers.jaxgen(FULL, ROOT, ROOT / ".gpu", "dummy", ()),
        servers.vllm(FULL, ROOT, "python", "dummy", (), {}),
    ]
    assert sum(turn_seconds(server, loads) for server in compared) <= CALL_SECONDS <= 600
    assert ALL_SECONDS <= 900
    text = plan(compared, loads, 2, CALL_SECONDS)
    assert "fits into this call's 570" in text
    assert "may not fit into this call's 300" in plan(compared, loads, 2, 300.0)
    assert "vLLM, if it is not ready: without compile 120, eager 90" in text


def test_clients_without_times_of_their_own_have_those_of_the_next() -> None:
    assert [(load.clients, load.seconds) for load in closed_loops([1, 8, 512])] == [(1, 6.0), (8, 6.0), (512, 10.0)]


def test_vllm_is_tried_as_it_is_then_with_less() -> None:
    server = servers.vllm(FULL, Path("/m"), "/v/python", "dummy", ("--x",), {"PYTHONPATH": "/site"})
    launches = [attempt.launch(5) for attempt in server.attempts]
    assert server.name == "vLLM --x"
    assert [attempt.name for attempt in server.attempts] == ["default", "without compile", "eager"]
    assert launches[0].command[:5] == ["/v/python", "-m", "vllm.entrypoints.cli.main", "serve", "/m"]
    assert launches[0].command[-3:] == ["--x", "--port", "5"]
    assert launches[2].command[-3:] == ["--enforce-eager", "--port", "5"]
    assert (launches[1].env["PYTHONPATH"], launches[1].env["PYTHONSAFEPATH"]) == ("/site", "1")


VLLM = """
import runpy, sys
if "--enforce-eager" not in sys.argv:
    raise SystemExit("no compiler here")
sys.argv[1:] = [sys.argv[sys.argv.index("--port") + 1], "0"]
runpy.run_module("tests.support.fake_peer", run_name="__main__")
"""


def test_attempts_of_vllm_go_on_until_one_is_ready(tmp_path: Path, dry: list[str]) -> None:
    """In place of vLLM there is a package of its name that runs only eagerly."""
    package = tmp_path / "site" / "vllm" / "entrypoints" / "cli"
    package.mkdir(parents=True)
    (package / "main.py").write_text(VLLM)
    (tmp_path / "site" / "vllm-1.2.dist-info").mkdir()
    (tmp_path / "site" / "vllm-1.2.dist-info" / "METADATA").write_text("Name: vllm\nVersion: 1.2\n")
    site = f"PYTHONPATH={tmp_path / 'site'}:{ROOT}"
    assert cli.main([*dry, "--servers", "peer", "--peer-python", sys.executable, "--peer-env", site]) == 0
    records = Records.read(tmp_path / "dry-run.jsonl")
    *failed, ready = records.of_kind("start")
    assert [line["attempt"] for line in failed] == ["default", "without compile"]
    assert all("no compiler here" in line["error"] for line in failed)
    assert (ready["attempt"], ready["versions"]["vllm"], ready["env"]["PYTHONSAFEPATH"]) == ("eager", "1.2", "1")
    assert ready["command"][1:5] == ["-m", "vllm.entrypoints.cli.main", "serve", "model"]
    assert len(records.of_kind("load", peer="vLLM")) == len(DRY.loads)


def test_a_command_has_model_and_port_filled_in() -> None:
    server = servers.by_command("run {model} --at=:{port} --as {name}", "other", Path("/m"), "it", "final", {"A": "1"})
    assert server.attempts[0].launch(7) == Launch(["run", "/m", "--at=:7", "--as", "it"], {"A": "1"})
    with pytest.raises(PeerError, match=r"--peer-command has no \{port\}"):
        servers.by_command("run {model}", "other", Path("/m"), "it", "final", {})


def test_records_have_no_folders_of_this_machine() -> None:
    command = ["/a/b/python", "--dir=/c/d/e", "http://h/v1", "--port", "77"]
    assert shown(command, 77) == ["python", "--dir=e", "http://h/v1", "--port", "PORT"]
    assert without_folders('File "/usr/lib/x.py", line 1') == 'File "x.py", line 1'


def test_flags_that_do_not_go_together_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "machine", lambda: {"gpu": None})
    for flags, message in (
        ([], "give --peer-python, --peer-command or --peer-url, or --servers jaxgen"),
        (["--peer-url", "http://h/v1"], "the server at --peer-url holds the device's memory: give --servers peer"),
        (["--peer-url", "u", "--peer-command", "c"], "--peer-python, --peer-command and --peer-url exclude each other"),
        (["--peer-python", sys.executable], "has no package vllm: name the Python that has it"),
        (["--peer-python", "/no/python"], "--peer-python /no/python does not run"),
        (["--dry-run", "--clients", "2"], "--dry-run has clients of its own: leave --clients out"),
        (["--servers", "jaxgen"], "nvidia-smi finds no GPU here; --dry-run runs everything on the CPU"),
    ):
        assert cli.main([*flags, "--work-dir", str(tmp_path), "--results", str(tmp_path / "r.jsonl")]) == 2, flags
        assert message in capsys.readouterr().err
    for flags, message in (
        (["--clients", "4,0"], "--clients: must be whole numbers of 1 or more, such as 64,256, not '4,0'"),
        (["--servers", "vllm"], "--servers: must be jaxgen, peer or both, not 'vllm'"),
        (["--peer-env", "A"], "--peer-env: must be NAME=VALUE, not 'A'"),
    ):
        with pytest.raises(SystemExit):
            cli.main(flags)
        assert message in capsys.readouterr().err


def test_results_of_another_machine_are_refused(
    tmp_path: Path, dry: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    about = {"gpu": "NVIDIA X", "model": "m"}
    Records.read(tmp_path / "dry-run.jsonl").add("machine", **about)
    assert cli.main(dry) == 2
    assert "dry-run.jsonl is of NVIDIA X and m: give --results another file" in capsys.readouterr().err


def figures(rate: float, p95: float) -> dict[str, Any]:
    times = {"p50": p95 / 2, "p95": p95, "p99": p95}
    effective = {"2": rate / 100, "4": rate / 200, "6": rate / 200}
    counts = {"wrong_lengths": 0, "client_cpu_share": 0.25, "prompt_tokens_per_s": 20_000.0}
    return {
        "output_tokens_per_s": rate,
        "effective_per_s": effective,
        "ttft_s": times,
        "inter_token_s": times,
        **counts,
    }


def test_the_page_says_what_to_choose_and_how_it_was_measured(tmp_path: Path) -> None:
    records = Records.read(tmp_path / "made.jsonl")
    machine = {"gpu": "GPU X", "driver": "1.2", "memory_mib": "9", "power_limit_w": "7", "cores": 4, "dry_run": False}
    records.add("machine", **machine, model="a model", weights="random", started="2026-01-02")
    for index in range(2):
        for peer, rates, p95 in (("jaxgen", (100.0, 500.0), 0.02), ("vLLM", (50.0, 1000.0), 0.04)):
            key = {"round": index, "peer": peer}
            command = ["python", "serve", "--port", "PORT"]
            records.add("start", **key, attempt="eager", command=command, versions={"v": "1"}, error=None, seconds=9.0)
            records.add("answers", **key, answers=[[1, 2], [3, 4 if peer == "vLLM" else 5]])
            for load, rate in zip(closed_loops([1, 256]), rates, strict=True):
                records.add("load", **key, **load.key, **figures(rate, p95))
            records.add("load", **key, **FULL.loads[-1].key, **figures(10.0, 10 * p95))
            records.add("turn", **key, seconds=70.0, complete=True)
    records.add("start", round=0, peer="vLLM", attempt="default", command=[], error="out of memory\nat last")
    records.add("missing", round=1, peer="vLLM", why="no time was left")
    records.add("missing", round=2, peer="vLLM", why="256 clients: no time was left")
    page = tmp_path / "made.md"
    write_page(sections(records), page)
    text = page.read_text()
    flat = " ".join(text.split())
    assert "jaxgen is best or equal in 6 of 8 comparisons. In the others, the best servers are:" in flat
    assert "- vLLM in output tokens/s: with 256 clients." in text
    assert (
        "- **1 client**: jaxgen is ahead in output tokens/s (2.00 times), first token (TTFT) P95 (2.00 times)" in flat
    )
    assert (
        "- **256 clients**: vLLM is ahead in output tokens/s (2.00 times) and requests/s within targets (2.00" in flat
    )
    assert "| 256 | vLLM | 2 | 1000 | 5.00 | 20.0 | 40.0 | 20.0 | 40.0 | 40.0 | **0.50** (0.50 to 0.50) |" in text
    assert "| vLLM | 2 | 200 | 400 | 20000 | 2.00 (2.00 to 2.00) |" in text
    assert "GPU X, 9 MiB, 7 W, driver 1.2; 4 cores" in flat
    assert "Of 2 greedy completions 2 agree with vLLM's in the first token, 1 in all 2." in flat
    assert "| vLLM | v 1 | eager | `python serve --port PORT` | 9, 9 |" in text
    assert "- vLLM, round 0, start (default): `out of memory ... at last`" in text
    assert "- vLLM, round 2: 256 clients: no time was left" in text
    assert "round 1: no time" not in text
    assert "Not measured yet" not in text


def test_the_page_is_that_of_the_results(tmp_path: Path) -> None:
    """Where nothing was measured it says so, and has no figure."""
    records = Records.read(cli.RESULTS)
    write_page(sections(records), tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    assert text == cli.PAGE.read_text(), "run python -m scripts.gpu.peer --page-only"
    assert ("**Not measured yet.**" in text) is not bool(records.of_kind("load"))


@pytest.mark.full
def test_the_dry_run_has_a_real_jaxgen(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "scripts.gpu.peer", "--dry-run", "--work-dir", str(tmp_path), "--rounds", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in (tmp_path / "dry-run.jsonl").read_text().splitlines()]
    assert {(line["peer"], line["clients"]) for line in lines if line["kind"] == "load"} == {
        (peer, clients) for peer in ("jaxgen", "fake server") for clients in (1, 4)
    }
    (start,) = [line for line in lines if line["kind"] == "start" and line["peer"] == "jaxgen"]
    assert start["facts"]
