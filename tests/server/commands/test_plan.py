"""``jaxgen plan``: what serving would allocate, told before anything is loaded."""

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from jaxgen.assembly.resolve import resolve_on_device
from jaxgen.hardware.nvidia import Gpu
from jaxgen.llm import LLM
from jaxgen.models.model import abstract_params
from jaxgen.server.cli import main
from jaxgen.server.commands.plan import make_parser
from jaxgen.server.flags.serve_options import engine_options
from jaxgen.tools import plan as tools_plan
from jaxgen.tools.plan import plan_model
from jaxgen.weights.encodings.weight_formats import parameter_bytes
from jaxgen.weights.load import load_model_config
from tests.support.conversions import tiny_conversion
from tests.support.fake_gpu import H200
from tests.support.goldens import GOLDENS, NAMES, copy_golden
from tests.support.hub import serving_hub
from tests.support.sparse_checkpoints import LLAMA_70B, LLAMA_70B_PARAMETERS, make_llama
from tests.support.tiny_tokenizers import byte_level, save

GIB = 2**30


@pytest.fixture
def _steady_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is free does not change between a plan and what it is compared with."""
    memory = SimpleNamespace(available=6 * GIB, total=8 * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    status = main(["plan", "--json", *arguments])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert status == (0 if found["fits"] else 1)
    return found


@pytest.mark.usefixtures("_steady_memory")
@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--kernels", "xla"],
        ["--kernels", "xla", "--tensor-parallel-size", "2"],
        ["--dtype", "float32", "--max-num-seqs", "3"],
        ["--dtype", "float16", "--token-budget", "100"],
        ["--max-model-len", "100", "--block-size", "16"],
        ["--num-blocks", "7", "--block-size", "32", "--single-shape"],
        ["--kv-offloading-size", "0.5", "--kv-host-dtype", "int8"],
        ["--kv-cache-dtype", "int8_per_token_head"],
        ["--kv-offloading-size", "0.5", "--kv-residency", "host", "--kv-offload-policy", "transfer"],
        ["--kv-offloading-size", "0.5", "--kv-residency", "auto", "--background-tokens", "4"],
    ],
)
def test_it_is_what_serve_would_choose(flags: list[str], tmp_path: Path) -> None:
    args = make_parser().parse_args(flags)
    same: dict[str, Any] = {"dtype": args.dtype, "kernels": args.kernels, "cache_dir": tmp_path}
    resolved = resolve_on_device(options=engine_options(args), **same)
    found = plan_model(options=engine_options(args), **same)
    assert found.plan.config == resolved.configure(engine_options(args))
    assert found.plan.allocation.weights == resolved.params_bytes
    assert found.plan.memory == resolved.memory
    assert found.target.device == resolved.device
    assert found.request.model == resolved.model


@pytest.mark.full
def test_it_is_what_a_started_engine_has(capsys: pytest.CaptureFixture[str]) -> None:
    """It compiles the embedded model's step; the test above compares what such an engine is started with."""
    options: dict[str, Any] = {"max_num_seqs": 4, "token_budget": 16, "block_size": 16}
    flags = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    found = planned(capsys, *flags, "--single-shape", "--kernels", "xla")
    with LLM(**options, single_shape=True, kernels="xla") as llm:
        stats = llm.engine.stats()
        assert found["max_model_len"] == llm.engine.model.max_model_len
        assert found["num_blocks"] == stats.blocks_total
        assert found["longest_at_once"] == 4
        assert found["weights_bytes"] > 0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_are_the_bytes_of_the_parameters(name: str, dtype: Any) -> None:
    config = load_model_config(GOLDENS / name, dtype)
    assert parameter_bytes(config) == sum(p.size * p.dtype.itemsize for p in abstract_params(config).values())


def test_a_model_of_70_billion_parameters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(make_llama(tmp_path / "70b", LLAMA_70B))
    found = planned(capsys, model, "--device-memory", "80GB")
    assert not found["fits"]
    assert found["model"]["parameters"] == LLAMA_70B_PARAMETERS
    assert found["weights_bytes"] == 2 * LLAMA_70B_PARAMETERS
    assert (found["checkpoint"]["num_files"], found["device_bytes"]) == (30, 80 * 10**9)
    assert found["usable_bytes"] == int(0.9 * 80 * 10**9)
    (change,) = found["changes"]
    memory = change.removeprefix("a device with ").replace(" ", "")
    found = planned(capsys, model, "--device-memory", memory)
    assert found["fits"]
    assert found["max_model_len"] >= 2048
    assert found["left_bytes"] >= 0
    found = planned(capsys, model, "--device-memory", "640GiB", "--max-num-seqs", "512", "--token-budget", "2048")
    assert found["max_model_len"] == 8192
    assert found["longest_at_once"] == found["cache_tokens"] // 8192
    assert found["cache_bytes"] == found["cache_tokens"] * 2 * 80 * 8 * 128 * 2
    found = planned(capsys, model, "--device-memory", "80GB", "--tensor-parallel-size", "8")
    assert (found["fits"], found["num_devices"], found["max_model_len"]) == (True, 8, 8192)
    assert found["cache_bytes"] == found["cache_tokens"] * 2 * 80 * 1 * 128 * 2


def test_lines_have_units(capsys: pytest.CaptureFixture[str]) -> None:
    model = str(GOLDENS / "llama")
    assert main(["plan", "--model", model, "--device-memory", "1GiB", "--kv-offloading-size", ".2"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["model"] == "LlamaForCausalLM, 94,528 parameters, float32, context 128, no window"
    assert lines["checkpoint"] == "0.4 MiB in 2 files, float32"
    assert lines["device"] == "a device with 1.00 GiB: 0.90 GiB may be used (--gpu-memory-utilization 0.9)"
    assert lines["longest"].endswith("128 tokens of the model's 128")
    assert lines["rows"] == "256 sequences in a step at most"
    assert lines["row"].split(maxsplit=1) == ["states", "2.1 MiB of 256 sequences"]
    assert lines["slack"] == "0.25 GiB for fragments and small programs"
    assert lines["host"].endswith("0.20 GiB of KV blocks")
    assert lines["weights"] == "0.4 MiB in float32"


def test_kinds_of_cache_and_states_have_lines_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    names = ("full", "windows", "window 16", "layer states", "a sequence")

    def lines(*arguments: str) -> dict[str, str]:
        assert main(["plan", *arguments, "--device-memory", "1GiB", "--block-size", "8", "--max-num-seqs", "4"]) == 0
        pairs = (re.split(r" {2,}", line, maxsplit=1) for line in capsys.readouterr().out.splitlines())
        return {name: value for name, value in pairs if name in names}

    gemma, lfm = str(GOLDENS / "gemma3"), str(GOLDENS / "lfm2")
    few = ["--token-budget", "16", "--num-blocks", "40", "--dtype", "float32"]
    assert lines(gemma, *few) == {
        "full": "0.1 MiB, 40 blocks in 1 layer",
        "window 16": "0.0 MiB, 15 blocks in 1 layer",
        "a sequence": "0.0 MiB at 128 tokens",
    }
    assert lines(gemma, "--dtype", "float32") == {
        "windows": "their layers keep the whole context: there is room for all sequences",
        "a sequence": "0.0 MiB at 128 tokens",
    }
    assert lines(lfm) == {
        "layer states": "0.0 MiB of 4 sequences and 68 snapshots",
        "a sequence": "0.0 MiB at 128 tokens",
    }
    assert lines(str(GOLDENS / "llama")) == {}
    found = planned(capsys, gemma, *few, "--device-memory", "1GiB", "--block-size", "8", "--max-num-seqs", "4")
    assert [(kind["name"], kind["window"], kind["num_blocks"]) for kind in found["cache_kinds"]] == [
        ("full", None, 40),
        ("window 16", 16, 15),
    ]
    assert sum(kind["bytes"] for kind in found["cache_kinds"]) == found["cache_bytes"]


def test_what_does_not_fit_says_what_to_change(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = str(make_llama(tmp_path / "70b", LLAMA_70B | {"num_hidden_layers": 8}))
    assert main(["plan", model, "--device-memory", "19.4GiB", "--max-model-len", "8192"]) == 1
    lines = capsys.readouterr().out.splitlines()
    (problem,) = [line for line in lines if line.startswith("does not fit")]
    assert "cannot hold one sequence of --max-model-len 8192" in problem
    changes = [line for line in lines if line.startswith(("to change", "or "))]
    assert re.fullmatch(r"to change +--max-model-len \d+ or less", changes[0])
    assert len(changes) > 2
    assert all(line.endswith(", for 8,192 tokens of context") for line in changes[1:])


def test_a_gpu_of_this_machine(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(tools_plan, "find_gpu", lambda _: H200)
    found = planned(capsys, "--gpu-memory-utilization", "0.5")
    assert (found["device"], found["platform"]) == ("NVIDIA H200", "gpu")
    assert found["usable_bytes"] == 141 * GIB // 2
    assert found["token_budget"] == 256, "XLA rotates heads of 32, and computes padding"
    monkeypatch.setattr(tools_plan, "find_gpu", lambda _: Gpu(H200.device, ""))
    assert main(["plan"]) == 2
    assert "say it with --device-memory" in capsys.readouterr().err


def test_a_converted_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tiny_conversion(tmp_path)
    converted, source = (
        planned(capsys, str(path), "--device-memory", "1GiB") for path in (directory, tmp_path / "source")
    )
    assert converted.pop("checkpoint") != source.pop("checkpoint")
    assert converted == source


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (
            ["--device-memory", "24 apples"],
            "--device-memory: '24 apples' is not a valid size: write a number and its unit",
        ),
        (["--device-memory", "24"], "'24' is not a valid size"),
        (["--max-model-len", "4096"], "--max-model-len 4096 is over the 128 positions the model has"),
        (["--gpu-memory-utilization", "2"], "--gpu-memory-utilization must be in (0, 1], not 2.0"),
        (["--revision", "v1"], "--revision v1 needs a hub id"),
    ],
)
def test_bad_flags_are_one_line(flags: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main(["plan", "--model", str(GOLDENS / "llama"), *flags])
    except SystemExit as end:
        status = int(end.code or 0)
    captured = capsys.readouterr()
    assert (status, captured.out) == (2, "")
    (line,) = captured.err.splitlines()
    assert says in line


def test_bad_directories_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refusal(directory: Path) -> str:
        assert main(["plan", str(directory)]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        (line,) = captured.err.splitlines()
        return line

    assert refusal(tmp_path).endswith(f"{tmp_path} is not a model directory: it has no config.json")
    cut = copy_golden("opt_pre", tmp_path / "cut") / "model.safetensors"
    cut.write_bytes(cut.read_bytes()[:-1])
    assert f"{cut} is not a complete safetensors file" in refusal(cut.parent)
    sharded = make_llama(tmp_path / "sharded", LLAMA_70B)
    shard = sharded / "model-00003-of-00030.safetensors"
    shard.unlink()
    assert f"{shard} is missing, but model.safetensors.index.json names it" in refusal(sharded)


def test_a_model_of_8b_in_4_bits_on_8_gib(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A step reads codes of 4 bits as they are, and makes numbers of a matrix of FP8 where a GPU has no FP8."""
    config = LLAMA_70B | {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
    config |= {"num_attention_heads": 32, "max_position_embeddings": 131072}
    directory = str(make_llama(tmp_path, config, num_files=4))
    found, floats = (
        planned(capsys, directory, "--device-memory", "8GiB", "--max-num-seqs", "64", "--quantization", name)
        for name in ("int4", "fp8")
    )
    assert found["fits"]
    assert found["max_model_len"] == 16000
    layers = 32 * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336)
    head, norms = 128256 * 4096, 2 * 65 * 4096
    scales = 2 * 128256 * 2  # of int8, by output
    assert found["weights_bytes"] == layers * 9 // 16 + 2 * head + scales + norms
    more = floats["temporaries_bytes_estimated"] - found["temporaries_bytes_estimated"]
    assert more == 2 * 2 * 14336 * 4096
    assert not floats["fits"]


PROGRAM = """
import sys
from jaxgen.server.cli import main
from jaxgen.weights.encodings.weight_formats import parameter_bytes
status = main(sys.argv[1:])
loaded = sorted({"jax", "jaxlib.xla_client", "flax", "orbax", "transformers", "torch"} & set(sys.modules))
sys.exit(f"imported: {loaded}" if loaded else status)
"""


def run(*arguments: str, **environment: Any) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, **environment)


def test_a_tokenizer_that_cannot_be_loaded_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, words = str(GOLDENS / "llama"), save(byte_level(), tmp_path / "words")
    said = planned(capsys, model)["tokenizer_problem"]
    assert said.startswith(f"{model} has no tokenizer: add its tokenizer.json, or name ")
    assert main(["plan", model]) == 0
    assert f"tokenizer         none, so serve would not start: {said}" in capsys.readouterr().out.splitlines()
    assert planned(capsys, model, "--tokenizer", str(words))["tokenizer_problem"] is None


def test_neither_jax_nor_a_device_is_opened(tmp_path: Path) -> None:
    model = copy_golden("llama", tmp_path / "model")
    byte_level().save(str(model / "tokenizer.json"))
    for arguments in (["plan"], ["models", str(model)]):
        done = run(*arguments)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_hub_id_and_what_is_said_offline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = make_llama(
        tmp_path / "source", LLAMA_70B | {"num_hidden_layers": 2, "vocab_size": 1024, "hidden_size": 512}
    )
    byte_level().save(str(source / "tokenizer.json"))
    with serving_hub({path.name: path.read_bytes() for path in source.iterdir()}) as hub:
        arguments = ["plan", "org/model", "--device-memory", "24GiB", "--json"]
        done = run(*arguments, env=hub.environment(tmp_path / "hub"))
        assert done.stderr == ""
        found = json.loads(done.stdout)
        here = planned(capsys, str(source), *arguments[2:4])
        # the outline's headers are written anew, and may be shorter
        assert found.pop("checkpoint")["numbers"] == here.pop("checkpoint")["numbers"]
        assert found == here
        environment = hub.environment(tmp_path / "hub")
    done = run(*arguments, env=environment)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("jaxgen plan: --model org/model: there is no such directory, and it cannot be fetched")
    assert "refused" in line
