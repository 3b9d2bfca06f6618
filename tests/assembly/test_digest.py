"""Whatever bits depend on changes the digest, and nothing else does. No test here computes anything."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from jaxgen.assembly import digest as module
from jaxgen.assembly.digest import identify, program_digest, sources_digest, xla_flags
from jaxgen.core.config import CacheConfig, EngineConfig, OffloadConfig, SchedulerConfig, StreamConfig
from jaxgen.core.identity import Identity
from jaxgen.core.model_config import ModelConfig
from jaxgen.core.quantization import WeightFormat
from jaxgen.hardware.device_info import DeviceInfo
from tests.support.engines import LLAMA as MODEL
from tests.support.paths import ROOT

CPU = DeviceInfo("cpu", "A CPU", 2, ("avx2", "fma"))
GPU = DeviceInfo("gpu", "A GPU", 132, compute_capability=(9, 0))
STREAM = StreamConfig(num_open=4, group=2)
CONFIG = EngineConfig(CacheConfig(16, 64), SchedulerConfig(32, 8, 256), seed=None, max_logit_bias=300)
PROGRAM = """HloModule jit_step, is_scheduled=true

FileNames
1 "/home/me/step.py"

%add (x: f32[]) -> f32[] {
  ROOT %y = f32[] custom-call(%x), metadata={op_name="jit(step)/{dot}" stack=7}, backend_config={"b":{"d":1},"a":2}
}
"""


@dataclass(frozen=True)
class Case:
    """What ``identify`` is given."""

    device: DeviceInfo = CPU
    model: ModelConfig = MODEL
    config: EngineConfig = CONFIG
    kernels: Mapping[str, str] = field(
        default_factory=lambda: {"name": "native", "library": "ab", "compiler": "g++ 12"}
    )
    settings: Mapping[str, Any] = field(default_factory=lambda: {"jax_enable_x64": False})
    programs: Iterable[str] = (PROGRAM,)
    weights: str = "cd"
    texts: Mapping[str, Any] = field(default_factory=lambda: {"tokenizer": "ef"})
    environment: Mapping[str, str] = field(default_factory=dict)

    def identity(self) -> Identity:
        return identify(**vars(self))


BASE, ON_GPU = Case(), Case(device=GPU)
SCHEDULER, CACHE = CONFIG.scheduler, CONFIG.cache
DIFFERENT = {
    "device kind": replace(BASE, device=replace(CPU, kind="Another")),
    "instruction set": replace(BASE, device=replace(CPU, features=("avx2",))),
    "platform": ON_GPU,
    "kernels": replace(BASE, kernels={"name": "XLA"}),
    "library": replace(BASE, kernels={**BASE.kernels, "library": "ac"}),
    "compiler": replace(BASE, kernels={**BASE.kernels, "compiler": "g++ 13"}),
    "XLA's flag": replace(BASE, environment={"XLA_FLAGS": "--xla_cpu_enable_fast_math=true"}),
    "variable": replace(BASE, environment={"NVIDIA_TF32_OVERRIDE": "1"}),
    "setting of JAX": replace(BASE, settings={"jax_enable_x64": True}),
    "weights": replace(BASE, weights="ce"),
    "tokenizer": replace(BASE, texts={"tokenizer": "eg"}),
    "dtype": replace(BASE, model=replace(MODEL, dtype="bfloat16")),
    "KV cache's dtype": replace(BASE, model=replace(MODEL, kv_dtype="fp8")),
    "quantization": replace(BASE, model=replace(MODEL, weight_formats=(("a", WeightFormat(bits=4, group=32)),))),
    "inputs in FP8": replace(BASE, model=replace(MODEL, fp8_inputs=True)),
    "another model": replace(BASE, model=replace(MODEL, intermediate_size=128)),
    "token budget": replace(BASE, config=replace(CONFIG, scheduler=replace(SCHEDULER, token_budget=64))),
    "rows": replace(BASE, config=replace(CONFIG, scheduler=replace(SCHEDULER, max_num_seqs=4))),
    "context": replace(BASE, config=replace(CONFIG, scheduler=replace(SCHEDULER, max_model_len=128))),
    "block size": replace(BASE, config=replace(CONFIG, cache=replace(CACHE, block_size=32))),
    "blocks": replace(BASE, config=replace(CONFIG, cache=replace(CACHE, num_blocks=65))),
    "blocks of windows": replace(BASE, config=replace(CONFIG, cache=replace(CACHE, window_blocks=(8,), windows=(4,)))),
    "layer inputs": replace(BASE, config=replace(CONFIG, cache=replace(CACHE, keep_inputs=True))),
    "logit biases": replace(BASE, config=replace(CONFIG, max_logit_bias=10)),
    "streaming": replace(BASE, config=replace(CONFIG, streaming=STREAM)),
    "numbers of few bits on the host": replace(
        BASE, config=replace(CONFIG, offload=OffloadConfig(8, host_dtype="int8"))
    ),
}
DIFFERENT_ON_GPU = {
    "multiprocessors": replace(ON_GPU, device=replace(GPU, num_cores=108)),
    "compute capability": replace(ON_GPU, device=replace(GPU, compute_capability=(8, 0))),
    "autotuning": replace(ON_GPU, programs=(PROGRAM.replace('"a":2', '"a":3'),)),
    "a program more": replace(ON_GPU, programs=(PROGRAM, PROGRAM)),
}
SAME = {
    "cores": replace(BASE, device=replace(CPU, num_cores=64)),
    "programs of a CPU, which show its cores": replace(BASE, programs=()),
    "dumps": replace(BASE, environment={"XLA_FLAGS": "--xla_dump_to=/here --xla_dump_hlo_as_text"}),
    "threads": replace(BASE, environment={"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}),
    "virtual devices": replace(BASE, environment={"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}),
    "autotuning's folder": replace(BASE, environment={"XLA_FLAGS": "--xla_gpu_per_fusion_autotune_cache_dir=/there"}),
    "other variables": replace(BASE, environment={"HOME": "/me", "OMP_NUM_THREADS": "1"}),
    "narrow program": replace(BASE, config=replace(CONFIG, narrow_width=8)),
    "seed of the server": replace(BASE, config=replace(CONFIG, seed=7)),
    "prefix caching": replace(BASE, config=replace(CONFIG, scheduler=replace(SCHEDULER, prefix_caching=False))),
    "background": replace(BASE, config=replace(CONFIG, scheduler=replace(SCHEDULER, background_tokens=0))),
    "offloading": replace(BASE, config=replace(CONFIG, offload=OffloadConfig(8))),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_what_bits_depend_on_is_in_the_digest(what: str) -> None:
    assert DIFFERENT[what].identity().digest != BASE.identity().digest


@pytest.mark.parametrize("what", DIFFERENT_ON_GPU)
def test_what_bits_of_a_gpu_depend_on_is_in_the_digest(what: str) -> None:
    assert DIFFERENT_ON_GPU[what].identity().digest != ON_GPU.identity().digest


@pytest.mark.parametrize("what", SAME)
def test_what_bits_do_not_depend_on_is_not(what: str) -> None:
    assert SAME[what].identity() == BASE.identity()


@pytest.mark.parametrize("package", ["jaxgen", "jax", "jaxlib", "tokenizers", "llguidance"])
def test_versions_are_in_the_digest(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = BASE.identity()
    assert package in before.parts["versions"]
    newer = {**before.parts["versions"], package: "99"}
    monkeypatch.setattr(module, "versions", lambda _: newer)
    assert BASE.identity().digest != before.digest


@pytest.mark.parametrize("package", ["jax-cuda12-plugin", "jax-cuda13-pjrt", "nvidia-cublas-cu12", "nvidia-cudnn-cu13"])
def test_versions_of_what_computes_on_a_gpu_are_in_the_digest(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"jax": "0.11.2", package: "1"}
    monkeypatch.setattr(module, "versions", lambda names: {n: v for n, v in installed.items() if n in names})
    before, on_cpu = ON_GPU.identity(), BASE.identity()
    installed[package] = "2"
    assert ON_GPU.identity().digest != before.digest
    assert BASE.identity() == on_cpu


def test_libraries_that_no_package_brings_are_in_the_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container of NVIDIA CUDA is not a Python package."""
    monkeypatch.setattr(module, "libraries", lambda: {"cublas": "130000"})
    before, on_cpu = ON_GPU.identity(), BASE.identity()
    assert before.parts["versions"]["cublas"] == "130000"
    monkeypatch.setattr(module, "libraries", lambda: {"cublas": "130100"})
    assert ON_GPU.identity().digest != before.digest
    assert BASE.identity() == on_cpu


def test_sources_are_in_the_digest_wherever_they_lie(tmp_path: Path) -> None:
    digests = []
    for name, line in (("one", ""), ("two", ""), ("three", "# another\n")):
        for file, text in (("jaxgen/models/m.py", line), ("jaxgen/server/s.py", name), ("pallas_kernels/k.py", "")):
            path = tmp_path / name / file
            path.parent.mkdir(parents=True)
            path.write_text(text)
        digests.append(module._sources(tmp_path / name / "jaxgen"))
    assert digests[0] == digests[1] != digests[2]


def test_the_sources_are_those_of_the_whole_package() -> None:
    assert sources_digest() == module._sources(ROOT / "jaxgen")


def test_parts_are_json_without_paths() -> None:
    case = replace(ON_GPU, environment={"XLA_FLAGS": "--xla_gpu_gemm_autotuner_override_file=/home/me/secret"})
    text = json.dumps(case.identity().parts)
    assert "/" not in text
    assert "xla_gpu_gemm_autotuner_override_file" in text


def test_flags_are_read_as_xla_reads_them(tmp_path: Path) -> None:
    assert xla_flags("") == {}
    assert xla_flags(" --b  --a=1 --a=2 --xla_dump_to=/x") == {"a": "2", "b": "true"}
    file = tmp_path / "flags"
    file.write_text("--a=2\n--b\n")
    assert xla_flags(str(file)) == {"a": "2", "b": "true"}
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text("tiles")
    other.write_text("tiles")
    assert xla_flags(f"--a={one}") == xla_flags(f"--a={other}") != xla_flags("--a=tiles")
    other.write_text("more tiles")
    assert xla_flags(f"--a={one}") != xla_flags(f"--a={other}")


PALLAS = """HloModule jit_step, frontend_attributes={fingerprint_before_lhs="12ab"}

ENTRY %main (x: f32[8]) -> f32[8] {
  ROOT %y = f32[8] custom-call(%x), custom_call_target="mosaic_gpu_v2", backend_config={module = "/home/me/kernel.py"}
}
"""


def test_where_the_sources_of_pallas_kernels_lie_is_not_in_a_programs_digest() -> None:
    assert program_digest(PALLAS.replace("/home/me", "/root").replace("12ab", "34cd")) == program_digest(PALLAS)
    assert program_digest(PALLAS.replace("f32[8]", "f32[9]")) != program_digest(PALLAS)
    other = PALLAS.replace("mosaic_gpu_v2", "__cublas$gemm")
    assert program_digest(other.replace("/home/me", "2")) != program_digest(other), "not a Pallas kernel"


def test_a_programs_digest_is_of_what_it_computes() -> None:
    """Not of where its sources lie, nor of the order of the compiler's choices."""
    digest = program_digest(PROGRAM)
    elsewhere = PROGRAM.replace("/home/me", "/root").replace("{dot}", "dot").replace("=7", "=8")
    assert program_digest(elsewhere) == digest
    assert program_digest(PROGRAM.replace('{"b":{"d":1},"a":2}', '{"a":2,"b":{"d":1}}')) == digest
    for changed in (PROGRAM.replace("f32[]", "f16[]"), PROGRAM.replace('"d":1', '"d":2'), PROGRAM.replace("jit_", "")):
        assert program_digest(changed) != digest
    assert program_digest(PROGRAM.replace('{"b":{"d":1},"a":2}', "{no = json}")) != digest
