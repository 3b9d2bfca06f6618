"""python -m scripts.peers: what is read off a load, how rounds are paired, the page, and fake peers end to end."""

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest

from jaxgen.server.benchmark.metrics import RequestRecord
from scripts.page.markdown import write_page
from scripts.peers import cli
from scripts.peers.agreement import agree
from scripts.peers.comparison import Comparison
from scripts.peers.load import Cell, Times, Window, gaps, window_figures
from scripts.peers.loads import LOADS
from scripts.peers.loads.load import Load
from scripts.peers.page import rounds_of, sections
from scripts.peers.peer import MAX_MODEL_LEN, Peer, PeerError, Site
from scripts.peers.process import RunningServer, free_port
from scripts.peers.records import Records
from scripts.peers.shapes import FORMATS, SHAPES, Format, Shape
from scripts.peers.summary import Goal, overview, percentile_of, shown, verdict
from scripts.peers.token_server import Front, NewTokens
from tests.support.peers import LIMITS, MACHINE, FakePeer, lines_with, server


def record(start: float, arrivals: list[tuple[float, int]], **fields: Any) -> RequestRecord:
    tokens = sum(count for _, count in arrivals)
    known = {
        "outcome": "completed",
        "end": max((time for time, _ in arrivals), default=0.0),
        "prompt_tokens": 100,
        "output_tokens": tokens,
    }
    return RequestRecord(**{"start": start, "arrivals": tuple(arrivals), "max_tokens": tokens, **known, **fields})


def test_only_what_is_in_the_window_counts() -> None:
    """From 10 to 20: the end of one request, all of another, the begin of a third, which is cut."""
    records = [
        record(8.0, [(9.0, 1), (11.0, 1), (12.0, 2)]),
        record(12.0, [(12.5, 1), (13.0, 1)]),
        record(19.0, [(19.5, 1), (20.5, 1)], outcome="aborted", max_tokens=9),
    ]
    found = window_figures(records, Window(10.0, 20.0))
    assert found["output_tokens_per_s"] == pytest.approx(0.6)
    assert found["requests_per_s"] == pytest.approx(0.2)
    assert found["prompt_tokens_per_s"] == pytest.approx(20.0)
    assert found["ttft_s"]["count"] == 2
    assert found["ttft_s"]["mean"] == pytest.approx(0.5)
    assert found["inter_token_s"]["count"] == 4
    assert found["inter_token_s"]["mean"] == pytest.approx((2.0 + 0.5 + 0.5 + 0.5) / 4)
    assert (found["completed"], found["cut"], found["failed"], found["wrong_lengths"]) == (2, 1, 0, 0)


def test_tokens_that_arrive_together_share_the_gap_before_them() -> None:
    assert gaps(record(0.0, [(1.0, 1), (4.0, 3)]), Window(0.0, 9.0)) == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("asked", [3, 5])
def test_an_answer_of_another_length_is_wrong(asked: int) -> None:
    found = window_figures([record(0.0, [(1.0, 1), (2.0, 3)], max_tokens=asked)], Window(0.0, 9.0))
    assert found["wrong_lengths"] == 1


def test_a_request_without_a_token_has_an_infinite_ttft() -> None:
    silent = record(1.0, [], end=2.0, outcome="aborted")
    assert window_figures([silent], Window(0.0, 9.0))["ttft_s"]["p50"] is None


def cell(speed: float, p95: float | None = 0.02, **fields: Any) -> dict[str, Any]:
    times = {"p50": 0.01, "p95": p95, "p99": 0.03}
    known: dict[str, Any] = {"clients": 4, "rate": 0.0, "long_every": 0.0, "wrong_lengths": 0}
    known |= {"prompt_tokens_per_s": 1000.0, "effective_per_s": {"2": speed / 50, "4": speed / 100, "6": 0.0}}
    known |= {"requests_per_s": speed / 60, "output_tokens_per_s": speed, "ttft_s": times, "inter_token_s": times}
    return {**known, **fields}


def test_a_lead_compares_medians_and_shows_rounds_that_both_have() -> None:
    ours, theirs = {0: cell(100), 1: cell(300), 2: cell(500)}, {1: cell(100), 0: cell(100), 3: cell(400)}
    assert shown(RATE, ours, theirs) == "3.00 (1.00 to 3.00)"
    assert shown(RATE, theirs, ours) == "**0.33** (0.33 to 1.00)"
    assert shown(RATE, ours, {7: cell(100)}) == "3.00"
    assert shown(RATE, {}, theirs) == "-"
    assert shown(RATE, {0: cell(97.6)}, {0: cell(100)}) == "0.98"  # equal, so not bold


def test_a_lead_in_times_is_the_inverse() -> None:
    ours, theirs = {0: cell(1, 0.02), 1: cell(1, 0.02)}, {0: cell(1, 0.05), 1: cell(1, 0.04)}
    assert shown(TIME, ours, theirs) == "2.25 (2.00 to 2.50)"
    assert shown(TIME, ours, {0: cell(1, 0.05), 1: cell(1, None)}) == "-"


def test_agreement_counts_first_tokens_and_whole_answers() -> None:
    assert agree([[1, 2], [3, 4], [5, 6]], [[1, 2], [3, 9], [7, 6]]) == (2, 1)


def test_a_failure_stands_until_that_server_was_measured(tmp_path: Path) -> None:
    records = Records.read(tmp_path / "new.jsonl")
    about = {"peer": "a", "format": "float32"}
    for index, error in ((0, "old"), (0, "new"), (1, "other")):
        records.add("failure", round=index, **about, error=error)
    assert [one["error"] for one in records.failures()] == ["new", "other"]
    records.add("server", round=0, **about, cells=[])
    assert [one["error"] for one in Records.read(records.path).failures()] == ["other"]


def test_the_page_says_what_the_records_say(tmp_path: Path) -> None:
    records = Records.read(tmp_path / "r.jsonl")
    records.add("machine", **MACHINE)
    for index, rate in enumerate((200.0, 300.0, 100.0)):
        records.add("server", **server("jaxgen", index, [cell(rate), cell(9.0, 0.01, long_every=1.0, long=cell(2.0))]))
    came = cell(9.0, rate=2.0, clients=0)
    came["ttft_s"] = {**came["ttft_s"], "count": 3}
    records.add("server", **server("jaxgen", 3, [came]))
    slow = [cell(100.0, wrong_lengths=3), cell(9.0, 0.04, long_every=1.0, long=cell(2.0))]
    records.add("server", **server("Other", 0, slow))
    records.add("server", **server("Other", 1, [cell(100.0, None)], answers=[[1, 2], [3, 9]]))
    records.add("failure", round=2, peer="Other", format="float32", error="it broke\nbecause of that")
    write_page(sections(records, SHAPES["88m"]), tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    assert "| 4 | jaxgen | 3 | 200 | 2.00 | 10.0 | 20.0 | 10.0 | 20.0 | 30.0 |  |" in text
    assert "| 4 | Other | 2 | 100 | 1.00 | 10.0 | - | 10.0 | - | 30.0 |" in text  # a round has no P95
    assert "2.00 (2.00 to 3.00) |" in text
    assert "| 1000 | 4.00 |" in text
    assert "### 4 clients with a prompt of 2,000 tokens every second" in text
    assert "| output tokens/s | jaxgen 2.00 |" in text
    assert "jaxgen is best or equal in 4 of 4 comparisons." in text
    assert "Completions of a wrong length: 3." in text
    assert "are in float32 2 first tokens and 1 completions of Other. Random" in " ".join(text.split())
    assert "| 2 | 1.5 | jaxgen | 1 |" in text
    assert "- Other, float32, round 2: `it broke` ... `because of that`" in text
    assert lines_with(text, "| Other | Other 1.2 | as it comes | 3 | 1.00 |")


RATE = Goal("tokens/s", lambda line: line["output_tokens_per_s"], is_time=False)
TIME = Goal("gap", percentile_of("inter_token_s", "p95"), is_time=True)


@pytest.mark.parametrize(
    ("goal", "ours", "others", "expected"),
    [
        (RATE, [300.0], {"a": [100.0], "b": [200.0]}, "jaxgen 1.50"),
        (RATE, [100.0, 100.0, 300.0], {"a": [200.0, 200.0, 100.0]}, "**a 0.50**"),
        (RATE, [102.4], {"a": [100.0]}, "equal"),
        (RATE, [102.6], {"a": [100.0]}, "jaxgen 1.03"),
        (RATE, [97.6], {"a": [100.0]}, "equal"),
        (RATE, [97.4], {"a": [100.0]}, "**a 0.97**"),
        (RATE, [0.0], {"a": [0.0]}, "none"),
        (RATE, [2.0, 2.0], {"a": [0.0, 0.0]}, "only jaxgen"),
        (RATE, [2.0, 2.0], {"a": [0.0, 1.0]}, "jaxgen 4.00"),
        (RATE, [0.0], {"a": [3.0]}, "**only a**"),
        (RATE, [1.0], {}, "-"),
        (TIME, [0.02], {"a": [0.03]}, "jaxgen 1.50"),
        (TIME, [0.04], {"a": [0.02]}, "**a 0.50**"),
        (TIME, [0.04], {"a": [None]}, "only jaxgen"),
        (TIME, [None], {"a": [0.04]}, "**only a**"),
        (TIME, [None], {"a": [None]}, "none"),
    ],
)
def test_a_cell_names_the_best_server(goal: Goal, ours: list[Any], others: dict[str, list[Any]], expected: str) -> None:
    rounds = {
        name: {i: cell(one, 0.1) if goal is RATE else cell(1.0, one) for i, one in enumerate(figures)}
        for name, figures in {"jaxgen": ours, **others}.items()
    }
    assert overview("x", [("4", rounds)], [goal]).splitlines()[-1] == f"| {goal.title} | {expected} |"


def test_the_verdict_says_who_is_best_where() -> None:
    loads = [
        (str(rate), {"jaxgen": {0: cell(100.0, 0.02)}, "a": {0: cell(rate, p95)}, "b": {0: cell(101.0, 0.03)}})
        for rate, p95 in ((50.0, 0.01), (200.0, 0.01))
    ]
    assert list(verdict({"x": loads}, [RATE, TIME])) == [
        "jaxgen is best or equal in 1 of 4 comparisons. In the others, the best servers are:",
        "a in gap: x with 50.0 and 200.0.",
        "a in tokens/s: x with 200.0.",
    ]
    assert list(verdict({"x": loads[:1]}, [RATE])) == ["jaxgen is best or equal in 1 of 1 comparisons."]
    alone = {"x": [("1", {"a": {0: cell(1.0)}})]}
    assert list(verdict(alone, [RATE])) == ["No load has been measured with two servers."]


@pytest.mark.parametrize(
    "shape",
    [shape for kind in LOADS.values() for shape in kind.shapes.values() if shape.results.exists()],
    ids=lambda shape: shape.page.name,
)
def test_pages_are_those_of_their_results(shape: Shape, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    write_page(LOADS[shape.load].sections(Records.read(shape.results), shape), page)
    assert page.read_text() == shape.page.read_text(), "run the command at the end of the page"


def test_the_page_of_nothing_says_so(tmp_path: Path) -> None:
    """Beside other results than the project's own, not in place of its page."""
    assert cli.main(["--page-only", "--results", str(tmp_path / "r.jsonl")]) == 0
    assert "Nothing has been measured yet" in (tmp_path / "r.md").read_text()


@pytest.fixture(autouse=True)
def _known_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scripts.peers.comparison.measure_limits", lambda site: LIMITS)


def compare(tmp_path: Path, *peers: FakePeer, seconds: float = 0.4, threads: int = 1) -> Records:
    records = Records.read(tmp_path / "r.jsonl")
    loads = [Cell(clients=2), Cell(clients=1, long_every=1.0), Cell(rate=20.0)]
    comparison = Comparison(records, Site(tmp_path, threads, "88m"), loads, Times(seconds, 0.02, 10.0))
    comparison.run([(peer, FORMATS["float32"]) for peer in peers], 1)
    return Records.read(records.path)


def test_peers_take_turns_and_one_that_fails_stops_no_other(tmp_path: Path) -> None:
    broken = FakePeer("broken", command=[sys.executable, "-c", "raise SystemExit('out of order')"])
    peers = FakePeer("jaxgen"), broken, FakePeer("wordy", extra=2)
    records = compare(tmp_path, *peers)
    ours, wordy = records.of_kind("server")
    for one in (ours, wordy):
        closed, beside, arriving = one["cells"]
        assert closed["completed"] > 2
        assert closed["warmup_s"] > 0.03  # two answers
        assert beside["warmup_s"] == pytest.approx(0.02)
        assert closed["output_tokens_per_s"] > 0
        assert closed["effective_per_s"]["6"] > 0
        assert arriving["warmup_s"] == pytest.approx(0.02)
        assert arriving["completed"] > 2
        assert beside["long"]["completed"] <= 1  # none if it takes longer than the window
        assert "long" not in closed
        assert closed["inter_token_s"]["p50"] > 0.0
        assert one["peak_rss"] >= 0
    assert ours["answers"] == wordy["answers"]
    assert all(found["wrong_lengths"] == 0 for found in ours["cells"])
    assert all(found["wrong_lengths"] == found["completed"] for found in wordy["cells"])
    (failure,) = records.failures()
    assert failure["peer"] == "broken"
    assert "the server ended with 1:\nout of order" in failure["error"]
    assert set(rounds_of(records.of_kind("server"), Cell(clients=2))["wordy"]) == {0}

    again = compare(tmp_path, *peers)
    assert [peer.started for peer in peers] == [1, 2, 1]
    assert len(again.of_kind("server")) == 2
    assert len(again.failures()) == 1
    assert len(compare(tmp_path, peers[0], seconds=0.3).of_kind("server")) == 3
    with pytest.raises(PeerError, match=r"r\.jsonl is of .*, 1 threads, shape 88m: give --results another file"):
        compare(tmp_path, *peers, threads=2)


def test_a_server_that_has_ended_may_be_watched(tmp_path: Path) -> None:
    """It can end, and be found to have, before the thread that watches it begins."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    server = RunningServer(process, free_port(), tmp_path / "log")
    process.wait()
    server.stop()
    server.watch()
    assert server.peak_rss == 0


def test_a_client_that_leaves_is_cancelled() -> None:
    async def leave_early() -> list[object]:
        front, engine = Pipe()
        port = free_port()
        serving = asyncio.ensure_future(Front(front).serve(port))
        await asyncio.sleep(0.05)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        body = b'{"prompt": [1], "max_tokens": 9, "stream": true}'
        writer.write(b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        messages = [await asyncio.to_thread(engine.recv)]
        engine.send([NewTokens(0, [7])])
        await reader.readuntil(b'"token_ids": [7]')
        writer.close()
        messages.append(await asyncio.to_thread(engine.recv))
        engine.close()
        await serving
        return messages

    assert asyncio.run(asyncio.wait_for(leave_early(), 120)) == [(0, ([1], 9, None)), (0, None)]


def test_flags_are_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    for flags, message in (
        (
            ["--peers", "jaxgen,nobody"],
            "argument --peers: no nobody; there are jaxgen, OpenVINO GenAI, OpenVINO",
        ),
        (["--peers", "vLLM:int2"], "argument --peers: no int2; there are bfloat16, float32, int8, int4"),
        (["--formats", "int2"], "argument --formats: no int2; there are bfloat16, float32, int8, int4"),
        (["--rates", "1,0"], "argument --rates: must be a number of more than 0, not '0'"),
        (["--seconds", "0"], "argument --seconds: must be a number of more than 0, not '0'"),
        (["--clients", "4,x"], "argument --clients: must be a whole number"),
    ):
        with pytest.raises(SystemExit):
            cli.main(flags)
        assert message in capsys.readouterr().err


def test_each_shape_has_its_turns_and_loads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every peer in each format that it computes, unless one is asked for in one format alone."""
    ran: list[tuple[str, str]] = []
    cells: list[Load] = []

    class Recorded(Comparison):
        def __init__(self, records: Records, site: Site, loads: Sequence[Load], times: Times) -> None:
            cells[:] = loads

        def run(self, turns: Sequence[tuple[Peer, Format]], rounds: int) -> None:
            ran[:] = [(peer.name, wanted.name) for peer, wanted in turns]

    monkeypatch.setattr(cli, "Comparison", Recorded)
    flags = ["--results", str(tmp_path / "r.jsonl"), "--rates", "0.5,1"]
    assert cli.main([*flags, "--shape", "1b"]) == 0
    assert ("llama.cpp", "int4") in ran
    assert ("llama.cpp", "bfloat16") not in ran
    assert {name for name, wanted in ran if wanted == "bfloat16"} == {"jaxgen", "OpenVINO GenAI"}
    assert [load.name for load in cells] == ["1 client", "4 clients", "16 clients", "0.5 requests/s", "1 requests/s"]
    assert cli.main([*flags, "--peers", "vLLM,llama.cpp:float32", "--formats", "float32,int8"]) == 0
    assert ran == [("vLLM", "float32"), ("llama.cpp", "float32")]
    assert cli.main([*flags, "--peers", "vLLM", "--formats", "int8"]) == 2


def test_only_rounded_weights_have_a_flag(tmp_path: Path) -> None:
    site = Site(tmp_path, 2, "1b")
    (tmp_path / "models" / f"1b-{MAX_MODEL_LEN}" / "bfloat16").mkdir(parents=True)
    whole, rounded = (
        " ".join(cli.PEERS["jaxgen"].launch(site, FORMATS[name], 1).command) for name in ("bfloat16", "int4")
    )
    assert whole.endswith("--dtype bfloat16")
    assert rounded.endswith("--dtype bfloat16 --quantization int4")
