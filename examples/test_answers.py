"""Compare a model's answers with exact ones in your own CI (docs/testing.md).

``UPDATE_ANSWERS=1 .venv/bin/python -m pytest examples/test_answers.py`` writes the answers next to this file, by the
server's digest. Without the variable it compares. ``OPENAI_BASE_URL`` names a server that runs already.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

QUESTIONS = ("What is the capital of France?", "Why is the sky blue?")
PINNED = Path(__file__).with_name("answers.json")
FIXED = "--port 0 --max-model-len 2048 --token-budget 256 --num-blocks 64"
SERVE = f"{sys.executable} -m jaxgen.server.cli serve --model smollm2-135m {FIXED}".split()


@pytest.fixture(scope="session")
def client() -> Iterator[OpenAI]:
    if url := os.environ.get("OPENAI_BASE_URL"):
        with OpenAI(base_url=url, api_key="none") as running:
            yield running
        return
    with subprocess.Popen(SERVE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        found = re.search(r"http://\S+/v1", server.stdout.readline())
        assert found, "the server did not start: its log says why"
        with OpenAI(base_url=found[0], api_key="none") as started:
            yield started
        server.terminate()


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_answer_is_the_pinned_one(client: OpenAI, question: str) -> None:
    completion = client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=[{"role": "user", "content": question}],
        max_tokens=24,
        temperature=0,
    )
    digest, answer = str(completion.system_fingerprint), completion.choices[0].message.content
    pinned = json.loads(PINNED.read_text()) if PINNED.exists() else {}
    if os.environ.get("UPDATE_ANSWERS"):
        pinned.setdefault(digest, {})[question] = answer
        PINNED.write_text(json.dumps(pinned, indent=2))
    if digest not in pinned:
        pytest.fail(f"{digest} is not pinned: model, jaxgen, settings or kind of CPU changed", pytrace=False)
    assert answer == pinned[digest].get(question)
