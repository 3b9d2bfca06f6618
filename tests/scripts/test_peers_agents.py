"""scripts.peers --load agents: what a conversation sends, what is read off it, the page, and fake peers end to end."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jaxgen.server.app import create_app
from jaxgen.server.benchmark.client import LoadError
from jaxgen.server.benchmark.metrics import RequestRecord
from scripts.measure.agents import told
from scripts.peers import cli
from scripts.peers.loads import LOADS
from scripts.peers.loads.agents import Agents, Turn, figures, run
from scripts.peers.loads.agents_page import sections
from scripts.peers.peer import token_ids
from scripts.peers.records import Records
from tests.support.fakes import MODEL, FakeEngine
from tests.support.live_server import serve
from tests.support.peers import LIMITS, MACHINE, FakePeer, lines_with, server
from tests.support.server_app import fake_engine

LOAD = Agents(2, 3, system=7, new=4, answer=5)


def converse(engine: FakeEngine, model: str = MODEL, load: Agents = LOAD) -> list[list[Turn]]:
    with serve(create_app(engine)) as url:
        return asyncio.run(run(f"{url}/v1", model, load, 250, 3, token_ids, 10.0))


def test_a_turn_sends_all_before_it_with_the_answers_as_they_came() -> None:
    engine = fake_engine(cached=6)
    found = converse(engine)
    prompts = {length: [r.prompt for r in engine.requests if len(r.prompt) == length] for length in (11, 20, 29)}
    assert [len(some) for some in prompts.values()] == [2, 2, 2]
    assert len({prompt[:7] for prompt in prompts[29]}) == 1
    assert len(set(prompts[11])) == 2
    for one in prompts[29]:
        for before in (11, 20):
            assert one[:before] in prompts[before]
            assert one[before] == one[before - 1] % 256 + 2  # where a fake engine begins to count
    for turns in found:
        assert [turn.known for turn in turns] == [0, 16, 25]
        assert [turn.cached for turn in turns] == [6, 6, 6]
        assert [turn.record.output_tokens for turn in turns] == [5, 5, 5]


def test_answers_that_differ_are_the_same_for_each_server() -> None:
    load = replace(LOAD, answer=9, spread=8)
    drawn = [[[one.record.max_tokens for one in turns] for turns in converse(fake_engine(), load=load)] for _ in "ab"]
    assert drawn[0] == drawn[1]
    assert len({length for turns in drawn[0] for length in turns}) > 1
    assert all(length is not None and 1 <= length <= 17 for turns in drawn[0] for length in turns)


def test_a_refusal_ends_the_run_with_its_reason() -> None:
    with pytest.raises(LoadError, match=r"HTTP 404: .*nobody"):
        converse(fake_engine(), model="nobody")


def turn(first: float, known: int, cached: int | None, tokens: int = 2) -> Turn:
    arrivals = ((10.0 + first, 1), (10.5 + first, tokens - 1))
    record = RequestRecord(
        outcome="completed",
        start=10.0,
        end=11.0,
        prompt_tokens=9,
        output_tokens=tokens,
        max_tokens=2,
        arrivals=arrivals,
    )
    return Turn(record, known, cached)


def test_first_turns_count_for_themselves_alone() -> None:
    found = figures([[turn(9.0, 0, 0), turn(0.1, 20, 19)], [turn(7.0, 0, 0), turn(0.3, 20, 15, tokens=3)]], 4.0)
    assert found["ttft_s"]["p50"] == pytest.approx(0.2)
    assert found["ttft_by_turn_s"] == pytest.approx([8.0, 0.2])
    assert found["cached_by_turn"] == [0, 17]
    assert found["computed_again"] == {"median": 3, "most": 5}
    assert found["output_tokens_per_s"] == pytest.approx(9 / 4)
    assert found["inter_token_s"]["count"] == 5
    assert (found["completed"], found["wrong_lengths"]) == (4, 1)


def test_a_server_that_does_not_say_what_was_cached_has_no_such_figure() -> None:
    found = figures([[turn(9.0, 0, None), turn(0.1, 20, None)]], 4.0)
    assert found["computed_again"] is None
    assert found["cached_by_turn"] == [None, None]
    assert "cached tokens not told" in Agents(1, 2).summary(found)


def test_chunks_of_hits_are_read_off_the_feed() -> None:
    """One request found nothing cached, one is of a time before."""
    fields = ["number", "time", "seconds", "predicted", "prompt"]
    steps = [[1, 5.0, 1.0, 9.0, 3], [2, 6.0, 0.1, 0.05, 0], [3, 7.0, 0.1, 0.2, 3]]
    events = [[4.0, 1, "begun", 9, 0], [4.5, 1, "chunk", 9, 1]]
    events += [[6.0, 2, "begun", 9, 0], [6.1, 2, "chunk", 9, 5], [6.2, 2, "chunk", 14, 1]]
    events += [[6.0, 3, "begun", 0, 0], [6.3, 3, "chunk", 0, 5], [6.3, 2, "first"]]
    text = told({"fields": fields, "steps": steps, "events": events}, 5.0)
    assert text == "chunks per hit: {2: 1}; predicted over measured: decodes alone 0.50; with prompts 2.00"


def cell(load: Agents, first: float, cached: int | None) -> dict[str, Any]:
    found = figures([[turn(4 * first, 0, cached), turn(first, 20, cached)]], 2.0)
    return {
        "agents": load.agents,
        "turns": 2,
        "system": 2000,
        "new": 150,
        "answer": 120,
        "spread": load.spread,
        **found,
    }


def test_the_page_compares_medians(tmp_path: Path) -> None:
    records = Records.read(tmp_path / "r.jsonl")
    records.add("machine", **MACHINE)
    load = Agents(8, 2)
    for index, first in enumerate((0.1, 0.2, 0.4)):
        records.add("server", **server("jaxgen", index, [cell(load, first, 19)]))
    records.add("server", **server("Other", 1, [cell(load, 0.3, None)]))
    text = "\n".join(sections(records, LOADS["agents"].shapes["88m"]))
    assert "| 8 agents of 2 turns | jaxgen | 3 | 200 | 200 | 800 | 500 | 500 | 2.0 | 1, 1 |  |  |" in text
    (theirs,) = lines_with(text, "| 8 agents of 2 turns | Other | 1 | 300 | 300 | 1200 | 500 |")
    assert theirs.endswith("| 500 | 2.0 | - | 1.50 | 1.50 |")
    assert lines_with(text, "| 8 agents of 2 turns | Other | 1200 | 300 |")
    assert lines_with(text, "| first token (TTFT) P50 | jaxgen 1.50 |")


def test_fake_peers_are_compared_and_their_page_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("scripts.peers.comparison.measure_limits", lambda site: LIMITS)
    monkeypatch.setitem(cli.PEERS, "jaxgen", FakePeer("jaxgen"))
    flags = ["--load", "agents", "--agents", "2x2", "--results", str(tmp_path / "r.jsonl"), "--work-dir", str(tmp_path)]
    assert cli.main([*flags, "--peers", "jaxgen", "--rounds", "1", "--threads", "1"]) == 0
    (line,) = Records.read(tmp_path / "r.jsonl").of_kind("server")
    (found,) = line["cells"]
    assert (found["agents"], found["completed"], found["wrong_lengths"]) == (2, 4, 0)
    assert "| 2 agents of 2 turns | jaxgen |" in (tmp_path / "r.md").read_text()
    assert cli.main([*flags, "--shape", "gemma-3-270m"]) == 2
    assert "--load agents has the shapes 88m, 1b" in capsys.readouterr().err
    for wrong, message in (("8x1", "2 or more, such as 8x12, or 8x12~40"), ("8x2~120", "differ by less than 120")):
        with pytest.raises(SystemExit):
            cli.main(["--agents", wrong])
        err = capsys.readouterr().err
        assert "argument --agents: must " in err
        assert message in err
        assert f"not '{wrong}'" in err
