"""A live ``jaxgen serve`` of the embedded model, a server whose model is told what to say, and the commands of clients.

These modules run in environments that have no jaxgen: scripts/ci/check_clients.sh. They are Python 3.11.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tests.support.doc_snippets import EMBEDDING_URL, URL, run_python, snippets

ROOT = Path(__file__).parent.parent.parent
TOKENIZER = ROOT / "weights" / "demo"
MODEL = "jaxgen-default"
SCRIPTED = "fake/model-1"
"""The model of the fixture ``scripted``."""

Server = Callable[..., str]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--server-python", required=True, type=Path, help="the interpreter that has jaxgen")


@contextmanager
def _started(python: Path, *arguments: str) -> Iterator[str]:
    """The base URL, without /v1, of the server that ``python -m ARGUMENTS`` is."""
    process = subprocess.Popen([str(python.absolute()), "-m", *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()  # the test's own timeout bounds the wait
        found = re.search(r"(http://[\d.:]+)/v1", line)
        assert found, f"the server did not start: {line!r}"
        yield found[1]
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()


def _served(python: Path, *flags: str) -> AbstractContextManager[str]:
    return _started(python, "jaxgen.server.cli", "serve", "--port", "0", *flags)


@pytest.fixture(scope="session")
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Of a server with the defaults of the command."""
    with _served(request.config.getoption("--server-python")) as found:
        yield found


@pytest.fixture(scope="session")
def scripted(request: pytest.FixtureRequest) -> Iterator[str]:
    """Of a server whose model says what the conversation tells it to: tests/support/scripted_server.py."""
    with _started(request.config.getoption("--server-python"), "tests.support.scripted_server") as found:
        yield found


@pytest.fixture(scope="session")
def silent(request: pytest.FixtureRequest) -> Iterator[str]:
    """Of a scripted server that is silent for 8 s before each answer, but for a comment in each second of a stream."""
    with _started(request.config.getoption("--server-python"), "tests.support.scripted_server", "8", "1") as found:
        yield found


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Starts servers with other flags, which end with the test."""
    from contextlib import ExitStack

    with ExitStack() as stack:
        yield lambda *flags: stack.enter_context(_served(request.config.getoption("--server-python"), *flags))


def script(*texts: str) -> str:
    """A message of the user: what the model says in turn."""
    return f"Do as it is written. SCRIPT: {json.dumps(texts)}"


def call(name: str, /, **arguments: Any) -> str:
    """What a model writes to call a function."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def post(url: str, body: dict[str, Any]) -> Any:
    """What the server answers, without any client's help."""
    request = Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urlopen(request, timeout=60) as answer:
        return json.load(answer)


def run_page(page: str, heading: str, url: str, model: str, names: dict[str, Any] | None = None) -> list[str]:
    """What the Python blocks of a page's section print, with these in place of the servers and models that it names."""
    places = dict.fromkeys((URL, EMBEDDING_URL), url)
    places |= dict.fromkeys(("smollm2-135m", "Qwen/Qwen3-Embedding-0.6B"), model)
    return run_python(snippets(ROOT / "docs" / page, "python", heading), places, names)


def run_node(folder: str, url: str) -> None:
    """Run tests/clients/FOLDER/clients.test.mjs, which goes to its packages: beside it node looks for them."""
    tests, packages = ROOT / "tests" / "clients" / folder / "clients.test.mjs", packages_of(folder)
    shutil.copy(tests, packages)
    done = subprocess.run(
        ["node", "--test", "--test-reporter=tap", tests.name],
        cwd=packages,
        env={**os.environ, "URL_OF_SERVER": url, "MODEL": SCRIPTED},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]


def packages_of(folder: str) -> Path:
    """Where npm's packages are that tests/clients/FOLDER/ pins."""
    return ROOT / ".venv-clients" / f"{folder}_packages"


def run(command: str, *arguments: str, cwd: Path) -> str:
    """The output of a command of this environment, which must succeed."""
    path = Path(sys.executable).parent / command
    done = subprocess.run(
        [str(path), *arguments], cwd=cwd, env={**os.environ, "NO_COLOR": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout + done.stderr
