"""scripts.peers --load schemas: the forms, what is read off a load, the page, real vocabularies, and a fake peer."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from jaxgen.server.benchmark.metrics import RequestRecord
from scripts.peers import cli
from scripts.peers.load import Window, window_figures
from scripts.peers.loads import LOADS
from scripts.peers.loads.forms import ORDER, TICKET, expression, whole
from scripts.peers.loads.schemas import WITH, WITHOUT, Schemas
from scripts.peers.loads.schemas_page import sections
from scripts.peers.records import Records
from scripts.peers.tokenizers import KnownTokenizer, of_ranks
from tests.support.peers import LIMITS, MACHINE, FakePeer, lines_with, server

FILLED_IN: dict[str, Any] = {
    "category": "billing",
    "sentiment": "neutral",
    "priority": "low",
    "customer_identifier": 1000,
    "needs_human_review": True,
    "requested_refund": False,
    "order": {"order_number": 999999, "number_of_items": 20, "shipping_method": "pickup"},
    "languages": ["english", "german"],
    "follow_up_date": "2026-12-09",
    "short_summary": "lamp, broken",
}
ORDERED = {"customer": "A", "address": "", "items": [{"product": "lamp", "quantity": 9, "wishes": "ü"}], "remarks": "-"}


def written(value: dict[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def test_an_expression_matches_what_fits_the_form() -> None:
    ticket = expression(TICKET)
    assert re.fullmatch(ticket, written(FILLED_IN))
    assert re.fullmatch(expression(ORDER), written(ORDERED))
    changes: tuple[dict[str, Any], ...] = (
        {"category": "billings"},
        {"customer_identifier": 999},
        {"languages": []},
        {"languages": ["german"] * 3},
        {"follow_up_date": "2026-13-01"},
        {"short_summary": "x" * 41},
        {"requested_refund": "true"},
    )
    for change in changes:
        assert not re.fullmatch(ticket, written(FILLED_IN | change)), change
    with pytest.raises(ValueError, match="no form"):
        expression(whole(1, 20))


def test_chunks_share_the_tokens_that_only_the_end_tells() -> None:
    """Of 6 tokens 3 chunks came, one of them in the window."""
    arrivals = ((1.0, 1), (2.0, 1), (9.0, 1))
    record = RequestRecord(
        outcome="completed",
        start=0.0,
        end=9.0,
        prompt_tokens=5,
        output_tokens=6,
        max_tokens=6,
        arrivals=arrivals,
        counted_by="final usage",
    )
    found = window_figures([record], Window(1.5, 3.5))
    assert found["output_tokens_per_s"] == pytest.approx(1.0)
    assert found["answer_tokens"] == 6


def half(rate: float, **fields: Any) -> dict[str, Any]:
    times = {"p50": 0.01, "p95": 0.02}
    known = {"output_tokens_per_s": rate, "requests_per_s": rate / 50, "answer_tokens": 50.0, "completed": 8}
    return {**known, "ttft_s": times, "inter_token_s": times, **fields}


def test_the_page_compares_medians(tmp_path: Path) -> None:
    records = Records.read(tmp_path / "r.jsonl")
    records.add("machine", **MACHINE)
    for peer, rates in (("jaxgen", (300.0, 600.0)), ("Other", (100.0, 150.0))):
        for index, rate in enumerate(rates):
            cell = {"clients": 4, "form": "ticket", WITH: half(rate, ended=6), WITHOUT: half(200.0)}
            records.add("server", **server(peer, index, [cell]))
    text = "\n".join(sections(records, LOADS["schemas"].shapes["88m-smollm2"]))
    assert "### 4 clients, ticket" in text
    (ours,) = lines_with(text, "| jaxgen | 2 | 450 |")
    assert ours.startswith("| jaxgen | 2 | 450 | 200 | 2.25 (1.50 to 3.00) | 9.00 | 50 | 75 % | 10.0 | 20.0 |")
    (theirs,) = lines_with(text, "| Other | 2 | 125 |")
    assert theirs.endswith("| 3.60 (3.00 to 4.00) |")


def test_a_fake_peer_is_measured_with_and_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its answers under a schema have half of the most tokens, and the free ones are as long."""
    monkeypatch.setattr("scripts.peers.comparison.measure_limits", lambda site: LIMITS)
    monkeypatch.setattr("scripts.peers.loads.schemas.MOST_TOKENS", 8)
    monkeypatch.setitem(cli.PEERS, "jaxgen", FakePeer("jaxgen"))
    flags = ["--load", "schemas", "--results", str(tmp_path / "r.jsonl"), "--work-dir", str(tmp_path)]
    flags += ["--peers", "jaxgen", "--rounds", "1", "--threads", "1", "--seconds", "0.2", "--warmup", "0.1"]
    assert cli.main([*flags, "--shape", "88m-smollm2", "--clients", "2", "--forms", "ticket"]) == 0
    (line,) = Records.read(tmp_path / "r.jsonl").of_kind("server")
    (found,) = line["cells"]
    assert Schemas.of(found) == Schemas(2, "ticket")
    assert [found[name]["answer_tokens"] for name in (WITH, WITHOUT)] == [4, 4]
    assert found[WITH]["ended"] == found[WITH]["completed"] > 0
    assert (found["failed"], found["wrong_lengths"]) == (0, 0)
    assert "### 2 clients, ticket" in (tmp_path / "r.md").read_text()
    assert cli.main(flags) == 2
    assert "--load schemas has the shapes 88m-smollm2, 1b-qwen" in capsys.readouterr().err


def test_ranks_make_a_tokenizer_that_merges_in_their_order() -> None:
    ranks = {bytes([byte]): byte for byte in range(256)} | {b"ab": 256, b"bc": 257, b"abc": 258, b" abc": 259}
    made = of_ranks(ranks, "qwen2")
    assert made.encode("abc abc bc").ids == [258, 259, 32, 257]
    text = "ü \x00é 東"
    assert made.decode(made.encode(text).ids) == text


def test_an_installed_tokenizer_names_the_ends_of_a_checkpoint(tmp_path: Path) -> None:
    def write(directory: Path) -> None:
        made = of_ranks({bytes([byte]): byte for byte in range(256)}, "qwen2")
        made.add_special_tokens(["<begin>", "<end>"])
        made.save(str(directory / "tokenizer.json"))
        about = {"bos_token": "<begin>", "eos_token": "<end>"}
        (directory / "tokenizer_config.json").write_text(json.dumps(about))

    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 300, "eos_token_id": 1}))
    KnownTokenizer("a", "qwen2", write).install(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config == {"vocab_size": 300, "bos_token_id": 256, "eos_token_id": 257}
    assert json.loads((tmp_path / "generation_config.json").read_text()) == {"bos_token_id": 256, "eos_token_id": 257}
    assert Tokenizer.from_file(str(tmp_path / "tokenizer.json")).token_to_id("<end>") == 257
