"""An engine whose device runs out of memory is built once more, and none is built of weights that change meanwhile."""

import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest

from jaxgen.assembly import build as build_module
from jaxgen.assembly import parameters
from jaxgen.assembly.build import build_to_fit
from jaxgen.assembly.parameters import weight_files
from jaxgen.assembly.resolve import resolve_on_device
from jaxgen.assembly.resolved_model import ResolvedModel
from jaxgen.assembly.text_settings import own_text_settings
from jaxgen.core.config import EngineConfig, EngineOptions
from jaxgen.core.errors import ConfigError, NoRoomError
from jaxgen.core.identity import UNKNOWN
from jaxgen.engine.engine import Engine
from jaxgen.sizing.allocation import LEAST_SLACK
from jaxgen.sizing.device_memory import DeviceMemory
from jaxgen.weights.files import checksums
from jaxgen.weights.load import load_params
from tests.support.goldens import GOLDENS

FULL = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 525336576 bytes."


class Tries:
    """Makes engines that have a configuration alone. The first ``failing`` raise an error of the device."""

    def __init__(self, failing: int, error: str = FULL):
        self.failing, self.error = failing, error
        self.configs: list[EngineConfig] = []

    def __call__(self, model: object, config: EngineConfig, *_: object, **__: object) -> Engine:
        self.configs.append(config)
        if len(self.configs) <= self.failing:
            raise jax.errors.JaxRuntimeError(self.error)
        made = object.__new__(Engine)
        made.config = config
        return made


@pytest.fixture
def resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ResolvedModel:
    """A model whose blocks fill a small accelerator, and whose programs are not compiled."""
    monkeypatch.setattr(build_module, "compile_to_fit", lambda options, model, config, *_: (config, None))
    monkeypatch.setattr(build_module, "identity_of", lambda *_, **__: UNKNOWN)
    monkeypatch.setattr(build_module, "findings_file", lambda *_: None)
    found = resolve_on_device(str(GOLDENS / "llama"), kernels="xla", cache_dir=tmp_path)
    return replace(found, memory=DeviceMemory("gpu", found.params_bytes + 4 * LEAST_SLACK))


OPTIONS: dict[str, Any] = {"block_size": 16, "max_num_seqs": 12_000, "token_budget": 12_000}


def build(resolved: ResolvedModel, monkeypatch: pytest.MonkeyPatch, tries: Tries, **options: Any) -> Any:
    monkeypatch.setattr(build_module, "build_engine", tries)
    wanted = EngineOptions(**OPTIONS, **options)
    return build_to_fit(
        resolved, resolved.configure(wanted), wanted, own_text_settings(resolved.directory), progress=False
    )


def test_the_second_try_has_fewer_blocks_and_the_log_says_so(
    resolved: ResolvedModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries = Tries(1)
    with caplog.at_level(logging.WARNING):
        built: Any = build(resolved, monkeypatch, tries)
    first, second = tries.configs
    assert built.config is second
    assert second.cache.num_blocks < first.cache.num_blocks
    assert second.scheduler == first.scheduler
    (said,) = [one.getMessage() for one in caplog.records if "ran out of memory" in one.getMessage()]
    assert str(first.cache.num_blocks) in said
    assert str(second.cache.num_blocks) in said
    assert "525336576 bytes" in said


def test_after_two_tries_the_error_names_the_flag(resolved: ResolvedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = Tries(2)
    with pytest.raises(NoRoomError, match=r"ran out of memory with \d+ KV blocks: use --num-blocks \d+ or so"):
        build(resolved, monkeypatch, tries)
    assert len(tries.configs) == 2


def test_blocks_that_were_asked_for_are_refused_by_name(
    resolved: ResolvedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = resolved.configure(EngineOptions(**OPTIONS)).cache.num_blocks
    with pytest.raises(NoRoomError, match=rf"--num-blocks {blocks} does not fit in .*: --num-blocks \d+ would"):
        build(resolved, monkeypatch, Tries(1), num_blocks=blocks)


def test_a_plan_that_fewer_blocks_do_not_change_is_not_tried_again(
    resolved: ResolvedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    plenty, tries = replace(resolved, memory=DeviceMemory("gpu", 2**40)), Tries(1)
    with pytest.raises(NoRoomError, match="end what else uses the device"):
        build(plenty, monkeypatch, tries)
    assert len(tries.configs) == 1


def test_other_errors_of_a_device_are_not_tried_again(resolved: ResolvedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = Tries(1, "INTERNAL: CUDA_ERROR_ILLEGAL_ADDRESS")
    with pytest.raises(jax.errors.JaxRuntimeError, match="ILLEGAL"):
        build(resolved, monkeypatch, tries)
    assert len(tries.configs) == 1


@pytest.fixture
def link(tmp_path: Path) -> Path:
    """A link to one of two models of the same shape, as who deploys another turns it."""
    for name in ("v1", "v2"):
        shutil.copytree(GOLDENS / "llama", tmp_path / name)
    file = next((tmp_path / "v2").glob("*.safetensors"))
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    return turned(tmp_path / "current", "v1")


def turned(link: Path, to: str) -> Path:
    link.unlink(missing_ok=True)
    link.symlink_to(link.with_name(to))
    return link


@pytest.mark.parametrize("loaded_first", [True, False])
@pytest.mark.parametrize("kept", [True, False])
def test_weights_that_change_while_they_are_loaded_get_no_name(
    link: Path, monkeypatch: pytest.MonkeyPatch, *, loaded_first: bool, kept: bool
) -> None:
    """The link turns before or after they are read, on a machine that keeps prepared weights or does not."""
    found = resolve_on_device(str(link), kernels="xla", cache_dir=link.with_name("cache"))
    prepared = found.caches.prepared
    assert prepared is not None
    resolved = found if kept else replace(found, caches=replace(found.caches, prepared=None))

    def deployed(*args: Any, **options: Any) -> Any:
        params = load_params(*args, **options) if loaded_first else None
        turned(link, "v2")
        return load_params(*args, **options) if params is None else params

    monkeypatch.setattr(build_module, "compile_to_fit", lambda options, model, config, *_: (config, None))
    monkeypatch.setattr(parameters, "load_params", deployed)
    with pytest.raises(ConfigError, match=r"the weights in .*current changed while being read: start again"):
        build(resolved, monkeypatch, Tries(0), num_blocks=64)
    assert list(prepared.iterdir()) == []


def test_another_look_at_weights_reads_none_that_are_the_same(link: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = weight_files(resolve_on_device(str(link), cache_dir=link.with_name("cache")), progress=False)
    read: list[str] = []

    def reading(_: Path, names: list[str], *__: Any) -> dict[str, str]:
        read.extend(names)
        return dict.fromkeys(names, "")

    monkeypatch.setattr(checksums, "checksums_of", reading)
    files.check()
    assert read == []
    turned(link, "v2")
    with pytest.raises(ConfigError, match="changed while being read"):
        files.check()
    assert read == [path.name for path in link.glob("*.safetensors")]
