"""``jaxgen models``: a line for each family, or for each directory and hub id."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from jaxgen.server.cli import main
from jaxgen.weights.families.registry import ARCHITECTURES
from jaxgen.weights.packaged.models import PACKAGED_MODELS
from tests.support.goldens import GOLDENS, copy_golden
from tests.support.hub import Hub, serving_hub
from tests.support.tiny_tokenizers import byte_level


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of models that have a tokenizer."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("llama", "opt_pre"):
        byte_level().save(str(copy_golden(name, folder / name) / "tokenizer.json"))
    return folder


def test_families_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    printed = capsys.readouterr().out
    for architecture in ARCHITECTURES:
        assert architecture in printed
    for name, model in PACKAGED_MODELS.items():
        assert f"{name} {model}" in printed
    assert main(["models", "--json"]) == 0
    families = json.loads(capsys.readouterr().out)
    assert "LlamaForCausalLM" in families["llama"]


def test_each_directory_is_a_line(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    llama, opt = models / "llama", models / "opt_pre"
    assert main(["models", str(llama), str(opt)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"{llama}: LlamaForCausalLM, 94,528 parameters, float32, context 128, no window: supported"
    assert second.startswith(f"{opt}: OPTForCausalLM, ")
    assert second.endswith(": supported")


def test_what_is_not_supported_is_status_1(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = copy_golden("llama", tmp_path / "other")
    config = other / "config.json"
    config.write_text(config.read_text().replace("LlamaForCausalLM", "OtherForCausalLM"))
    nowhere = str(tmp_path / "nowhere")
    assert main(["models", str(other), str(models / "llama"), nowhere]) == 1
    first, second, third = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{other}: OtherForCausalLM, 94,528 parameters, float32, context 128: not supported: ")
    assert f"supported: {', '.join(ARCHITECTURES)} (" in first
    assert second.endswith(": supported")
    assert third == f"{nowhere}: not supported: there is no such directory"


def test_json_has_the_same(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    llama = str(models / "llama")
    assert main(["models", "--json", llama, str(tmp_path)]) == 1
    good, bad = json.loads(capsys.readouterr().out)
    assert good == {
        "model": llama,
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


PIECES = "is a SentencePiece model, tokenizer.model, which the library sentencepiece reads: pip install sentencepiece"


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, " has no tokenizer: add its tokenizer.json, or name the directory or hub id of a tokenizer with --"),
        ({"tekken.json": "{}"}, " has only tekken.json, Mistral's own form, which is not read: add its tokenizer.json"),
        ({"tokenizer.model": "x"}, PIECES),
        ({"tokenizer.json": "{"}, "cannot load a tokenizer from "),
    ],
    ids=["none", "tekken", "SentencePiece", "damaged"],
)
def test_a_model_whose_tokenizer_cannot_be_loaded_is_not_supported(
    files: dict[str, str],
    says: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    model = copy_golden("llama", tmp_path / "model")
    for name, text in files.items():
        (model / name).write_text(text)
    assert main(["models", str(model)]) == 1
    first, said = capsys.readouterr().out.split(": not supported: ")
    assert first == f"{model}: LlamaForCausalLM, 94,528 parameters, float32, context 128, no window"
    assert says in said


def run(hub: Hub, cache: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "jaxgen.server.cli", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, env=hub.environment(cache))


def test_of_a_hub_id_the_names_of_the_tokenizers_files_are_enough(tmp_path: Path) -> None:
    files = {path.name: path.read_bytes() for path in (GOLDENS / "llama").iterdir() if path.suffix != ".npz"}
    for name, says in (
        ("tokenizer.json", ": supported\n"),
        ("tokenizer.model", ": supported\n" if find_spec("sentencepiece") else f"the tokenizer in org/model {PIECES}"),
    ):
        with serving_hub(files | {name: b"x" * 1000}) as hub:
            done = run(hub, tmp_path, "models", "org/model")
        assert says in done.stdout
        assert name not in hub.sent


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
