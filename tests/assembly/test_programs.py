"""Kept programs have the name of all that they are made from."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import pytest

from jaxgen.assembly import programs
from jaxgen.assembly.programs import compile_programs
from jaxgen.assembly.resolve import resolve_on_device
from jaxgen.assembly.resolved_model import ResolvedModel
from jaxgen.core.config import EngineConfig, EngineOptions
from jaxgen.core.identity import Identity
from jaxgen.files.cache_dirs import CacheDirs
from jaxgen.kernels.choice import REFERENCE
from jaxgen.kernels.kernels import Kernels
from jaxgen.runner.programs import CompiledStep
from tests.assembly.test_digest import PROGRAM
from tests.support.fake_gpu import H200
from tests.support.goldens import GOLDENS

COMPILED = object.__new__(CompiledStep)
"""Of which nothing is asked."""


def test_what_a_gpu_s_start_finds_is_of_its_narrow_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolved = resolve_on_device(str(GOLDENS / "llama"), kernels="xla", cache_dir=tmp_path)
    config, on_gpu = resolved.configure(EngineOptions(num_blocks=64)), replace(resolved, device=H200.device)

    def name(where: ResolvedModel, text: str) -> Path | None:
        monkeypatch.setattr(programs, "narrow_texts", lambda _: [text])
        return programs.findings_file(where, config, Identity({"a": 1}), COMPILED)

    assert name(on_gpu, PROGRAM) == name(on_gpu, PROGRAM) != name(on_gpu, PROGRAM.replace('"a":2', '"a":3'))
    assert name(resolved, PROGRAM) == name(resolved, "another")


def test_the_name_of_kept_programs_has_all_that_they_are_made_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each change of one of them is another file, and the same again is the same file."""
    paths: list[Path] = []

    def noted(path: Path, *_: object) -> CompiledStep:
        paths.append(path)
        return COMPILED

    monkeypatch.setattr(programs, "cached_or_compiled", noted)
    resolved = resolve_on_device(str(GOLDENS / "llama"), kernels="xla", cache_dir=tmp_path)
    config, native = resolved.configure(EngineOptions(num_blocks=64)), replace(REFERENCE, build=(("library", "one"),))

    def name(*, model: Any = resolved.model, kernels: Kernels = native, config: EngineConfig = config) -> Path:
        compile_programs(resolved, model, kernels, config)
        return paths[-1]

    def other(of: str, *_: object) -> Any:
        return "other" if of == "sources_digest" else {"other": "other"}

    names = {name()}
    assert name() in names
    names.add(name(model=replace(resolved.model, max_position=99)))
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
            changed.setattr(programs, of, partial(other, of))
            names.add(name())
    assert len(names) == 13
    assert name() in names


def test_programs_of_a_gpu_and_without_a_cache_are_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "compile_for", lambda *_: COMPILED)
    resolved = resolve_on_device(str(GOLDENS / "llama"), kernels="xla", cache_dir=tmp_path)
    config = resolved.configure(EngineOptions(num_blocks=64))
    for other in (
        replace(resolved, caches=CacheDirs()),
        replace(resolved, device=replace(resolved.device, platform="gpu")),
    ):
        assert compile_programs(other, resolved.model, REFERENCE, config) is COMPILED
