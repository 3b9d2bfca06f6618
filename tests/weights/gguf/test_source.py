"""Which GGUF file a ``--model`` value means, and what is fetched of it from the hub."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from jaxgen.core.config import HubOptions
from jaxgen.core.errors import ConfigError
from jaxgen.server.commands.models import look_at
from jaxgen.tools.plan import plan_model
from jaxgen.weights.files.file_names import gguf_parts
from jaxgen.weights.gguf.source import find_gguf
from jaxgen.weights.huggingface import hub
from jaxgen.weights.outline import gguf as gguf_outline
from jaxgen.weights.resolve import resolve_model
from tests.support.hub import Hub, serving_hub
from tests.support.paths import ROOT
from tests.weights.outline.test_outline import take_for_the_hub

FILE = ROOT / "tests" / "data" / "gguf" / "qwen3.gguf"
FILES = (
    *("README.md", "mmproj-F16.gguf", "imatrix.gguf", "M-Q8_0.gguf", "M-Q4_K_M.gguf", "M-UD-Q4_K_XL.gguf"),
    "M-Q6_K.GGUF",
    *("M-F16-00001-of-00002.gguf", "M-F16-00002-of-00002.gguf", "BF16/M-00001-of-00001.gguf", "M.IQ2_XS.gguf"),
)


@pytest.mark.parametrize(
    ("tag", "wanted"),
    [
        ("Q4_K_M", ["M-Q4_K_M.gguf"]),
        ("q8_0", ["M-Q8_0.gguf"]),
        ("Q4_K_XL", ["M-UD-Q4_K_XL.gguf"]),
        ("UD-Q4_K_XL", ["M-UD-Q4_K_XL.gguf"]),
        ("F16", ["M-F16-00001-of-00002.gguf", "M-F16-00002-of-00002.gguf"]),
        ("BF16", ["BF16/M-00001-of-00001.gguf"]),
        ("IQ2_XS", ["M.IQ2_XS.gguf"]),
        ("Q6_K", ["M-Q6_K.GGUF"]),
    ],
)
def test_a_tag_names_a_file(tag: str, wanted: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Sequence[str]] = []

    def fetch(name: str, _: HubOptions, files: Sequence[str]) -> Path:
        assert name == "org/model"
        asked.append(files)
        return tmp_path

    monkeypatch.setattr(hub, "files_of", lambda *_: list(FILES))
    assert find_gguf(f"org/model:{tag}", HubOptions(), fetch) == tmp_path / wanted[0]
    assert asked == [wanted]


@pytest.mark.parametrize(
    ("files", "tag", "said"),
    [
        (
            FILES,
            "Q5_K_M",
            "no file has this tag; use a longer tag, of one of these files: M-Q8_0.gguf, M-Q4_K_M.gguf, ",
        ),
        (("a-Q8_0.gguf", "b-Q8_0.gguf"), "Q8_0", "several files have this tag; .*: a-Q8_0.gguf, b-Q8_0.gguf"),
        (("model.safetensors", "mmproj-F16.gguf"), "F16", "the repository has no GGUF file; leave :F16 out"),
    ],
)
def test_tags_that_name_none(files: tuple[str, ...], tag: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "files_of", lambda *_: list(files))
    with pytest.raises(ConfigError, match=rf"^--model org/model:{tag}: {said}"):
        find_gguf(f"org/model:{tag}", HubOptions())


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is one wherever it lies, also with a colon in its name; a directory never."""
    monkeypatch.chdir(tmp_path)
    for name in ("a.gguf", "b/c:d.gguf"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_bytes(b"GGUF")
        assert find_gguf(name, HubOptions()) == Path(name)
    for name in ("sha256-4d4d", "blobs/4d4d4d", "NAME.GGUF"):  # of Ollama, of the hub's cache, of Windows
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_bytes(b"GGUF")
        assert find_gguf(name, HubOptions()) == Path(name)
    Path("other").write_bytes(b"GGML")
    assert find_gguf("other", HubOptions()) is None
    assert gguf_parts("M-00001-of-00002.GGUF") == ["M-00001-of-00002.GGUF", "M-00002-of-00002.GGUF"]
    Path("d.gguf").mkdir()
    for name in ("d.gguf", "b", "org/model", "model:tag", "https://host/x:y"):
        assert find_gguf(name, HubOptions()) is None
    with pytest.raises(ConfigError, match=r"^--model e\.gguf: there is no such file$"):
        find_gguf("e.gguf", HubOptions())
    with pytest.raises(ConfigError, match=r"^--revision v1 needs a hub id: --model a\.gguf is a file$"):
        find_gguf("a.gguf", HubOptions(revision="v1"))
    with pytest.raises(ConfigError, match=r"d\.gguf is not a model directory: it has no config\.json$"):
        resolve_model("d.gguf")


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A repository with a file of two tags, one with much behind its header."""
    cache: Any = huggingface_hub.constants
    monkeypatch.setattr(cache, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(cache, "HF_HUB_DISABLE_XET", True)
    content = FILE.read_bytes()
    with serving_hub({"m-BF16.gguf": content + bytes(2**20), "m-Q8_0.gguf": content, "README.md": b""}) as one:
        take_for_the_hub(one, monkeypatch)
        yield one


def test_the_file_is_fetched_and_found_again_without_the_hub(served: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    found = find_gguf("org/model:q8_0", HubOptions())
    assert found is not None
    assert found.read_bytes() == FILE.read_bytes()
    assert served.sent == {"m-Q8_0.gguf": len(FILE.read_bytes())}
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert find_gguf("org/model:Q8_0", HubOptions()) == found
    with pytest.raises(ConfigError, match="no file has this tag"):
        find_gguf("org/model:BF16", HubOptions())


def test_models_and_plans_fetch_the_header_alone(served: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_outline, "_FIRST", 2**12)  # less than the header has
    assert look_at("org/model:BF16", HubOptions()) == look_at(str(FILE), HubOptions())
    assert served.sent["m-BF16.gguf"] < 2**16
    planned = plan_model("org/model:BF16", hub=HubOptions(), cache_dir=tmp_path / "cache")
    assert planned.stored.num_bytes == len(FILE.read_bytes()) + 2**20
    assert planned.model.parameters == 25_824
    assert served.sent.keys() == {"m-BF16.gguf"}


def test_without_a_tag_the_error_lists_them(served: Hub) -> None:
    with pytest.raises(ConfigError, match=r"name one, as --model org/model:BF16; there are BF16, Q8_0$"):
        resolve_model("org/model")
    assert served.sent == {}
