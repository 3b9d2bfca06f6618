"""The convert command: the same bits as the source, its tokenizer beside them, and only conversions are replaced."""

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

from jaxgen.core.errors import ConfigError
from jaxgen.core.model_config import DTYPES, DType
from jaxgen.weights.convert import command as convert
from jaxgen.weights.converted.manifest import read_manifest
from jaxgen.weights.files.model_files import ModelFiles
from jaxgen.weights.load import load_model_config, load_params
from tests.support.conversions import bits_of, run, tiny_conversion
from tests.support.goldens import GOLDENS, bits, copy_golden
from tests.support.paths import ROOT


@pytest.fixture
def converted(tmp_path: Path) -> Path:
    return tiny_conversion(tmp_path)


# Each way of storing a head, biases, norms, experts and codes. A conversion knows nothing of families, whose tokens
# tests/models/test_family_matrix.py has from conversions.
KINDS = ("gemma3_wrapped", "gpt2_hub", "gpt_oss_mxfp4", "llama", "opt_350m", "qwen2_moe")


@pytest.mark.parametrize("name", KINDS)
def test_converted_is_the_same_model(name: str, tmp_path: Path) -> None:
    directory = run(GOLDENS / name, tmp_path / name)
    assert bits_of(directory) == bits_of(GOLDENS / name)
    assert load_model_config(directory) == load_model_config(GOLDENS / name)


@pytest.mark.parametrize(
    "stored", [pytest.param(dtype, marks=[] if dtype == "bfloat16" else pytest.mark.full) for dtype in DTYPES]
)
def test_stored_dtype_is_kept_or_converted_on_load(stored: DType, tmp_path: Path) -> None:
    """Auto is what the conversion chose; any other dtype gives what the Hugging Face way from that dtype gives."""
    source = copy_golden("opt_350m", tmp_path / "source")
    directory = run(source, tmp_path / "converted", dtype=stored)
    assert load_model_config(directory).dtype == stored
    expected = load_params(source, load_model_config(source, stored), progress=False)
    for dtype in (None, *DTYPES):
        wanted = {path: bits(array.astype(dtype or stored)) for path, array in expected.items()}
        assert bits_of(directory, dtype) == wanted


def test_arrays_are_on_the_default_device_and_not_committed_to_it(converted: Path) -> None:
    """An input committed to its device beside one that is not would compile a step twice."""
    for directory in (converted, converted.with_name("source")):
        for array in load_params(directory, load_model_config(directory), progress=False).values():
            assert array.device == jnp.zeros(()).device
            assert not array.committed


def test_configuration_and_tokenizer_come_along(converted: Path) -> None:
    source = converted.with_name("source")
    names = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]
    assert sorted(path.name for path in converted.iterdir()) == sorted([*names, "jaxgen.json", "params"])
    for name in names:
        assert (converted / name).read_bytes() == (source / name).read_bytes()


def test_templates_in_a_folder_come_along(converted: Path) -> None:
    name = "additional_chat_templates/tool_use.jinja"
    source = converted.with_name("source")
    (source / name).parent.mkdir()
    (source / name).write_text("tools")
    again = run(source, converted.with_name("again"))
    assert (again / name).read_text() == "tools"
    assert name in read_manifest(ModelFiles(again)).files


def test_manifest_lists_every_file(converted: Path) -> None:
    files = {path.relative_to(converted).as_posix(): path for path in converted.rglob("*") if path.is_file()}
    del files["jaxgen.json"]
    manifest = read_manifest(ModelFiles(converted))
    assert (manifest.family, manifest.dtype) == ("llama", "float32")
    assert {name: record.size for name, record in manifest.files.items()} == {
        name: path.stat().st_size for name, path in files.items()
    }


def test_nothing_is_said_by_orbax(converted: Path, caplog: pytest.LogCaptureFixture, capfd: Any) -> None:
    with caplog.at_level(logging.DEBUG):
        bits_of(run(converted.with_name("source"), converted.with_name("again")))
    assert [record for record in caplog.records if record.name == "absl"] == []
    assert capfd.readouterr() == ("", "")


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    destination = tmp_path / "new" / "dest"
    convert.main([str(GOLDENS / "llama"), str(destination), "--dtype", "bfloat16"])
    out, _ = capsys.readouterr()
    assert out == f"{destination} is ready: jaxgen serve --model {destination}\n"
    assert "loading weights took " in caplog.text
    assert "computing checksums took " in caplog.text
    assert load_model_config(destination).dtype == "bfloat16"


def test_command_fails_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "scripts/convert_weights.py", str(tmp_path), str(tmp_path / "dest")]
    result = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert result.returncode == 2
    assert result.stderr == f"jaxgen convert-weights: {tmp_path} is not a model directory: it has no config.json\n"
    assert result.stdout == ""


def occupy(path: Path, kind: str) -> None:
    if kind == "file":
        path.write_text("mine")
    else:
        path.mkdir()
        (path / "mine").write_text("mine")


@pytest.mark.parametrize("kind", ["file", "directory"])
@pytest.mark.parametrize("force", [False, True])
def test_what_is_no_conversion_is_never_replaced(tmp_path: Path, kind: str, force: bool) -> None:
    occupy(tmp_path / "dest", kind)
    with pytest.raises(ConfigError) as caught:
        run(GOLDENS / "llama", tmp_path / "dest", force=force)
    why = (
        "is not a converted checkpoint, which --force needs: choose another destination"
        if force
        else "exists already; choose another"
    )
    assert str(caught.value).startswith(f"{tmp_path}/dest {why}")
    assert [path.name for path in tmp_path.iterdir()] == ["dest"]


def test_force_replaces_a_conversion(converted: Path) -> None:
    source = converted.with_name("source")
    before = (converted / "jaxgen.json").read_bytes()
    with pytest.raises(ConfigError, match="exists already; choose another destination, or --force to replace it"):
        run(source, converted)
    assert (converted / "jaxgen.json").read_bytes() == before
    run(source, converted, dtype="float16", force=True)
    assert bits_of(converted) == bits_of(source, "float16")
    assert sorted(path.name for path in converted.parent.iterdir()) == ["converted", "source"]


def test_a_failing_replacement_leaves_the_old_one(converted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = bits_of(converted)
    monkeypatch.setattr(
        "jaxgen.weights.converted.checkpoint.write_manifest", lambda *args, **kwargs: (_ for _ in ()).throw(OSError(28))
    )
    with pytest.raises(OSError, match="28"):
        run(converted.with_name("source"), converted, dtype="float16", force=True)
    assert bits_of(converted) == before


def test_an_empty_directory_may_be_the_destination(tmp_path: Path) -> None:
    (tmp_path / "dest").mkdir()
    assert bits_of(run(GOLDENS / "opt_pre", tmp_path / "dest")) == bits_of(GOLDENS / "opt_pre")


def test_a_conversion_is_not_converted_again(converted: Path) -> None:
    with pytest.raises(ConfigError, match="is converted already"):
        run(converted, converted.with_name("again"))


def test_source_cannot_be_the_destination(tmp_path: Path) -> None:
    source = copy_golden("llama", tmp_path / "llama")
    before = {path.name: path.read_bytes() for path in source.iterdir()}
    with pytest.raises(ConfigError, match="is not a converted checkpoint"):
        run(source, source, force=True)
    assert {path.name: path.read_bytes() for path in source.iterdir()} == before


@pytest.mark.full  # a process, which imports jax
def test_conversion_stays_on_the_cpu() -> None:
    """The command leaves an accelerator to whoever computes on it; that it says so to JAX is all a CPU can show."""
    program = (
        "import jax\n"
        "from jaxgen.weights.convert import command as convert\n"
        "convert.convert = lambda *args, **kwargs: None\n"
        "convert.main(['a', 'b'])\n"
        "assert jax.config.jax_platforms == 'cpu', jax.config.jax_platforms\n"
    )
    environment = {key: value for key, value in os.environ.items() if key != "JAX_PLATFORMS"}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment, stdout=subprocess.DEVNULL)
