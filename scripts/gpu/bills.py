"""Compile steps for a GPU that is not there, and keep what their kernels cost.

    JAX_PLATFORMS=cpu .venv-aot-0.11.2/bin/python -m scripts.gpu.bills [--only NAME] [--tokens N]

Of each step two programs are compiled, of one layer and of two: any further layer costs what the second one does. The
result is docs/results/gpu-bill.json, of which ``python -m scripts.gpu.results`` makes the page gpu_bill.md next to it.
scripts/ci/check_aot.sh makes the environment.
"""

import argparse
import json
import re
import sys
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.operations import ATTENTION
from jaxgen.core.sampling_params import Sampling
from jaxgen.hardware.device_info import DeviceInfo
from jaxgen.kernels.choice import made_for
from jaxgen.runner.separate_step import LAYERS, separate_programs
from scripts.gpu.page.estimate import BILLS
from scripts.gpu.roofline.bill import Kernel, bill_of
from scripts.gpu.roofline.pallas import Load
from scripts.gpu.rows.sizes import FULL
from scripts.gpu.rows.step_times import step_config
from scripts.gpu.rows.work import StepLoad, variants
from scripts.loads.large import GPT_OSS_20B, LLAMA3_8B, QWEN3_30B_A3B
from tests.aot.target import H200, compile_program

RESULT = Path(__file__).resolve().parents[2] / "docs" / "results" / BILLS
BUDGETS = 64, 256, 1024
"""Tokens of a step."""
FEW = 1
"""Layers of the smaller program; the other has one more."""
DEVICE = DeviceInfo("gpu", "NVIDIA H200", 132, compute_capability=(9, 0))
"""An H100 has as many multiprocessors, and is compiled for alike."""


@dataclass(frozen=True)
class Served:
    """A model in a format, with all its layers."""

    name: str
    model: DecoderConfig


def served() -> tuple[Served, ...]:
    """Return what is billed."""
    of_formats = variants(LLAMA3_8B)
    dense = (Served(f"llama3_8b_{name}", of_formats[name]) for name in ("bf16", "int8", "fp8", "fp8_dynamic", "int4"))
    return (*dense, Served("qwen3_30b_a3b_bf16", QWEN3_30B_A3B), Served("gpt_oss_20b_mxfp4", GPT_OSS_20B))


def load_of(load: StepLoad, budget: int) -> Load:
    """Return the rows of ``full_plan``: decodes, and a prompt that fills the budget."""
    prompt = budget - load.rows
    rows = ((1, load.context),) * load.rows + (((prompt, prompt),) if prompt else ())
    return Load(rows, load.model.num_heads)


def billed(one: Served, budget: int) -> dict[str, Any]:
    """Compile the step and return its kernels with FEW layers, and what one more layer adds."""
    fewer, more = (_kernels(one.model.of_layers(count), budget, LAYERS) for count in (FEW, FEW + 1))
    greedy = _kernels(one.model.of_layers(FEW), budget, Sampling.GREEDY.name)
    return {
        "name": one.name,
        "tokens": budget,
        "layers": one.model.num_layers,
        "few": _grouped([*fewer, *greedy]),
        "layer": _grouped(_added(fewer, more)),
    }


def _added(fewer: list[Kernel], more: list[Kernel]) -> list[Kernel]:
    """Return the kernels that a program has more than another; missing kernels have negative launches."""
    return [*more, *(replace(one, launches=-one.launches) for one in fewer)]


def _kernels(model: DecoderConfig, budget: int, program: str) -> list[Kernel]:
    load = StepLoad("", model, (budget,), FULL.steps.rows, FULL.steps.context)
    config = step_config(load, budget, min(budget, 256))
    kernels = made_for(DEVICE, model, config.cache.block_size)
    if ATTENTION not in kernels.own:
        raise ValueError(kernels.reason)
    compiled = compile_program(H200, separate_programs(model, config, kernels, budget)[program], kernels)
    return bill_of(compiled.hlo, load_of(load, budget))


def _grouped(kernels: list[Kernel]) -> list[list[Any]]:
    """Return the kernels that are alike once, as the arguments of a Kernel, the costliest launches first."""
    launches_of: dict[tuple[Any, ...], int] = {}
    for one in kernels:
        alike = (one.name.split(".")[0], one.kind, one.bytes, one.flops, one.dtype)
        launches_of[alike] = launches_of.get(alike, 0) + one.launches
    ordered = sorted(launches_of.items(), key=lambda item: -item[0][2])
    return [[*alike, launches] for alike, launches in ordered if launches]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULT, metavar="FILE", help="default: %(default)s")
    parser.add_argument("--only", metavar="NAME", choices=[one.name for one in served()], help="compile this one alone")
    parser.add_argument("--tokens", type=int, choices=BUDGETS, help="compile this budget alone")
    chosen = parser.parse_args(arguments)
    known = json.loads(chosen.out.read_text())["bills"] if chosen.out.exists() else []
    bills = {(one["name"], one["tokens"]): one for one in known}
    for one in served():
        for budget in BUDGETS:
            if chosen.only in (None, one.name) and chosen.tokens in (None, budget):
                bills[one.name, budget] = billed(one, budget)
                chosen.out.write_text(_text(list(bills.values())))
                print(f"{one.name}, {budget} tokens", flush=True)
    return 0


def _text(bills: list[dict[str, Any]]) -> str:
    """Return JSON with a line for each kernel."""
    text = json.dumps({"jax": version("jax"), "bills": bills}, indent=1)
    return re.sub(r"\[\s+(\"[^]]*?)\s+\]", lambda match: f"[{re.sub(r'\s+', ' ', match[1])}]", text) + "\n"


if __name__ == "__main__":
    sys.exit(main())
