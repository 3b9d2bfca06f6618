"""Each program of examples/ runs as its docstring says, and shows what it promises."""

import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from jaxgen.core.config import EngineOptions
from jaxgen.server.cli import main
from jaxgen.server.flags.serve_options import make_parser
from jaxgen.weights.packaged.tiny import make_tiny_checkpoint
from tests.support.doc_snippets import EMBEDDING_URL, URL, commands, run_python, snippets
from tests.support.paths import ROOT
from tests.support.server_process import served

EXAMPLES = ROOT / "examples"
OF_A_SERVER = ("completion", "chat_stream", "structured_output", "batch")
OF_A_PROGRAM = ("llm_class", "offload")
OF_PYTEST = "test_answers"
OTHER_CLIENTS = "langchain|llama_index|litellm"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a small server of the embedded model, with the flags that the examples name. Requests are greedy by default:
    else a text could be longer than its test expects."""
    files, defaults = tmp_path_factory.mktemp("batches"), tmp_path_factory.mktemp("defaults")
    (defaults / "generation_config.json").write_text('{"temperature": 0}')
    flags = ("--batch-dir", str(files), "--generation-config", str(defaults))
    with served("--single-shape", *flags) as server:
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
    monkeypatch.setattr(sys, "argv", [name])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    return capsys.readouterr().out


def ask(url: str, route: str, body: dict[str, Any]) -> Any:
    answer = httpx2.post(f"{url}/{route}", json={"model": "jaxgen-default", **body}, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_every_example_is_short_and_is_run() -> None:
    programs = {path.stem: path.read_text(encoding="utf-8") for path in EXAMPLES.glob("*.py")}
    assert set(programs) == {*OF_A_SERVER, *OF_A_PROGRAM, OF_PYTEST}
    for name, text in programs.items():
        assert len(text.splitlines()) < (58 if name == OF_PYTEST else 40), name
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


def test_pinned_answers(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A digest that is not pinned fails, then an answer that differs. tests/real starts the example's own server."""
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    example = Path(shutil.copy(EXAMPLES / f"{OF_PYTEST}.py", tmp_path))
    quiet = ("-q", "-p", "no:cacheprovider", "--import-mode=importlib", "-c", os.devnull, f"--rootdir={tmp_path}")

    def ended(*options: str) -> tuple[int, str]:
        return pytest.main([*quiet, *options, str(example)]), capfd.readouterr().out

    assert "is not pinned: model, jaxgen, settings" in ended("-k", "capital")[1]
    monkeypatch.setenv("UPDATE_ANSWERS", "1")
    assert ended()[0] == 0
    monkeypatch.delenv("UPDATE_ANSWERS")
    pins = tmp_path / "answers.json"
    ((digest, answers),) = json.loads(pins.read_text()).items()
    assert digest.startswith("fp_")
    question, answer = next(iter(answers.items()))
    pins.write_text(json.dumps({digest: {**answers, question: f"{answer}."}}))
    assert "1 failed, 1 passed" in ended()[1]


def run_snippets(page: str, url: str) -> list[str]:
    """What each Python block of a page prints at the server; a block has the variables of those before it.

    Blocks with other clients run in the environments of these: tests/clients."""
    blocks = [one for one in snippets(ROOT / "docs" / page, "python") if not re.search(OTHER_CLIENTS, one)]
    return run_python(blocks, dict.fromkeys((URL, EMBEDDING_URL), url.removesuffix("/v1")))


def test_quickstart(url: str) -> None:
    """Every block in order, with a model that knows nothing: what it writes is not looked at, but the forms are."""
    chat, _, described, called = run_snippets("quickstart.md", url)
    assert chat
    assert set(json.loads(described)) == {"name", "country"}
    name, _, arguments = called.splitlines()[0].partition(" ")
    assert name == "get_weather"
    assert set(json.loads(arguments)) == {"city"}


def test_retrieval_and_structured_outputs(url: str) -> None:
    """One server has both roles: the demo model gives embeddings too."""
    (answer,) = run_snippets("embeddings.md", url)
    assert answer.strip()
    (parsed,) = run_snippets("structured.md", url)
    assert re.fullmatch(r"name='[^']*' country='[^']*'\n", parsed)


def test_special_tokens_leave_untrusted_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a token that a removal makes. White space stays, which some tokenizers have as tokens."""
    added = [{"content": "<|im_start|>"}, {"content": "<|im_end|>"}, {"content": "  "}]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    run_python(snippets(ROOT / "docs" / "chat.md", "python"), {}, names)
    assert names["without_special_tokens"]("a  <|im_<|im_<|im_start|>end|>end|>b") == "a  b"


@pytest.mark.parametrize("page", ["quickstart.md", "embeddings.md", "structured.md", "clients.md", "testing.md"])
def test_commands_that_start_servers_have_valid_flags(page: str) -> None:
    starts = [line for line in commands(ROOT / "docs" / page) if "scripts/serve" in line]
    for start in starts:
        make_parser().parse_args(shlex.split(start.partition("scripts/serve")[2]))


def test_requests_by_curl(url: str) -> None:
    asked = [shlex.split(line) for line in commands(ROOT / "docs" / "quickstart.md") if line.startswith("curl")]
    for _, place, *options in asked:
        fields = dict(zip(options[::2], options[1::2], strict=True))
        headers = dict([fields["-H"].split(": ")])
        method = "POST" if "-d" in fields else "GET"
        answer = httpx2.request(
            method, place.replace(URL, url.removesuffix("/v1")), headers=headers, content=fields.get("-d"), timeout=60
        )
        assert answer.status_code == 200, answer.text


def test_commands_on_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a tiny model at the name that the page has."""
    make_tiny_checkpoint(tmp_path / "Qwen" / "Qwen3-0.6B")
    monkeypatch.chdir(tmp_path)
    (plan,) = (line for line in commands(ROOT / "docs" / "quickstart.md") if "jaxgen plan" in line)
    assert main(shlex.split(plan)[1:]) == 0
    assert "int8" in capsys.readouterr().out


@pytest.mark.full
def test_an_embedding_server_starts_as_written(tmp_path: Path) -> None:
    """Full: a server starts. A tiny model is at the name that the page has."""
    start = commands(ROOT / "docs" / "embeddings.md")[0]
    flags = shlex.split(start.removeprefix("scripts/serve").removesuffix("--port 8001"))
    make_tiny_checkpoint(tmp_path / flags[flags.index("--model") + 1])
    with served("--kernels", "xla", "--single-shape", *flags, cwd=tmp_path) as server:
        body = {"model": "Qwen/Qwen3-Embedding-0.6B", "input": ["one", "two"]}
        found = ask(server.url, "embeddings", body)
        assert len(found["data"]) == 2
