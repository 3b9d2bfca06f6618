"""Converted directories: the same bits as the source, complete or not there, and verified when they are loaded."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
from safetensors.numpy import load_file, save_file

from jaxgen.config import DTYPES, ConfigError, DType
from tests.goldens import GOLDENS, NAMES, bits, copy_golden
from weights import checkpoint, convert
from weights.load import load_model_config, load_params
from weights.manifest import read_manifest
from weights.tiny import make_tiny_checkpoint


def bits_of(directory: Path, dtype: DType | None = None) -> dict[str, Any]:
    config = load_model_config(directory, dtype or "auto")
    return {path: bits(array) for path, array in load_params(directory, config, progress=False).items()}


def run(source: Path, destination: Path, **options: Any) -> Path:
    convert.convert(str(source), destination, progress=False, **options)
    return destination


@pytest.fixture
def converted(tmp_path: Path) -> Path:
    """To be damaged."""
    make_tiny_checkpoint(tmp_path / "source")
    return run(tmp_path / "source", tmp_path / "converted")


@pytest.mark.parametrize("name", NAMES)
def test_converted_is_the_same_model(name: str, tmp_path: Path) -> None:
    directory = run(GOLDENS / name, tmp_path / name)
    assert bits_of(directory) == bits_of(GOLDENS / name)
    assert load_model_config(directory) == load_model_config(GOLDENS / name)


@pytest.mark.parametrize("stored", DTYPES)
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


def test_manifest_lists_every_file(converted: Path) -> None:
    files = {path.relative_to(converted).as_posix(): path for path in converted.rglob("*") if path.is_file()}
    del files["jaxgen.json"]
    manifest = read_manifest(converted)
    assert (manifest.family, manifest.dtype) == ("llama", "float32")
    assert {name: record.size for name, record in manifest.files.items()} == {
        name: path.stat().st_size for name, path in files.items()
    }


def test_nothing_is_said_by_orbax(converted: Path, caplog: pytest.LogCaptureFixture, capfd: Any) -> None:
    with caplog.at_level(logging.DEBUG):
        bits_of(run(converted.with_name("source"), converted.with_name("again")))
    assert [record for record in caplog.records if record.name == "absl"] == []
    assert capfd.readouterr() == ("", "")


# --- verification


def every_file(directory: Path) -> list[str]:
    return sorted(read_manifest(directory).files)


def test_one_changed_byte_in_any_file_is_found(converted: Path) -> None:
    config = load_model_config(converted)
    for name in every_file(converted):
        path = converted / name
        content = bytearray(path.read_bytes())
        if not content:
            continue
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        with pytest.raises(ConfigError) as caught:
            load_params(converted, config, progress=False)
        assert str(caught.value).startswith(f"{path} is corrupt: its SHA-256 is not the one in jaxgen.json")
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    assert load_params(converted, config, progress=False)


@pytest.mark.parametrize("checksums", [True, False])
def test_a_file_of_another_size_is_found(converted: Path, checksums: bool) -> None:
    config = load_model_config(converted)
    for name in every_file(converted):
        path = converted / name
        content = path.read_bytes()
        path.write_bytes(content + b" ")
        with pytest.raises(ConfigError) as caught:
            load_params(converted, config, checksums=checksums, progress=False)
        assert str(caught.value).startswith(f"{path} has {len(content) + 1} bytes, but jaxgen.json says {len(content)}")
        path.unlink()
        with pytest.raises(ConfigError) as caught:
            load_params(converted, config, checksums=checksums, progress=False)
        assert str(caught.value).startswith(f"{path} is missing, but jaxgen.json names it")
        path.write_bytes(content)


def test_checksums_can_be_left_out(converted: Path) -> None:
    path = converted / "tokenizer.json"
    path.write_bytes(path.read_bytes().replace(b"version", b"Version"))
    assert load_params(converted, load_model_config(converted), checksums=False, progress=False)


def test_damage_that_nobody_looked_for_is_one_error(converted: Path) -> None:
    data = max((converted / "params").rglob("*"), key=lambda path: path.stat().st_size)
    data.write_bytes(bytes(data.stat().st_size))
    with pytest.raises(ConfigError) as caught:
        load_params(converted, load_model_config(converted), checksums=False, progress=False)
    assert str(caught.value).startswith(f"{converted}/params cannot be read, convert the checkpoint again: ")
    assert len(str(caught.value)) < 500


def test_parameters_of_another_shape_are_refused(converted: Path) -> None:
    """Orbax itself would hand them over."""
    config = json.loads((converted / "config.json").read_text())
    (converted / "config.json").write_text(json.dumps(config | {"intermediate_size": 80}))
    manifest = json.loads((converted / "jaxgen.json").read_text())
    del manifest["files"]["config.json"]
    (converted / "jaxgen.json").write_text(json.dumps(manifest))
    with pytest.raises(ConfigError, match=r"layers\.mlp\.down\.weight has shape \(2, 64, 160\), but config.json means"):
        load_params(converted, load_model_config(converted), progress=False)


def test_another_family_is_refused(converted: Path) -> None:
    manifest = json.loads((converted / "jaxgen.json").read_text())
    (converted / "jaxgen.json").write_text(json.dumps(manifest | {"family": "opt"}))
    with pytest.raises(ConfigError, match=r"jaxgen\.json: family is 'opt', but config\.json means another"):
        load_params(converted, load_model_config(converted), progress=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 2}, "format_version is 2 and this version reads 1; convert the checkpoint again"),
        ({"dtype": "int8"}, "dtype is 'int8'; it must be one of float32, bfloat16, float16"),
        ({"files": []}, "is damaged"),
        ({"files": {"config.json": {"size": "1", "sha256": ""}}}, "is damaged"),
        ({"files": {"config.json": None}}, "is damaged"),
        ({"files": {"../x": {"size": 1, "sha256": ""}}}, "the file name '../x' leads out of the directory"),
    ],
)
def test_bad_manifest(converted: Path, change: dict[str, Any], message: str) -> None:
    config = load_model_config(converted)
    manifest = json.loads((converted / "jaxgen.json").read_text())
    (converted / "jaxgen.json").write_text(json.dumps(manifest | change))
    with pytest.raises(ConfigError) as caught:
        load_params(converted, config, progress=False)
    assert message in str(caught.value)


def test_link_out_of_the_converted_directory_is_refused(converted: Path, tmp_path: Path) -> None:
    (converted / "tokenizer.json").rename(tmp_path / "tokenizer.json")
    (converted / "tokenizer.json").symlink_to(tmp_path / "tokenizer.json")
    with pytest.raises(ConfigError, match=r"tokenizer\.json is a link out of the directory"):
        load_params(converted, load_model_config(converted), progress=False)


def test_values_that_float16_cannot_hold_are_refused_on_load(tmp_path: Path) -> None:
    source = copy_golden("opt_pre", tmp_path / "source")
    tensors = load_file(source / "model.safetensors")
    tensors["model.decoder.final_layer_norm.bias"][0] = 1e5
    save_file(tensors, source / "model.safetensors")
    directory = run(source, tmp_path / "converted")
    with pytest.raises(ConfigError, match=r"norm\.bias has values that float16 cannot hold"):
        load_params(directory, load_model_config(directory, "float16"), progress=False)


# --- atomicity


class Stop(BaseException):
    """Like a KeyboardInterrupt: no handler of errors catches it."""


STEPS = {
    "load_params": "weights.convert.load_params",
    "copyfile": "weights.checkpoint.shutil.copyfile",
    "save": "weights.checkpoint.ocp.save",
    "write_manifest": "weights.checkpoint.write_manifest",
    "sync_tree": "weights.atomic.sync_tree",
    "swap": "weights.atomic._swap",
}


@pytest.mark.parametrize("step", STEPS)
def test_an_interrupted_conversion_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    make_tiny_checkpoint(tmp_path / "source")
    written: list[str] = []

    def stop(*args: Any, **kwargs: Any) -> None:
        written.extend(path.name for path in (tmp_path / ".dest.partial").iterdir())
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(STEPS[step], stop)
        with pytest.raises(Stop):
            run(tmp_path / "source", tmp_path / "dest")
    assert ("jaxgen.json" in written) == (step in ("sync_tree", "swap"))
    assert ("params" in written) == (step in ("write_manifest", "sync_tree", "swap"))
    assert not (tmp_path / "dest").exists()
    # complete by then, so nothing is gained by removing it
    assert (tmp_path / ".dest.partial").exists() == (step == "swap")
    assert bits_of(run(tmp_path / "source", tmp_path / "dest")) == bits_of(tmp_path / "source")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dest", "source"]


KILLED = """
import os, sys
from pathlib import Path
from weights import checkpoint, convert

checkpoint.write_manifest = lambda *args, **kwargs: os.kill(os.getpid(), 9)
convert.convert(sys.argv[1], Path(sys.argv[2]), progress=False)
"""


def test_a_killed_conversion_leaves_nothing_that_looks_finished(tmp_path: Path) -> None:
    make_tiny_checkpoint(tmp_path / "source")
    command = [sys.executable, "-c", KILLED, str(tmp_path / "source"), str(tmp_path / "dest")]
    assert subprocess.run(command, check=False).returncode == -9
    left = tmp_path / ".dest.partial"
    assert (left / "params").is_dir()
    assert not (tmp_path / "dest").exists()
    with pytest.raises(ConfigError, match="has no weights"):
        load_params(left, load_model_config(left), progress=False)
    run(tmp_path / "source", tmp_path / "dest")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dest", "source"]


def test_what_is_written_reaches_the_disk_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tiny_checkpoint(tmp_path / "source")
    synced: list[int] = []
    fsync = os.fsync

    def record(handle: int) -> None:
        # inode numbers survive the rename
        synced.append(os.fstat(handle).st_ino)
        fsync(handle)

    monkeypatch.setattr("weights.atomic.os.fsync", record)
    directory = run(tmp_path / "source", tmp_path / "dest")
    assert {path.stat().st_ino for path in [directory, *directory.rglob("*")]} <= set(synced)
    assert synced[-1] == tmp_path.stat().st_ino


def test_two_conversions_to_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_tiny_checkpoint(tmp_path / "source")
    save = checkpoint.save
    seen: list[str] = []

    def second(*args: Any, **kwargs: Any) -> None:
        if not seen:
            seen.append("once")
            with pytest.raises(ConfigError) as caught:
                run(tmp_path / "source", tmp_path / "dest")
            seen.append(str(caught.value))
        save(*args, **kwargs)

    monkeypatch.setattr("weights.convert.checkpoint.save", second)
    assert bits_of(run(tmp_path / "source", tmp_path / "dest")) == bits_of(tmp_path / "source")
    assert seen[1] == f"{tmp_path}/.dest.partial is being written by another process; wait until it is done"


# --- the command


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    destination = tmp_path / "new" / "dest"
    convert.main([str(GOLDENS / "llama"), str(destination), "--dtype", "bfloat16"])
    out, progress = capsys.readouterr()
    assert out == f"{destination} is ready: jaxgen serve --model {destination}\n"
    assert "loading weights: 100%" in progress
    assert "checksums: 100%" in progress
    assert load_model_config(destination).dtype == "bfloat16"


def test_command_fails_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "scripts/convert_weights.py", str(tmp_path), str(tmp_path / "dest")]
    root = Path(__file__).parent.parent
    result = subprocess.run(
        command, cwd=root, env=os.environ | {"PYTHONPATH": str(root)}, capture_output=True, text=True
    )
    assert result.returncode == 1
    assert result.stderr == f"jaxgen convert-weights: {tmp_path} is no model directory: it has no config.json\n"
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
    why = "is no converted checkpoint, and --force replaces nothing else" if force else "exists already; choose another"
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
    monkeypatch.setattr("weights.checkpoint.write_manifest", lambda *args, **kwargs: (_ for _ in ()).throw(OSError(28)))
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
    with pytest.raises(ConfigError, match="is no converted checkpoint"):
        run(source, source, force=True)
    assert {path.name: path.read_bytes() for path in source.iterdir()} == before


def test_conversion_stays_on_the_cpu() -> None:
    """The command leaves an accelerator to whoever computes on it; that it says so to JAX is all a CPU can show."""
    program = (
        "import jax\n"
        "from weights import convert\n"
        "convert.convert = lambda *args, **kwargs: None\n"
        "convert.main(['a', 'b'])\n"
        "assert jax.config.jax_platforms == 'cpu', jax.config.jax_platforms\n"
    )
    environment = {key: value for key, value in os.environ.items() if key != "JAX_PLATFORMS"}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment, stdout=subprocess.DEVNULL)
