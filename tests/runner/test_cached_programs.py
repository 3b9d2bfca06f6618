"""The programs that a file names are those that were compiled; whatever is wrong costs time, and no bit."""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxgen.core.request import TokenEvent
from jaxgen.engine.start.build import build_engine
from jaxgen.kernels.choice import REFERENCE, native
from jaxgen.kernels.kernels import Kernels
from jaxgen.models.placement import pack_params
from jaxgen.runner import cached_programs
from jaxgen.runner.cached_programs import cached_or_compiled
from jaxgen.runner.compilation_cache import persistent_compilation
from jaxgen.runner.programs import CompiledStep, RowPrograms, compile_step
from tests.support.damaged_files import DAMAGES
from tests.support.engines import EOS, LLAMA, engine_config, params_of, request, run
from tests.support.native import native as library

SHAPE = jax.ShapeDtypeStruct((8,), jnp.float32)


def small(kernels: Kernels, compiled: list[str]) -> CompiledStep:
    """Compile programs of one operation each, and note that."""
    compiled.append("compiled")

    def program(factor: float) -> Any:
        return jax.jit(lambda x: jnp.sin(x) ** factor).lower(SHAPE).compile()

    step, *others = [program(factor) for factor in (2.0, 3.0, 5.0, 7.0, 9.0)]
    return CompiledStep(step, None, RowPrograms(*others[:3]), others[3], kernels, 17, 4)


@pytest.fixture
def cache(tmp_path: Path, without_programs: None) -> Iterator[Path]:
    with persistent_compilation(tmp_path / "compiled"):
        yield tmp_path / "compiled"


def value(step: CompiledStep) -> list[float]:
    found: Any = step.run
    return [float(x) for x in found(jnp.arange(8.0))]


def test_arguments_and_results_may_have_kernels_in_their_type(tmp_path: Path, cache: Path) -> None:
    """As packed weights and caches have: they are those of this process."""
    kernels = native(library())
    params = pack_params(LLAMA, dict(params_of(LLAMA)), kernels)
    step = small(kernels, [])
    doubled: Any = jax.jit(lambda params: jax.tree.map(lambda x: x + x, params)).lower(params).compile()
    cached_or_compiled(tmp_path / "kept", kernels, lambda: replace(step, run=doubled))
    assert not (tmp_path / "kept").exists(), "they were compiled before anybody noted their names"

    def compile_() -> CompiledStep:
        jax.clear_caches()
        again: Any = jax.jit(lambda params: jax.tree.map(lambda x: x + x, params)).lower(params).compile()
        return replace(small(kernels, []), run=again)

    cached_or_compiled(tmp_path / "kept", kernels, compile_)
    loaded: Any = cached_or_compiled(tmp_path / "kept", kernels, pytest.fail).run
    structure: Any = jax.tree.structure(params)
    assert structure == jax.tree.structure(loaded(params))
    for one, other in zip(*map(jax.tree.leaves, (loaded(params), doubled(params))), strict=True):
        assert (one == other).all()


@pytest.mark.full
def test_an_engine_has_the_bits_of_the_programs_that_were_compiled(tmp_path: Path, cache: Path) -> None:
    """Of native kernels; and nothing is traced again. Full: compiles a step into an empty cache."""
    kernels, config, path = native(library()), engine_config(), tmp_path / "kept.json"

    def serve(compile_: Any) -> dict[str, list[TokenEvent]]:
        compiled = cached_or_compiled(path, kernels, compile_)
        params = pack_params(LLAMA, dict(params_of(LLAMA)), kernels)
        found = tmp_path / "found.json"
        engine = build_engine(LLAMA, config, params, frozenset({EOS}), compiled=compiled, findings=found)
        events = run(
            engine,
            [
                request("greedy", range(3, 40), max_tokens=12, temperature=0.0, logprobs=5, prompt_logprobs=2),
                request("penalised", range(5, 25), max_tokens=12, seed=3, frequency_penalty=0.7),
            ],
        )
        assert engine.stats().compilations_after_ready == 0
        return events

    jax.clear_caches()  # what an earlier test has lowered would have no entry in this cache
    fresh = serve(partial(compile_step, LLAMA, config, kernels))
    assert serve(pytest.fail) == fresh


def test_a_program_that_came_from_the_cache_is_named_too(tmp_path: Path, cache: Path) -> None:
    """As after an update that changes no program. jaxlib loses functions of one that is serialized again."""
    compiled: list[str] = []
    first = cached_or_compiled(tmp_path / "one", REFERENCE, partial(small, REFERENCE, compiled))
    jax.clear_caches()
    second = cached_or_compiled(tmp_path / "two", REFERENCE, partial(small, REFERENCE, compiled))
    third = cached_or_compiled(tmp_path / "two", REFERENCE, pytest.fail)
    assert len(compiled) == 2
    assert value(first) == value(second) == value(third)
    assert (third.temporary_bytes, third.aliased_bytes, third.narrow) == (17, 4, None)


SEVERAL_DEVICES = """
import sys
from functools import partial
from pathlib import Path
import jax
import jax.numpy as jnp
from jaxgen.kernels.choice import REFERENCE
from jaxgen.runner.compilation_cache import persistent_compilation
from jaxgen.runner.cached_programs import cached_or_compiled
from jaxgen.runner.programs import CompiledStep, RowPrograms

folder, compiled = Path(sys.argv[1]), []


def compile_():
    compiled.append("compiled")
    programs = [jax.jit(lambda x: x * factor).lower(jnp.arange(8.0)).compile() for factor in range(2, 7)]
    return CompiledStep(programs[0], None, RowPrograms(*programs[1:4]), programs[4], REFERENCE, 17, 4)


with persistent_compilation(folder / "compiled"):
    for _ in range(2):
        step = cached_or_compiled(folder / "kept", REFERENCE, compile_)
        print(jax.device_count(), float(step.run(jnp.arange(8.0))[7]), len(compiled))
"""


def test_a_process_may_have_several_devices(tmp_path: Path, without_programs: None) -> None:
    """A program is loaded for the device that it was compiled for. JAX counts its devices once, so in a process."""
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "2"}
    command = [sys.executable, "-c", SEVERAL_DEVICES, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["2 14.0 1"] * 2, done.stderr


def test_a_program_that_is_not_in_the_cache_any_more_is_compiled(
    tmp_path: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    compiled: list[str] = []
    again = partial(cached_or_compiled, tmp_path / "kept", REFERENCE, partial(small, REFERENCE, compiled))
    first = value(again())
    for entry in cache.glob("*-cache"):
        entry.unlink()
    jax.clear_caches()
    assert value(again()) == first
    assert value(again()) == first
    assert len(compiled) == 2
    assert caplog.records == []


@pytest.mark.parametrize("damage", ["cut", "another bit"])
@pytest.mark.parametrize("where", ["file", "entries"])
def test_damage_is_told_and_costs_a_compilation(
    tmp_path: Path, cache: Path, caplog: pytest.LogCaptureFixture, damage: str, where: str
) -> None:
    compiled: list[str] = []
    again = partial(cached_or_compiled, tmp_path / "kept", REFERENCE, partial(small, REFERENCE, compiled))
    first = value(again())
    for path in [tmp_path / "kept"] if where == "file" else cache.glob("*-cache"):
        path.write_bytes(DAMAGES[damage](path.read_bytes()))
    jax.clear_caches()
    assert value(again()) == first
    assert len(compiled) == 2
    (said,) = [record.getMessage() for record in caplog.records if str(tmp_path / "kept") in record.getMessage()]
    assert "traced again" in said
    jax.clear_caches()
    assert value(again()) == first
    assert len(compiled) == 2


@pytest.fixture
def any_program_is_written() -> Iterator[None]:
    """However short a compilation is, JAX calls the function that writes its program."""
    name = "jax_persistent_cache_min_compile_time_secs"
    before = getattr(jax.config, name)
    jax.config.update(name, 0.0)
    yield
    jax.config.update(name, before)


def test_nothing_is_kept_without_a_cache_of_compiled_programs(
    tmp_path: Path, without_programs: None, any_program_is_written: None, caplog: pytest.LogCaptureFixture
) -> None:
    """JAX calls the function that would write a program then, and it writes nothing."""
    compiled: list[str] = []
    for _ in range(2):
        cached_or_compiled(tmp_path / "kept", REFERENCE, partial(small, REFERENCE, compiled))
    assert len(compiled) == 2
    assert list(tmp_path.iterdir()) == []
    assert caplog.records == []


def test_files_used_least_recently_make_room(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_programs, "MAX_BYTES", 1)
    folder = tmp_path / "traced"
    folder.mkdir()
    for name in ("one", "two"):
        cached_or_compiled(folder / name, REFERENCE, partial(small, REFERENCE, []))
    assert [path.name for path in folder.iterdir()] == ["two"]


def test_a_folder_that_cannot_be_written_costs_a_warning(
    tmp_path: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        step = cached_or_compiled(tmp_path / "missing" / "kept", REFERENCE, partial(small, REFERENCE, []))
    assert value(step)
    assert "cannot be written" in caplog.text


def test_the_identity_has_the_settings_of_jax_and_not_those_of_its_cache(cache: Path, tmp_path: Path) -> None:
    before = cached_programs.compiler_identity()
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "other"))
    assert cached_programs.compiler_identity() == before
    with jax.default_matmul_precision("float32"):
        assert cached_programs.compiler_identity() != before
