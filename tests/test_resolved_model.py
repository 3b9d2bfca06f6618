"""An engine whose device runs out of memory is built once more; kept programs have the name of what they are of."""

import logging
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import pytest

from jaxgen import resolved_model
from jaxgen.assemble import find_parts
from jaxgen.core.cache_dirs import CacheDirs
from jaxgen.core.config import EngineConfig, EngineOptions
from jaxgen.core.errors import ConfigError, NoRoomError
from jaxgen.core.identity import UNKNOWN
from jaxgen.engine.engine import Engine
from jaxgen.kernels.choice import REFERENCE
from jaxgen.kernels.kernels import Kernels
from jaxgen.model_texts import own_texts
from jaxgen.resolved_model import ResolvedModel
from jaxgen.runner.programs import CompiledStep
from jaxgen.sizing.allocation import LEAST_SLACK
from jaxgen.sizing.device_memory import DeviceMemory
from jaxgen.weights import contents
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
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ResolvedModel:
    """A model whose blocks fill a small accelerator, and whose programs are not compiled."""
    monkeypatch.setattr(resolved_model, "compile_to_fit", lambda options, model, config, *_: (config, None))
    monkeypatch.setattr(ResolvedModel, "_identify", lambda *_: UNKNOWN)
    found = find_parts(str(GOLDENS / "llama"), kernels="xla", cache_dir=tmp_path)
    return replace(found, memory=DeviceMemory("gpu", found.params_bytes + 4 * LEAST_SLACK))


COMPILED = object.__new__(CompiledStep)
"""Of which nothing is asked."""
OPTIONS: dict[str, Any] = {"block_size": 16, "max_num_seqs": 12_000, "token_budget": 12_000}


def build(parts: ResolvedModel, monkeypatch: pytest.MonkeyPatch, tries: Tries, **options: Any) -> Any:
    monkeypatch.setattr(resolved_model, "Engine", tries)
    wanted = EngineOptions(**OPTIONS, **options)
    return parts.build(parts.resolve(wanted), wanted, own_texts(parts.directory), progress=False)


def test_the_second_try_has_fewer_blocks_and_the_log_says_so(
    parts: ResolvedModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries = Tries(1)
    with caplog.at_level(logging.WARNING):
        built: Any = build(parts, monkeypatch, tries)
    first, second = tries.configs
    assert built.config is second
    assert second.cache.num_blocks < first.cache.num_blocks
    assert second.scheduler == first.scheduler
    (said,) = [one.getMessage() for one in caplog.records if "ran out of memory" in one.getMessage()]
    assert str(first.cache.num_blocks) in said
    assert str(second.cache.num_blocks) in said
    assert "525336576 bytes" in said


def test_after_two_tries_the_error_names_the_flag(parts: ResolvedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = Tries(2)
    with pytest.raises(NoRoomError, match=r"ran out of memory with \d+ KV blocks: use --num-blocks \d+ or so"):
        build(parts, monkeypatch, tries)
    assert len(tries.configs) == 2


def test_blocks_that_were_asked_for_are_refused_by_name(parts: ResolvedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = parts.resolve(EngineOptions(**OPTIONS)).cache.num_blocks
    with pytest.raises(NoRoomError, match=rf"--num-blocks {blocks} does not fit in .*: --num-blocks \d+ would"):
        build(parts, monkeypatch, Tries(1), num_blocks=blocks)


def test_a_plan_that_fewer_blocks_do_not_change_is_not_tried_again(
    parts: ResolvedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    plenty, tries = replace(parts, memory=DeviceMemory("gpu", 2**40)), Tries(1)
    with pytest.raises(NoRoomError, match="end what else uses the device"):
        build(plenty, monkeypatch, tries)
    assert len(tries.configs) == 1


def test_other_errors_of_a_device_are_not_tried_again(parts: ResolvedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = Tries(1, "INTERNAL: CUDA_ERROR_ILLEGAL_ADDRESS")
    with pytest.raises(jax.errors.JaxRuntimeError, match="ILLEGAL"):
        build(parts, monkeypatch, tries)
    assert len(tries.configs) == 1


def test_the_name_of_kept_programs_has_all_that_they_are_made_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each change of one of them is another file, and the same again is the same file."""
    paths: list[Path] = []

    def noted(path: Path, *_: object) -> CompiledStep:
        paths.append(path)
        return COMPILED

    monkeypatch.setattr(resolved_model, "cached_or_compiled", noted)
    parts = find_parts(str(GOLDENS / "llama"), kernels="xla", cache_dir=tmp_path)
    config, native = parts.resolve(EngineOptions(num_blocks=64)), replace(REFERENCE, build=(("library", "one"),))

    def name(*, model: Any = parts.model, kernels: Kernels = native, config: EngineConfig = config) -> Path:
        parts._compile(model, kernels, config)
        return paths[-1]

    def other(of: str, *_: object) -> Any:
        return "other" if of == "sources_digest" else {"other": "other"}

    names = {name()}
    assert name() in names
    names.add(name(model=replace(parts.model, max_position=99)))
    names.add(name(kernels=replace(native, name="other")))
    names.add(name(kernels=replace(native, build=(("library", "two"),))))
    names.add(name(config=replace(config, narrow_width=3)))
    with monkeypatch.context() as changed:
        changed.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
        names.add(name())
    with monkeypatch.context() as changed:
        file = tmp_path / "flags"
        changed.setenv("XLA_FLAGS", str(file))
        for flag in ("true", "false"):
            file.write_text(f"--xla_cpu_enable_fast_math={flag}")
            names.add(name())
    with monkeypatch.context() as changed:
        changed.setenv("NPROC", "1")
        names.add(name())
    with jax.default_matmul_precision("float32"):
        names.add(name())
    for of in ("sources_digest", "versions", "compiler_identity"):
        with monkeypatch.context() as changed:
            changed.setattr(resolved_model, of, partial(other, of))
            names.add(name())
    assert len(names) == 13
    assert name() in names


def test_programs_of_a_gpu_and_without_a_cache_are_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolved_model, "compile_for", lambda *_: COMPILED)
    parts = find_parts(str(GOLDENS / "llama"), kernels="xla", cache_dir=tmp_path)
    config = parts.resolve(EngineOptions(num_blocks=64))
    for other in (
        replace(parts, caches=CacheDirs()),
        replace(parts, device=replace(parts.device, platform="gpu")),
    ):
        assert other._compile(parts.model, REFERENCE, config) is COMPILED


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
    found = find_parts(str(link), kernels="xla", cache_dir=link.with_name("cache"))
    prepared = found.caches.prepared
    assert prepared is not None
    parts = found if kept else replace(found, caches=replace(found.caches, prepared=None))

    def deployed(*args: Any, **options: Any) -> Any:
        params = load_params(*args, **options) if loaded_first else None
        turned(link, "v2")
        return load_params(*args, **options) if params is None else params

    monkeypatch.setattr(resolved_model, "compile_to_fit", lambda options, model, config, *_: (config, None))
    monkeypatch.setattr(resolved_model, "load_params", deployed)
    with pytest.raises(ConfigError, match=r"the weights in .*current changed while being read: start again"):
        build(parts, monkeypatch, Tries(0), num_blocks=64)
    assert list(prepared.iterdir()) == []


def test_another_look_at_weights_reads_none_that_are_the_same(link: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = find_parts(str(link), cache_dir=link.with_name("cache")).weight_files(progress=False)
    read: list[str] = []

    def reading(_: Path, names: list[str], *__: Any) -> dict[str, str]:
        read.extend(names)
        return dict.fromkeys(names, "")

    monkeypatch.setattr(contents, "checksums_of", reading)
    files.check()
    assert read == []
    turned(link, "v2")
    with pytest.raises(ConfigError, match="changed while being read"):
        files.check()
    assert read == [path.name for path in link.glob("*.safetensors")]
