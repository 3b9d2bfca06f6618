"""A conversion is complete or not there, whatever interrupts it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jaxgen.core.errors import ConfigError
from jaxgen.weights.converted import checkpoint
from jaxgen.weights.load import load_model_config, load_params
from jaxgen.weights.packaged.tiny import make_tiny_checkpoint
from tests.support.conversions import bits_of, run


class Stop(BaseException):
    """Like a KeyboardInterrupt: no handler of errors catches it."""


STEPS = {
    "load_params": "jaxgen.weights.convert.command.load_params",
    "copyfile": "jaxgen.weights.converted.checkpoint.shutil.copyfile",
    "save": "jaxgen.weights.converted.checkpoint.ocp.save",
    "write_manifest": "jaxgen.weights.converted.checkpoint.write_manifest",
    "sync_tree": "jaxgen.weights.files.atomic.sync_tree",
    "swap": "jaxgen.weights.files.atomic._swap",
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
from jaxgen.weights.converted import checkpoint
from jaxgen.weights.convert import command as convert

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

    monkeypatch.setattr("jaxgen.weights.files.atomic.os.fsync", record)
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

    monkeypatch.setattr("jaxgen.weights.convert.command.checkpoint.save", second)
    assert bits_of(run(tmp_path / "source", tmp_path / "dest")) == bits_of(tmp_path / "source")
    assert seen[1] == f"{tmp_path}/.dest.partial is being written by another process; wait until it is done"
