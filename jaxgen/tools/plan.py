"""Plan a model for a device from its configuration and its weights' headers. Imports no jax and opens no device."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from jaxgen.assembly.divide import check_division, divide
from jaxgen.assembly.find_model import find_model
from jaxgen.assembly.model_sizes import dequantised_bytes, token_budget, weight_bytes
from jaxgen.core.config import EngineOptions, HubOptions, KernelChoice, LoadFormat
from jaxgen.core.errors import ConfigError
from jaxgen.core.kv_dtype import parse_kv_dtype
from jaxgen.core.model_config import DType
from jaxgen.core.quantization import Quantization
from jaxgen.files.cache_dirs import open_cache_dirs
from jaxgen.hardware.container import host_memory
from jaxgen.hardware.device_info import DeviceInfo, this_cpu
from jaxgen.hardware.nvidia import find_gpu
from jaxgen.sizing.device_memory import GIB
from jaxgen.sizing.memory import check_options
from jaxgen.sizing.plan import Plan, PlanRequest, make_plan
from jaxgen.sizing.plan_changes import find_changes, wanted_context
from jaxgen.sizing.token_budget import TokenBudget
from jaxgen.text.tokenizer_cache import tokenizer_problem
from jaxgen.weights.files.model_files import NOTHING_STORED, StoredWeights
from jaxgen.weights.outline.gguf import gguf_headers, gguf_outlines
from jaxgen.weights.outline.huggingface import outlines
from jaxgen.weights.packaged.files import packaged_file
from jaxgen.weights.summary import ModelSummary, check_weights, summary_of


@dataclass(frozen=True, slots=True)
class Target:
    """A device that is planned for; sizes as in PlanRequest."""

    device: DeviceInfo
    total_bytes: int
    host_bytes: int | None
    container_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan with what it was made from.

    ``changes``: of which each alone gives a context of ``wanted_context`` tokens, where the plan does not.
    ``tokenizer_problem``: why there could be no server all the same; empty: its tokenizer can be loaded.
    """

    model: ModelSummary
    stored: StoredWeights
    target: Target
    request: PlanRequest
    budget: TokenBudget
    plan: Plan
    wanted_context: int
    changes: list[str]
    tokenizer_problem: str


def plan_model(
    model: str | None = None,
    *,
    dtype: DType | Literal["auto"] = "auto",
    kernels: KernelChoice = "auto",
    quantization: Quantization = "none",
    load_format: LoadFormat = "auto",
    options: EngineOptions | None = None,
    hub: HubOptions | None = None,
    cache_dir: Path | str | None = None,
    device_memory: int | None = None,
    tokenizer: str | None = None,
) -> Planned:
    """Return what ``load_engine`` would allocate for the same arguments, on this device.

    ``device_memory``: bytes of an accelerator to plan for in place of this device. Of a model that is divided all
    sizes are of one device. ``tokenizer``: as for
    ``load_engine``; why it cannot be loaded is said, and no error. Raises ConfigError if the model
    could not be loaded, or the options are invalid.
    """
    options = options or EngineOptions()
    check_options(options)
    check_division(options)
    caches, target = open_cache_dirs(cache_dir), find_target(device_memory, options.tensor_parallel_size)
    with outlines() as fetch, gguf_headers() as fetch_gguf, gguf_outlines(quantization) as of_gguf:
        kv_dtype = parse_kv_dtype(options.kv_cache_dtype)
        directory, config = find_model(
            *(packaged_file(model, hub, caches), dtype, kernels, target.device, hub),
            quantization=quantization,
            load_format=load_format,
            kv_dtype=kv_dtype,
            fetch=fetch,
            fetch_gguf=fetch_gguf,
            of_gguf=of_gguf,
        )
        stored = check_weights(directory, config) if load_format == "auto" else NOTHING_STORED
        facts = summary_of(directory, config)
        words = _tokenizer_problem(directory, tokenizer).replace(str(directory), model or "")
    if (division := divide(config, options)) is not None:
        config = division.part
    budget = token_budget(config, target.device, kernels, caches)
    if options.token_budget is not None:
        budget = TokenBudget(options.token_budget, "--token-budget")
    request = PlanRequest(
        options,
        config,
        weight_bytes(config, target.device, kernels),
        target.device.platform,
        target.total_bytes,
        target.host_bytes,
        budget.tokens,
        dequantised_bytes(config, target.device, kernels),
        target.container_bytes,
        budget.most_rows,
    )
    plan = make_plan(request)
    budget = replace(budget, tokens=plan.scheduler.token_budget)
    wanted, changes = wanted_context(request, plan), find_changes(request, plan)
    return Planned(facts, stored, target, request, budget, plan, wanted, changes, words)


def _tokenizer_problem(directory: Path, tokenizer: str | None) -> str:
    """Return why the tokenizer cannot be loaded; that of a hub id is not looked at."""
    named = directory if tokenizer is None else Path(tokenizer).expanduser()
    return tokenizer_problem(named) if named.is_dir() else ""


def find_target(device_memory: int | None = None, num_devices: int = 1) -> Target:
    """Return the device that an engine would take, or an accelerator of which only its memory in bytes is known.

    ``num_devices``: between which a CPU's memory is divided.
    Raises ConfigError for a GPU that does not say how much memory it has.
    """
    host = host_memory()
    if device_memory is not None:
        return Target(DeviceInfo("gpu", f"a device with {device_memory / GIB:,.2f} GiB", 1), device_memory, None)
    gpu = find_gpu(os.environ.get("JAX_PLATFORMS"))
    if gpu is None:
        return Target(this_cpu(), host.available // num_devices, host.total, host.limit)
    if gpu.memory_bytes is None:
        raise ConfigError(f"{gpu.device.kind} does not say how much memory it has: say it with --device-memory")
    return Target(gpu.device, gpu.memory_bytes, host.total, host.limit)
