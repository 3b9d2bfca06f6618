"""Processes of the same digest give the same bits: from any cache directory, model directory and number of threads."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jaxgen.weights.packaged.tiny import make_tiny_checkpoint
from tests.support.native import directory, native

START = """
import asyncio, json, os, sys
from contextlib import aclosing
model, caches, cores = sys.argv[1:]
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(cores)])
from jaxgen import LLM, SamplingParams
from jaxgen.core.request import Request
ways = [dict(temperature=0.0), dict(seed=7, top_p=0.9), dict(seed=-1, frequency_penalty=0.5)]

async def answer(i, way):
    params = SamplingParams(max_tokens=24, logprobs=5, prompt_logprobs=2, ignore_eos=True, **way)
    async with aclosing(llm.engine.generate(Request(f"r{i}", tuple(range(3, 60 + i)), params))) as events:
        return [(e.token, repr(e.logprobs), repr(e.prompt_logprobs)) async for e in events]

async def main():
    return await asyncio.gather(*(answer(i, way) for i, way in enumerate(ways)))

with LLM(model, cache_dir=caches, token_budget=32, max_num_seqs=8, max_model_len=256, num_blocks=48) as llm:
    print(json.dumps([llm.digest, dict(llm.digest_parts), asyncio.run(main())]))
"""


def start(model: Path, caches: Path, cores: int) -> tuple[str, dict[str, Any], Any]:
    """Return what a process says: its digest, its parts, and its answers."""
    command = [sys.executable, "-c", START, str(model), str(caches), str(cores)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    digest, parts, answers = json.loads(done.stdout.splitlines()[-1])
    return digest, parts, answers


@pytest.mark.full  # it compiles the native kernels, which the run has made elsewhere
@pytest.mark.shipped
def test_the_same_digest_is_the_same_bits(tmp_path: Path) -> None:
    model, caches = tmp_path / "model", tmp_path / "caches"
    model.mkdir()
    make_tiny_checkpoint(model)
    copy = shutil.copytree(model, tmp_path / "copied" / "elsewhere")
    native()
    shutil.copytree(directory(), caches / "kernels" / "v1")
    first = start(model, caches, 2)
    assert start(model, caches, 1) == first, "an earlier start's directory, and another number of threads"
    other = start(copy, tmp_path / "other", 2)  # whose library is compiled anew
    assert other[1] == first[1], "the parts, the native library among them"
    assert other == first
    weights = copy / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    changed = start(copy, caches, 2)
    assert changed[0] != first[0]
    assert {name for name in first[1] if first[1][name] != changed[1][name]} == {"weights"}
