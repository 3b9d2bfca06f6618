"""From a --model value to a directory: paths, and the hub's cache."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest

from jaxgen.core.config import HubOptions
from jaxgen.core.errors import ConfigError
from jaxgen.weights.load import load_model_config, load_params
from jaxgen.weights.packaged.tiny import make_tiny_checkpoint
from jaxgen.weights.resolve import resolve_model, resolve_tokenizer
from tests.support.goldens import GOLDENS, bits, copy_golden
from tests.support.hub import Hub, serving_hub


def refusal(model: str) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve_model(model)
    return str(caught.value)


def test_a_directory_is_itself(tmp_path: Path) -> None:
    assert resolve_model(str(GOLDENS / "llama")) == GOLDENS / "llama"


@pytest.mark.parametrize("model", ["/no/such", "./no", "../no", "~/no/such/thing", "a/b/c"])
def test_a_path_that_is_not_there(model: str) -> None:
    assert refusal(model) == f"--model {model}: there is no such directory"


def test_a_file_is_no_model(tmp_path: Path) -> None:
    file = copy_golden("opt_pre", tmp_path / "opt") / "model.safetensors"
    assert refusal(str(file)) == f"--model {file} is a file, and no GGUF file; name the directory it is in"


def test_a_directory_without_configuration(tmp_path: Path) -> None:
    assert refusal(str(tmp_path)) == f"{tmp_path} is not a model directory: it has no config.json"
    (tmp_path / "adapter_config.json").write_text("{}")
    assert refusal(str(tmp_path)).endswith(", but a LoRA adapter: merge it into its model first, and name the result")


def test_a_tokenizer_that_links_out_is_refused(tmp_path: Path) -> None:
    make_tiny_checkpoint(tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").rename(tmp_path / "tokenizer.json")
    (tmp_path / "model" / "tokenizer.json").symlink_to(tmp_path / "tokenizer.json")
    assert "tokenizer.json is a link out of the directory" in refusal(str(tmp_path / "model"))


# --- the hub


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def fill(cache: Path, golden: str) -> Path:
    """A repository org/model in the hub's cache, as a download leaves it."""
    repository = cache / "models--org--model"
    snapshot = repository / "snapshots" / ("0" * 40)
    for folder in (snapshot, repository / "blobs", repository / "refs"):
        folder.mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    for number, file in enumerate((GOLDENS / golden).iterdir()):
        shutil.copyfile(file, repository / "blobs" / str(number))
        (snapshot / file.name).symlink_to(Path("..", "..", "blobs", str(number)))
    return snapshot


def test_the_cache_works_offline(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = fill(cache, "llama")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    directory = resolve_model("org/model")
    assert directory == snapshot
    params = load_params(directory, load_model_config(directory), progress=False)
    expected = load_params(GOLDENS / "llama", load_model_config(GOLDENS / "llama"), progress=False)
    assert {path: bits(array) for path, array in params.items()} == {
        path: bits(array) for path, array in expected.items()
    }


def test_a_revision_and_a_folder_of_downloads(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    older = fill(cache, "llama")
    newer = older.with_name("1" * 40)
    shutil.copytree(older, newer, symlinks=True)
    (cache / "models--org--model" / "refs" / "v2").write_text("1" * 40)
    found = {name: resolve_model("org/model", HubOptions(revision=name)) for name in ("main", "v2", "0" * 40)}
    assert found == {"main": older, "v2": newer, "0" * 40: older}
    with pytest.raises(ConfigError, match="--model org/model --revision v3: "):
        resolve_model("org/model", HubOptions(revision="v3"))
    other = tmp_path / "downloads"
    cache.rename(other)
    assert resolve_model("org/model", HubOptions(download_dir=other)).is_relative_to(other)
    assert resolve_tokenizer("org/model", other).is_relative_to(other)
    assert "cannot be fetched" in refusal("org/model")


def test_a_revision_of_what_is_not_on_the_hub(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--revision v2 needs a hub id: --model .* is a directory"):
        resolve_model(str(GOLDENS / "llama"), HubOptions(revision="v2"))


@pytest.mark.parametrize("name", ["/no/such", "a/b/c"])
def test_a_tokenizer_that_is_not_there(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"--tokenizer {name}: there is no such directory"):
        resolve_tokenizer(name)


def test_offline_without_a_cache_is_one_error(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    message = refusal("org/model")
    assert message.startswith("--model org/model: there is no such directory, and it cannot be fetched from the hub: ")
    assert "\n" not in message


def test_a_name_that_no_hub_would_take(cache: Path) -> None:
    assert "cannot be fetched from the hub: " in refusal("org/..")


BESIDE = (
    *("modules.json", "1_Pooling/config.json", "chat_template.json", "additional_chat_templates/tool_use.jinja"),
    *("qwen.tiktoken", "tiktoken.model"),
)


@pytest.fixture
def hub(cache: Path) -> Iterator[Hub]:
    golden = {path.name: path.read_bytes() for path in (GOLDENS / "llama").iterdir() if path.suffix != ".npz"}
    golden |= dict.fromkeys(BESIDE, b"{}")
    others = (
        *("pytorch_model.bin", "model.py", "original/weights.safetensors", "consolidated.safetensors", "README.md"),
        *("adapter/adapter.safetensors", "onnx/config.json", "assets/config.json"),
    )
    with serving_hub(golden | dict.fromkeys(others, b"never to be fetched")) as hub:
        yield hub


FETCH = """
import sys
from jaxgen.weights.resolve import resolve_model
print(resolve_model("org/" + sys.argv[1]))
"""


def fetch(hub: Hub, cache: Path, name: str) -> "subprocess.CompletedProcess[str]":
    """In a process of its own, since the hub's client reads its endpoint when it is imported."""
    command = [sys.executable, "-c", FETCH, name]
    return subprocess.run(command, check=False, capture_output=True, text=True, env=hub.environment(cache))


def test_only_data_is_fetched(hub: Hub, cache: Path) -> None:
    result = fetch(hub, cache, "model")
    assert result.returncode == 0, result.stderr
    directory = Path(result.stdout.strip())
    wanted = {path.name for path in (GOLDENS / "llama").iterdir() if path.suffix != ".npz"}
    wanted |= {*BESIDE}
    assert {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()} == wanted
    assert {path.partition(f"/{'1' * 40}/")[2] for path in hub.asked if "/resolve/" in path} == wanted
    assert load_params(directory, load_model_config(directory), progress=False)


def test_unknown_repository_is_one_error(hub: Hub, cache: Path) -> None:
    result = fetch(hub, cache, "other")
    assert result.returncode == 1
    last = result.stderr.strip().splitlines()[-1]
    start = "--model org/other: there is no such directory, and it cannot be fetched from the hub: "
    assert last.startswith(f"jaxgen.core.errors.ConfigError: {start}")
    assert "not found" in last.lower()


@pytest.mark.parametrize("config", [{}, {"config.json": b"{}"}])
def test_a_repository_of_gguf_files_says_what_to_do(config: dict[str, bytes], cache: Path) -> None:
    with serving_hub({"m-Q4_K_M.gguf": b"", "m-Q8_0.gguf": b"", "README.md": b"", **config}) as hub:
        result = fetch(hub, cache, "model")
    assert result.stderr.strip().splitlines()[-1] == (
        "jaxgen.core.errors.ConfigError: --model org/model has its weights in GGUF files: name one, as --model "
        "org/model:Q4_K_M; there are Q4_K_M, Q8_0"
    )
