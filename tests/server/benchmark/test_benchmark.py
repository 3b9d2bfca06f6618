"""Loads of the benchmark command: what it sends, when, and what it counts."""

import asyncio
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from jaxgen.core.request import Request
from jaxgen.server.benchmark.requests import Lengths
from tests.support import tiny_tokenizers
from tests.support.benchmark_runs import measure
from tests.support.fakes import MODEL, FakeEngine, says
from tests.support.server_app import TOKENIZER, fake_engine

LENGTHS = Lengths(prompt_mean=20, prompt_max=40, output_mean=8, output_max=16)


def together(engine: FakeEngine, count: int) -> None:
    """Make the engine hold every request until ``count`` of them have been open at once."""
    seen = asyncio.Event()

    async def pace(request: Request, index: int) -> None:
        if len(engine.open) >= count:
            seen.set()
        await seen.wait()

    engine.pace = pace


def test_closed_loop_counts_and_json_line(tmp_path: Path) -> None:
    engine = fake_engine()
    run = measure(engine, tmp_path / "o.jsonl", "--clients", "1,3", "--requests", "7", "--warmup", "2", "--seed", "5")
    assert set(run) == {"schema", "started", "settings", "server", "environment", "interrupted", "points"}
    assert run["server"] == {"model": MODEL, "max_model_len": 128}
    assert run["settings"]["seed"] == 5
    assert run["settings"]["output_max"] == 16
    assert not run["interrupted"]
    assert [(point["mode"], point["load"]) for point in run["points"]] == [("closed", 1), ("closed", 3)]
    lengths = LENGTHS.draw(5, 7)
    for point in run["points"]:
        assert point["requests"] == {
            "sent": 7,
            "completed": 7,
            "failed": 0,
            "aborted": 0,
            "not_sent": 0,
            "reasons": {},
        }
        assert point["prompt_tokens"] == sum(prompt for prompt, _ in lengths)
        assert point["output_tokens"] == sum(output for _, output in lengths)
        assert point["tokens_counted_by"] == {"continuous usage": 7}
        assert point["inter_token_s"]["count"] == point["output_tokens"] - 7
        assert point["ttft_s"]["count"] == point["e2e_s"]["count"] == 7
        assert [promised["sla_tokens_per_s"] for promised in point["effective"]] == [2, 4, 6]
        assert point["warmup_not_completed"] == 0
    assert len(engine.requests) == (2 + 7) + (6 + 7)
    sent = [(len(request.prompt), request.params.max_tokens) for request in engine.requests]
    assert sorted(sent[2:9]) == sorted(sent[15:]) == sorted(lengths)
    assert len({request.prompt for request in engine.requests}) == len(sent), "no prompt is in a prefix cache already"
    assert all(request.params.ignore_eos for request in engine.requests)


def test_each_run_appends_a_line(tmp_path: Path) -> None:
    for _ in range(2):
        measure(fake_engine(), tmp_path / "o.jsonl", "--clients", "1", "--requests", "1")
    assert len((tmp_path / "o.jsonl").read_text().splitlines()) == 2


def test_a_closed_loop_has_that_many_clients(tmp_path: Path) -> None:
    engine = fake_engine()
    together(engine, 3)
    most = []
    pace = engine.pace

    async def watch(request: Request, index: int) -> None:
        most.append(len(engine.open))
        await pace(request, index)

    engine.pace = watch
    point = measure(engine, tmp_path / "o", "--clients", "3", "--requests", "9", "--warmup", "0")["points"][0]
    assert point["requests"]["completed"] == 9
    assert max(most) == 3


def test_an_open_loop_waits_for_nobody(tmp_path: Path) -> None:
    engine = fake_engine()
    together(engine, 10)
    run = measure(engine, tmp_path / "o", "--rates", "200", "--requests", "10", "--warmup", "0")
    assert [(point["mode"], point["load"]) for point in run["points"]] == [("open", 200)]
    assert run["points"][0]["requests"]["completed"] == 10


def test_failures_are_counted(tmp_path: Path) -> None:
    """Of 12 requests every third is refused before its first token, every third breaks off after two."""
    engine = fake_engine(reply=says(TOKENIZER.encode("x") * 24))

    async def fail(request: Request, index: int) -> None:
        number = next(i for i, known in enumerate(engine.requests) if known.request_id == request.request_id)
        if (number % 3, index) == (2, 2):
            # Long enough for the first chunk to go out; before it, an error still has a status of its own.
            await asyncio.sleep(0.2)
            raise RuntimeError("told to fail")
        if (number % 3, index) == (1, 0):
            raise RuntimeError("told to fail")

    engine.pace = fail
    flags = ("--clients", "1", "--requests", "12", "--warmup", "0", "--output-mean", "12", "--slas", "0.001")
    point = measure(engine, tmp_path / "o", *flags, "--ttft-rate", "0.001")["points"][0]
    requests = point["requests"]
    assert (requests["sent"], requests["completed"], requests["failed"], requests["aborted"]) == (12, 4, 8, 0)
    assert sorted(requests["reasons"].values()) == [4, 4]
    assert sum("HTTP 500" in reason for reason in requests["reasons"]) == 1
    assert sum("error event" in reason for reason in requests["reasons"]) == 1
    effective = point["effective"][0]
    assert (effective["ok"], effective["not_completed"], effective["ok_ratio"]) == (4, 8, pytest.approx(1 / 3))
    assert point["ttft_s"]["count"] == 8
    assert point["e2e_s"]["count"] == 4
    assert point["e2e_s"]["p50"] is None


def test_slow_requests_are_aborted_and_counted(tmp_path: Path) -> None:
    engine = fake_engine()

    async def stall(request: Request, index: int) -> None:
        if index == 2 and len(engine.requests) == 2:
            await asyncio.Event().wait()

    engine.pace = stall
    flags = ("--clients", "1", "--requests", "3", "--warmup", "0", "--output-mean", "12", "--timeout", "1")
    point = measure(engine, tmp_path / "o", *flags)["points"][0]
    assert point["requests"]["reasons"] == {"not done in 1 s": 1}
    assert (point["requests"]["aborted"], point["requests"]["completed"]) == (1, 2)
    assert point["effective"][0]["not_completed"] == 1
    assert len(engine.aborted) == 1


def test_a_load_ends_in_its_time(tmp_path: Path) -> None:
    async def forever(request: Request, index: int) -> None:
        await asyncio.Event().wait()

    flags = ("--clients", "2", "--requests", "5", "--warmup", "0", "--max-seconds", "0.5")
    run = measure(fake_engine(pace=forever), tmp_path / "o", *flags, rc=1)
    requests = run["points"][0]["requests"]
    assert (requests["sent"], requests["aborted"], requests["not_sent"]) == (2, 2, 3)
    assert run["points"][0]["ttft_s"]["p50"] is None


def test_interrupted_run_is_kept(tmp_path: Path) -> None:
    engine = fake_engine()

    async def interrupt(request: Request, index: int) -> None:
        if len(engine.requests) == 4:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()

    engine.pace = interrupt
    run = measure(engine, tmp_path / "o", "--clients", "1,2", "--requests", "5", "--warmup", "0")
    assert run["interrupted"]
    assert len(run["points"]) == 1
    requests = run["points"][0]["requests"]
    assert (requests["completed"], requests["aborted"], requests["not_sent"]) == (3, 1, 1)


def test_shared_prefix(tmp_path: Path) -> None:
    engine = fake_engine()
    run = measure(engine, tmp_path / "o", "--clients", "2", "--requests", "6", "--shared-prefix", "30")
    prompts = [request.prompt for request in engine.requests]
    assert len({prompt[:30] for prompt in prompts}) == 1
    assert len({prompt[30:] for prompt in prompts}) == len(prompts)
    lengths = LENGTHS.draw(42, 6)
    assert run["points"][0]["prompt_tokens"] == sum(30 + prompt for prompt, _ in lengths)


def test_prompts_of_text(tmp_path: Path) -> None:
    directory = tiny_tokenizers.save(tiny_tokenizers.byte_level(), tmp_path)
    engine = fake_engine()
    flags = ("--clients", "1", "--requests", "6", "--warmup", "0", "--prompt-kind", "text", "--shared-prefix", "8")
    run = measure(engine, tmp_path / "o", *flags, "--tokenizer", str(directory), "--prompt-max", "25")
    texts = [TOKENIZER.decode(request.prompt) for request in engine.requests]
    assert len({text[:8] for text in texts}) == 1
    assert len(set(texts)) == 6
    assert run["points"][0]["prompt_tokens"] == sum(len(request.prompt) for request in engine.requests)
    meant = [8 + prompt for prompt, _ in LENGTHS.draw(42, 6)]
    assert all(abs(len(r.prompt) - n) <= 6 for r, n in zip(engine.requests, np.minimum(meant, 33), strict=True))
