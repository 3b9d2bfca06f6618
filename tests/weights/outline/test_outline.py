"""A model on the hub is examined by its configuration and the headers of its weights; the weights stay there."""

import json
from pathlib import Path
from typing import Any

import huggingface_hub
import huggingface_hub.constants
import pytest

from jaxgen.core.config import HubOptions
from jaxgen.core.errors import ConfigError
from jaxgen.weights.files.safetensors import read_header
from jaxgen.weights.load import load_model_config
from jaxgen.weights.outline.huggingface import outlines
from jaxgen.weights.resolve import resolve_model
from jaxgen.weights.summary import check_weights, summarize
from tests.support.goldens import GOLDENS
from tests.support.hub import COMMIT, Hub, serving_hub
from tests.support.sparse_checkpoints import LLAMA_70B, make_llama

SMALL = LLAMA_70B | {"vocab_size": 4096, "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4}


@pytest.fixture
def _hub_of_this_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


def take_for_the_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client reads its endpoint when it is imported, into two constants."""
    constants: Any = huggingface_hub.constants
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, hub.endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)


def files_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.suffix != ".npz"}


@pytest.mark.usefixtures("_hub_of_this_process")
def test_an_outline_has_true_headers_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_llama(tmp_path / "source", SMALL, num_files=3)
    with serving_hub(files_of(source)) as hub, outlines() as fetch:
        take_for_the_hub(hub, monkeypatch)
        directory = resolve_model("org/model", fetch=fetch)
        assert summarize(directory) == summarize(source)
        weights = sorted(source.glob("*.safetensors"))
        assert len(weights) == 3
        for file in weights:
            assert read_header(directory / file.name) == read_header(file)
            assert (directory / file.name).stat().st_blocks * 512 < file.stat().st_size / 2
            assert hub.sent[file.name] <= 100_001 < file.stat().st_size / 5
        assert set(hub.sent) == {"config.json", "model.safetensors.index.json"} | {file.name for file in weights}
    assert not directory.exists()


@pytest.mark.usefixtures("_hub_of_this_process")
def test_the_cache_is_taken_where_the_hub_cannot_be_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with outlines() as fetch, pytest.raises(ConfigError, match=r"cannot be fetched from the hub: .*offline"):
        resolve_model("org/model", fetch=fetch)
    repository = tmp_path / "hub" / "models--org--model"
    snapshot = repository / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    for name, content in files_of(GOLDENS / "llama").items():
        (snapshot / name).write_bytes(content)
    with outlines() as fetch:
        assert resolve_model("org/model", fetch=fetch) == snapshot
        assert resolve_model("org/model", HubOptions(download_dir=tmp_path / "hub"), fetch=fetch) == snapshot
        with pytest.raises(ConfigError, match="--revision v2: there is no such directory"):
            resolve_model("org/model", HubOptions(revision="v2"), fetch=fetch)


def examine() -> None:
    with outlines() as fetch:
        directory = resolve_model("org/model", fetch=fetch)
        check_weights(directory, load_model_config(directory))


@pytest.mark.usefixtures("_hub_of_this_process")
@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("model.safetensors", b"no header", "header"),
        ("config.json", b"{", "org/model/config.json is not valid JSON"),
        ("config.json", None, "org/model is not a model directory: it has no config.json"),
        ("model.safetensors", None, "org/model has no weights: neither model.safetensors nor"),
        ("model.safetensors.index.json", b'{"weight_map": {"a": "../b.safetensors"}}', "leads out"),
    ],
)
def test_a_damaged_repository_is_named(
    name: str, content: bytes | None, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {**files_of(GOLDENS / "opt_pre"), name: content or b""}
    if name.endswith("index.json"):
        del files["model.safetensors"]
    if content is None:
        del files[name]
    with serving_hub(files) as hub:
        take_for_the_hub(hub, monkeypatch)
        with pytest.raises(ConfigError, match=says) as refused:
            examine()
    assert "jaxgen-outline" not in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.usefixtures("_hub_of_this_process")
def test_an_index_of_files_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_llama(tmp_path / "source", SMALL, num_files=2)
    files = files_of(source)
    index = json.loads(files["model.safetensors.index.json"])
    (first, second) = sorted(set(index["weight_map"].values()))
    del files[second]
    with serving_hub(files) as hub, outlines() as fetch:
        take_for_the_hub(hub, monkeypatch)
        assert f"{second} is missing" in summarize(resolve_model("org/model", fetch=fetch)).problem
        assert first in hub.sent
