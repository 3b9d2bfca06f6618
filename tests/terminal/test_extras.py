"""What commands and tools say where a module of an extra is not installed."""

import re
import subprocess
import sys
import tomllib

import pytest

from jaxgen.core.errors import ConfigError
from jaxgen.server.cli import main
from jaxgen.terminal.extras import EXTRAS, missing, naming_extras, need
from tests.support.paths import ROOT

PROGRAM = """
import runpy, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

BLOCKED, name, *arguments = sys.argv[1:]
sys.meta_path.insert(0, Blocked())
sys.argv = [name, *arguments]
if name.endswith(".py"):
    runpy.run_path(name, run_name="__main__")
else:
    runpy.run_module(name, run_name="__main__", alter_sys=True)
"""
NOTHING_TO_IMPORT = {"cuda12", "cuda13", "dev"}
"""Extras whose packages are programs, or found by JAX, which says itself that it lacks them."""
TRACES = "--otlp-traces-endpoint"
EVENTS = "--kv-events-config"
GGUF = "tests/data/gguf/qwen3.gguf"
IMPORTED = [
    ("aiohttp", ["benchmark"], "aiohttp is missing"),
    ("opentelemetry", ["serve", TRACES, "http://127.0.0.1:1/"], f"{TRACES} needs opentelemetry"),
]
ASKED_FOR = [
    ("matplotlib", ["benchmark", "--plot", "x.png"], "--plot needs matplotlib"),
    ("matplotlib", ["tune", "--plot", "x.png"], "--plot needs matplotlib"),
    ("gguf", ["convert-weights", GGUF, "x"], "reading qwen3.gguf needs gguf"),
    ("gguf", ["serve", GGUF], "serving qwen3.gguf needs gguf"),
    ("gguf", ["plan", "org/model:Q4_K_M"], "--model org/model:Q4_K_M needs gguf"),
    ("redis", ["serve", "--kv-tier", "redis://:word@host"], "--kv-tier redis://host:6379/0 needs redis"),
    ("obstore", ["serve", "--kv-tier", "s3://bucket/p"], "--kv-tier s3://bucket/p needs obstore"),
    ("zmq", ["serve", EVENTS, "{}"], f"{EVENTS} needs zmq"),
]
TOOLS = [
    ("aiohttp", "scripts/benchmark.py"),
    ("aiohttp", "scripts.measure.pairs"),
    ("openai", "scripts.measure.pairs"),
    ("aiohttp", "scripts.peers"),
    ("optax", "scripts.demo_model"),
]


def said(blocked: str, name: str, *arguments: str) -> str:
    """The one line of a program that cannot run."""
    command = [sys.executable, "-c", PROGRAM, blocked, name, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line


def brings(module: str) -> str:
    (extra,) = [extra for extra, modules in EXTRAS.items() if module in modules]
    return f"pip install -e '.[{extra}]' in the checkout brings it"


@pytest.mark.parametrize(("module", "arguments", "says"), IMPORTED)
def test_commands_that_import_a_module_name_its_extra(module: str, arguments: list[str], says: str) -> None:
    line = said(module, "jaxgen.server.cli", *arguments)
    assert line.removeprefix(f"jaxgen {arguments[0]}: ") == f"{says}: {brings(module)}"


class Blocked:
    """Finds nothing in a package, as if it were not installed."""

    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        del path, target
        if name.partition(".")[0] == self._package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.mark.parametrize(("module", "arguments", "says"), ASKED_FOR)
def test_commands_that_ask_for_a_module_name_its_extra(
    module: str,
    arguments: list[str],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In this process, which may have imported it."""
    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Blocked(module), *sys.meta_path])
    port = ["--port", "0"] if arguments[0] == "serve" else []  # some listen before they find out, and at the same time
    try:
        code: object = main([*arguments, *port])
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    assert line.removeprefix(f"jaxgen {arguments[0]}: ") == f"{says}: {brings(module)}"
    assert out == ""


@pytest.mark.parametrize(("module", "tool"), TOOLS)
def test_tools_name_the_extra(module: str, tool: str) -> None:
    line = said(module, tool, "--help")
    assert line.removeprefix("jaxgen benchmark: ") == f"{module} is missing: {brings(module)}"


def test_every_module_of_an_extra_has_a_tool_in_the_table() -> None:
    """All that jaxgen and its tools import of extras, but for what only tests need."""
    known = {module: extra for extra, modules in EXTRAS.items() for module in modules}
    pattern = re.compile(rf"^\s*(?:import|from) ({'|'.join(known)})\b", re.MULTILINE)
    files = [file for room in ("jaxgen", "server", "weights", "scripts") for file in (ROOT / room).rglob("*.py")]
    used = {found for file in files for found in pattern.findall(file.read_text(encoding="utf-8"))}
    # hypothesis is a plugin of pytest; a program imports what needs ray: tests/server/test_ray_serve.py;
    # jaxgen/text/tokenizer_files.py asks for sentencepiece.
    assert used - {"hypothesis", "ray", "sentencepiece"} == {module for module, *_ in (*IMPORTED, *ASKED_FOR, *TOOLS)}


def test_extras_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(EXTRAS) | NOTHING_TO_IMPORT == set(project["optional-dependencies"])
    packages = {"importlinter": "import-linter", "opentelemetry": "opentelemetry-sdk", "zmq": "pyzmq"}
    for extra, modules in EXTRAS.items():
        names = {re.split(r"[>\[]", one)[0] for one in project["optional-dependencies"][extra]}
        assert {packages.get(module, module) for module in modules} <= names, extra


def test_other_modules_keep_their_errors() -> None:
    assert missing("jaxgen.nowhere") is None
    with pytest.raises(ModuleNotFoundError), naming_extras():
        raise ModuleNotFoundError("No module named 'jaxgen.nowhere'", name="jaxgen.nowhere")
    with pytest.raises(ConfigError, match=r"--plot needs no_such_module"):
        need("no_such_module", "--plot")
    program = "import scripts; import no_such_module"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
