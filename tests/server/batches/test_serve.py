"""Batches in a real process that is killed, and again, in their midst."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from tests.support.fake_server import fake_server
from tests.support.server_process import served

NUM_LINES = 60
PATH = "/v1/completions"


def body(number: int, model: str) -> dict[str, Any]:
    return {"model": model, "prompt": f"def f{number}(", "max_tokens": 48, "seed": number, "ignore_eos": True}


def num_done(batch: openai.types.Batch) -> int:
    assert batch.request_counts is not None
    return batch.request_counts.completed


Server = tuple[subprocess.Popen[str] | psutil.Process, str]
"""The process and its URL."""


@contextmanager
def real(directory: Path) -> Iterator[Server]:
    with served("--single-shape", "--batch-dir", str(directory), "--max-batch-lines-in-flight", "2") as server:
        yield server.process, server.url


@contextmanager
def fake(directory: Path) -> Iterator[Server]:
    """The same server around an engine without a model, which starts faster."""
    with fake_server(0.002, batches={"batch_dir": str(directory), "max_batch_lines_in_flight": 4}) as (url, process):
        yield process, f"{url}/v1"


@pytest.mark.parametrize("start", [fake, pytest.param(real, marks=pytest.mark.full)])
def test_a_batch_outlives_its_process(tmp_path: Path, start: Callable[[Path], AbstractContextManager[Server]]) -> None:
    """Killed twice in mid-batch: every line has one result, and it is what the line alone is answered."""
    unused = openai.OpenAI(base_url="http://unused", api_key="none", max_retries=0)  # to make one takes long
    with start(tmp_path) as (process, url):
        client = unused.with_options(base_url=url)
        model = client.models.list().data[0].id
        lines = [
            {"custom_id": f"l{i}", "method": "POST", "url": PATH, "body": body(i, model)} for i in range(NUM_LINES)
        ]
        content = "\n".join(map(json.dumps, lines)).encode()
        file = client.files.create(file=("in.jsonl", content), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
        first = wait(client, batch.id, least=5)
        process.kill()
    with start(tmp_path) as (process, url):
        client = unused.with_options(base_url=url)
        second = wait(client, batch.id, least=first + 10)
        process.kill()
    assert 0 < first < second < NUM_LINES
    with start(tmp_path) as (process, url):
        client = unused.with_options(base_url=url)
        assert num_done(client.batches.retrieve(batch.id)) >= second
        wait(client, batch.id, least=NUM_LINES)
        while (batch := client.batches.retrieve(batch.id)).status != "completed":
            time.sleep(0.02)
        assert batch.output_file_id is not None
        results = [json.loads(text) for text in client.files.content(batch.output_file_id).text.splitlines()]
        assert [result["custom_id"] for result in results] == [item["custom_id"] for item in lines]
        for i, result in [*enumerate(results)][::3]:
            online = client.post(PATH.removeprefix("/v1"), body=body(i, model), cast_to=dict[str, Any])
            assert result["response"]["body"]["choices"] == online["choices"]
        assert [item.id for item in client.batches.list()] == [batch.id]
        assert {item.purpose for item in client.files.list()} == {"batch", "batch_output"}


def wait(client: openai.OpenAI, batch_id: str, least: int) -> int:
    while (done := num_done(client.batches.retrieve(batch_id))) < least:
        time.sleep(0.02)  # to ask costs more than to answer a line
    return done
