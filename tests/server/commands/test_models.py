"""``jaxgen models``: a line for each family, or for each directory and hub id."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from jaxgen.server.cli import main
from jaxgen.weights.families import ARCHITECTURES
from tests.support.goldens import GOLDENS, copy_golden
from tests.support.hub import Hub, serving_hub

LLAMA, OPT = str(GOLDENS / "llama"), str(GOLDENS / "opt_pre")


def test_families_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    printed = capsys.readouterr().out
    for architecture in ARCHITECTURES:
        assert architecture in printed
    assert main(["models", "--json"]) == 0
    families = json.loads(capsys.readouterr().out)
    assert "LlamaForCausalLM" in families["llama"]


def test_each_directory_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", LLAMA, OPT]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"{LLAMA}: LlamaForCausalLM, 94,528 parameters, float32, context 128, no window: supported"
    assert second.startswith(f"{OPT}: OPTForCausalLM, ")
    assert second.endswith(": supported")


def test_what_is_not_supported_is_status_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = copy_golden("llama", tmp_path / "other")
    config = other / "config.json"
    config.write_text(config.read_text().replace("LlamaForCausalLM", "OtherForCausalLM"))
    nowhere = str(tmp_path / "nowhere")
    assert main(["models", str(other), LLAMA, nowhere]) == 1
    first, second, third = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{other}: OtherForCausalLM, 94,528 parameters, float32, context 128: not supported: ")
    assert f"supported: {', '.join(ARCHITECTURES)} (" in first
    assert second.endswith(": supported")
    assert third == f"{nowhere}: not supported: there is no such directory"


def test_json_has_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--json", LLAMA, str(tmp_path)]) == 1
    good, bad = json.loads(capsys.readouterr().out)
    assert good == {
        "model": LLAMA,
        "architecture": "LlamaForCausalLM",
        "parameters": 94528,
        "dtype": "float32",
        "context": 128,
        "windows": [],
        "generates": True,
        "problem": None,
        "supported": True,
    }
    assert (bad["model"], bad["supported"], bad["architecture"]) == (str(tmp_path), False, None)
    assert "it has no config.json" in bad["problem"]


def run(hub: Hub, cache: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "jaxgen.server.cli", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, env=hub.environment(cache))


def test_a_hub_id(tmp_path: Path) -> None:
    files = {path.name: path.read_bytes() for path in (GOLDENS / "llama").iterdir() if path.suffix != ".npz"}
    files["config.json"] = files["config.json"].replace(b"LlamaForCausalLM", b"OtherForCausalLM")
    with serving_hub(files) as hub:
        done = run(hub, tmp_path, "models", "org/model", "org/other")
    first, second = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (1, "")
    assert first.startswith("org/model: OtherForCausalLM, 94,528 parameters, float32, context 128: not supported: ")
    assert "org/model/config.json: architectures" in first
    assert second.startswith("org/other: not supported: there is no such directory, and it cannot be fetched")
