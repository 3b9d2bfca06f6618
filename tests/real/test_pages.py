"""What pages promise of the real model: default requests are answered well, the quickstart's code works as printed,
and the example of tests in CI passes with a server of its own."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from jaxgen import LLM
from jaxgen.server.app import create_app
from jaxgen.text.chat_template import ChatTemplate
from jaxgen.text.named_templates import named_format
from tests.support.doc_snippets import URL, run_python, snippets
from tests.support.live_server import serve
from tests.support.paths import ROOT

QUICKSTART = ROOT / "docs" / "quickstart.md"


@pytest.fixture(scope="module")
def url(served: LLM) -> Iterator[str]:
    with serve(create_app(served.engine)) as found:
        yield found


def test_default_requests_name_paris(url: str) -> None:
    body = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}
    for seed in range(10):
        answer = httpx2.post(f"{url}/v1/chat/completions", json=body | {"seed": seed}, timeout=120).json()
        assert "Paris" in answer["choices"][0]["message"]["content"], f"seed {seed}"


def test_quickstart(url: str) -> None:
    chat, stream, described, called = run_python(snippets(QUICKSTART, "python"), {URL: url})
    assert "Paris" in chat
    assert len(stream.split()) > 20
    assert json.loads(described)["name"] == "Paris"
    call, _, completion = called.partition("\n")
    assert call == 'get_weather {"city": "Paris"}'
    assert "degrees" in completion


def test_tools_are_shown_as_by_chatml(served: LLM) -> None:
    """And nothing else is changed: without tools the template is the file's own."""
    chat = served.engine.model.chat
    assert chat is not None
    tool = {"type": "function", "function": {"name": "look", "description": "", "parameters": {}}}
    messages = [{"role": "user", "content": "Hi"}]
    chatml = ChatTemplate(named_format("chatml", served.engine.tokenizer))
    assert ChatTemplate(chat).render(messages, tools=[tool]) == chatml.render(messages, tools=[tool])
    assert "SmolLM, trained by Hugging Face" in ChatTemplate(chat).render(messages)


def test_pinned_answers(tmp_path: Path) -> None:
    example = Path(shutil.copy(ROOT / "examples" / "test_answers.py", tmp_path))
    for update in ("1", ""):  # writes, then compares
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", str(example)],
            env={**os.environ, "UPDATE_ANSWERS": update},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    (answers,) = json.loads((tmp_path / "answers.json").read_text()).values()
    assert answers["What is the capital of France?"] == "The capital of France is Paris."
