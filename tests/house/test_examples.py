"""Each program of examples/ runs as its docstring says, and shows what it promises."""

import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx2
import pytest

from jaxgen import LLM
from jaxgen.core.config import EngineOptions
from tests.support.paths import ROOT
from tests.support.server_process import served

EXAMPLES = ROOT / "examples"
OF_A_SERVER = ("completion", "chat_stream", "structured_output", "batch")
OF_A_PROGRAM = ("llm_class", "offload")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a small server of the embedded model, with the flags that the examples name."""
    files = tmp_path_factory.mktemp("batches")
    with served("--kernels", "xla", "--single-shape", "--batch-dir", str(files)) as server:
        yield server.url


def run(name: str, url: str) -> str:
    """What an example prints that talks to a server."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")],
        env={**os.environ, "OPENAI_BASE_URL": url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_here(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """What an example prints that holds the engine itself: in this process, whose cache directory is the test's.

    Its engine is as small as the server's, so that both compile the same program."""
    small = partial(EngineOptions, max_model_len=512, token_budget=32, max_num_seqs=4, single_shape=True)
    monkeypatch.setattr("jaxgen.llm.EngineOptions", small)
    defaults = LLM.__init__.__kwdefaults__ or {}
    monkeypatch.setattr(LLM.__init__, "__kwdefaults__", {**defaults, "kernels": "xla"})
    monkeypatch.setattr(sys, "argv", [name])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    return capsys.readouterr().out


def ask(url: str, route: str, body: dict[str, Any]) -> Any:
    answer = httpx2.post(f"{url}/{route}", json={"model": "jaxgen-default", **body}, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_every_example_is_short_and_is_run() -> None:
    programs = {path.stem: path.read_text(encoding="utf-8") for path in EXAMPLES.glob("*.py")}
    assert set(programs) == {*OF_A_SERVER, *OF_A_PROGRAM}
    for name, text in programs.items():
        assert len(text.splitlines()) < 40, name
        assert f"examples/{name}.py" in text.split('"""')[1], "its docstring says how to run it"


def test_completion(url: str) -> None:
    """It prints the text that the same seed gives again."""
    text, _, about = run("completion", url).partition("\n---\n")
    body = {"prompt": "def read_lines(path):\n", "max_tokens": 48, "temperature": 0.8, "seed": 7}
    again = ask(url, "completions", body)
    assert text == again["choices"][0]["text"]
    assert f"{again['usage']['prompt_tokens']} in, {again['usage']['completion_tokens']} out" in about
    assert len(re.findall(r": -\d", about)) >= 3  # log-probabilities


def test_chat_stream(url: str) -> None:
    """The pieces join to the whole answer."""
    text, _, about = run("chat_stream", url).partition("\n---\n")
    messages = [
        {"role": "system", "content": "write Python"},
        {"role": "user", "content": "a function that opens a file"},
    ]
    whole = ask(url, "chat/completions", {"messages": messages, "max_completion_tokens": 48, "temperature": 0})
    assert text == whole["choices"][0]["message"]["content"]
    assert f"{whole['usage']['prompt_tokens']} in, {whole['usage']['completion_tokens']} out" in about


def test_structured_output(url: str) -> None:
    """A model that knows nothing of JSON keeps to the schema."""
    found = json.loads(run("structured_output", url))
    assert set(found) == {"language", "lines", "tested"}
    assert found["language"] in ("Python", "C")
    assert 1 <= found["lines"] <= 999
    assert isinstance(found["tested"], bool)


def test_batch(url: str) -> None:
    """Each line has the text that an online request gets."""
    status, *lines = run("batch", url).splitlines()
    assert status.startswith("completed")
    assert len(lines) == 3
    for i, name in enumerate(("open", "read", "close")):
        online = ask(url, "completions", {"prompt": f"def {name}(", "max_tokens": 16, "seed": 1})
        assert lines[i] == f"line-{i} {online['choices'][0]['text']!r}"


def test_llm_class(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The streamed text is the text of the first completion."""
    first, *_ = printed = run_here("llm_class", monkeypatch, capsys).splitlines(keepends=True)
    begin, end = printed.index("--- streamed\n"), len(printed) - 1
    assert f"'def main():' -> {''.join(printed[begin + 1 : end])[:-1]!r} length\n" == first
    cosine = re.fullmatch(r"--- cosine of the two prompts' embeddings: (-?[\d.]+)\n", printed[end])
    assert cosine
    assert -1.0 <= float(cosine[1]) < 1.0


def test_offload(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What was pushed out is found in host memory, and the answer stays the same."""
    *turns, same = run_here("offload", monkeypatch, capsys).splitlines()
    found = [int(hits) for turn in turns for hits in re.findall(r"(\d+) tokens found in host memory", turn)]
    assert found[:2] == [0, 0]
    assert found[2] > 100
    assert same == "the same answer twice: True"
