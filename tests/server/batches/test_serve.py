"""Batches in a real process that is killed, and again, in their midst."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.server.commands.test_serve import served, url_of
from tests.support.paths import ROOT

NUM_LINES = 60
PATH = "/v1/completions"


def client_of(line: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=url_of(line), api_key="none", max_retries=0)


def body(number: int, model: str) -> dict[str, Any]:
    return {"model": model, "prompt": f"def f{number}(", "max_tokens": 24, "seed": number, "ignore_eos": True}


def num_done(batch: openai.types.Batch) -> int:
    assert batch.request_counts is not None
    return batch.request_counts.completed


Start = Callable[[Path], AbstractContextManager[tuple[subprocess.Popen[str], str]]]


def real(directory: Path) -> AbstractContextManager[tuple[subprocess.Popen[str], str]]:
    return served("--batch-dir", str(directory), "--max-batch-lines-in-flight", "4")


@contextmanager
def fake(directory: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The same server around an engine without a model, which starts faster."""
    command = [sys.executable, "-m", "tests.support.fake_server", str(directory)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process, process.stdout.readline()
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("start", [fake, pytest.param(real, marks=pytest.mark.full)])
def test_a_batch_outlives_its_process(tmp_path: Path, start: Start) -> None:
    """Killed twice in mid-batch: every line has one result, and it is what the line alone is answered."""
    with start(tmp_path) as (process, line), client_of(line) as client:
        model = client.models.list().data[0].id
        lines = [
            {"custom_id": f"l{i}", "method": "POST", "url": PATH, "body": body(i, model)} for i in range(NUM_LINES)
        ]
        content = "\n".join(map(json.dumps, lines)).encode()
        file = client.files.create(file=("in.jsonl", content), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
        first = wait(client, batch.id, least=5)
        process.kill()
    with start(tmp_path) as (process, line), client_of(line) as client:
        second = wait(client, batch.id, least=first + 10)
        process.kill()
    assert 0 < first < second < NUM_LINES
    with start(tmp_path) as (process, line), client_of(line) as client:
        assert num_done(client.batches.retrieve(batch.id)) >= second
        wait(client, batch.id, least=NUM_LINES)
        while (batch := client.batches.retrieve(batch.id)).status != "completed":
            time.sleep(0.02)
        assert batch.output_file_id is not None
        results = [json.loads(text) for text in client.files.content(batch.output_file_id).text.splitlines()]
        assert [result["custom_id"] for result in results] == [item["custom_id"] for item in lines]
        for i, result in enumerate(results):
            online = client.post(PATH.removeprefix("/v1"), body=body(i, model), cast_to=dict[str, Any])
            assert result["response"]["body"]["choices"] == online["choices"]
        assert [item.id for item in client.batches.list()] == [batch.id]
        assert {item.purpose for item in client.files.list()} == {"batch", "batch_output"}


def wait(client: openai.OpenAI, batch_id: str, least: int) -> int:
    while (done := num_done(client.batches.retrieve(batch_id))) < least:
        time.sleep(0.002)
    return done
