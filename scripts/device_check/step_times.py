"""Step time against token budget: full steps of a random-weight model, their bytes and FLOPs, and the floor of both.

A step is one plan made by hand: ``rows`` sequences decode at ``context`` tokens, whose K and V are whatever the cache
holds, and a prompt fills the rest of the budget. So no time goes into computing contexts first.
"""

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgen.block_sizes import block_bytes
from jaxgen.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from jaxgen.device import Device
from jaxgen.kv_cache import KVCache, cache_shape
from jaxgen.models import PackedParams, abstract_params
from jaxgen.programs import CompiledStep
from jaxgen.request import Request
from jaxgen.sampling_params import SamplingParams
from jaxgen.sequence import Chunk, Sequence
from jaxgen.step_plan import StepPlan
from jaxgen.token_budget import Ceilings, knee, roofline_budget
from scripts.device_check.kernels import BLOCK_SIZE, kernels_for
from scripts.device_check.part import Part, Shared
from scripts.device_check.report import COPY_RATE, MATRIX_RATE, Measurement
from scripts.device_check.sizes import Sizes, StepLoad

MAX_REPEATS = 30
OVERLAPPED = 8
RANDOM_BLOCKS = 8
"""Of the cache, which then repeat: the random bits of a whole one would be as large again."""


def run(part: Part, sizes: Sizes, shared: Shared) -> None:
    """Those of ``sizes.steps``."""
    run_load(part, sizes, sizes.steps, shared)


def run_opt(part: Part, sizes: Sizes, shared: Shared) -> None:
    """Those of ``sizes.opt_steps``."""
    run_load(part, sizes, sizes.opt_steps, shared)


def run_load(part: Part, sizes: Sizes, load: StepLoad, shared: Shared) -> None:
    """A row for making the parameters, one for each budget, and the one of them at the knee."""
    part.measure(f"init_{load.name}", partial(_init, sizes, load.model, shared))
    found = {
        budget: part.measure(f"step_{load.name}_{budget}", partial(_step, sizes, load, shared, budget))
        for budget in load.budgets
    }
    measured = {budget: one for budget, one in found.items() if one is not None}
    if len(measured) > 1:
        part.measure(f"step_{load.name}_knee", lambda: at_knee(measured, part.report.ceilings), free=True)


def at_knee(measured: Mapping[int, Measurement], ceilings: Mapping[str, float]) -> Measurement:
    """The measurement, of those by token budget, at the budget that ``jaxgen tune`` would store.

    ``detail.roofline_token_budget`` is what the rule for devices that were not measured gives with these ceilings.
    """
    seconds = {budget: one.seconds for budget, one in sorted(measured.items()) if one.seconds is not None}
    budget = knee(seconds)
    detail: dict[str, Any] = {"token_budget": budget, "tokens_per_second": {n: n / t for n, t in seconds.items()}}
    if {COPY_RATE, MATRIX_RATE} <= ceilings.keys():
        sheet = Ceilings(ceilings[MATRIX_RATE], ceilings[COPY_RATE])
        detail["roofline_token_budget"] = roofline_budget(sheet)
    return replace(measured[budget], detail=measured[budget].detail | detail)


def _init(sizes: Sizes, model: ModelConfig, shared: Shared) -> Measurement:
    kernels = kernels_for(sizes, model)
    started = time.perf_counter()
    params = jax.tree.leaves(shared.params_of(model, kernels))
    seconds = time.perf_counter() - started
    return Measurement(detail={"seconds_with_compilation": seconds, "bytes": sum(p.nbytes for p in params)})


def _step(sizes: Sizes, load: StepLoad, shared: Shared, budget: int) -> Measurement:
    config = step_config(load, budget)
    plan = full_plan(load, config)
    kernels = kernels_for(sizes, load.model)
    params = shared.params_of(load.model, kernels)
    started = time.perf_counter()
    compiled = shared.compiled_step(load.model, config, kernels)
    detail = {
        "kernels": kernels.name,
        "decode_rows": load.rows,
        "context": load.context,
        "prompt_tokens": budget - load.rows,
        "compile_seconds": round(time.perf_counter() - started, 2),
        "temporary_bytes": compiled.temporary_bytes,
        "aliased_bytes": compiled.aliased_bytes,
    }
    device = filled_device(load.model, config, params, compiled)
    seconds, overlapped, tokens = _timed(device, plan, sizes.row_seconds)
    if tokens.min() < 0 or tokens.max() >= load.model.vocab_size:
        raise RuntimeError(f"the step sampled {tokens.tolist()}, of a vocabulary of {load.model.vocab_size}")
    detail |= {"best_seconds": min(seconds), "overlapped_seconds": overlapped, "steps": len(seconds)}
    moved, flops = step_cost(load.model, config, plan)
    return Measurement(seconds=median(seconds), bytes=moved, flops=flops, detail=detail)


def _timed(device: Device, plan: StepPlan, row_seconds: float) -> tuple[list[float], float, np.ndarray]:
    """Seconds of each step but the first; seconds of one where each is dispatched before the one before it ends; the
    tokens that the last one sampled."""
    device.load(plan)
    device.wait()
    steady = replace(plan, admitted=())
    seconds: list[float] = []
    began = time.perf_counter()
    while len(seconds) < 4 or (len(seconds) < MAX_REPEATS and time.perf_counter() - began < row_seconds):
        started = time.perf_counter()
        device.run(steady)
        device.wait()
        seconds.append(time.perf_counter() - started)
    started = time.perf_counter()
    for _ in range(OVERLAPPED):
        output = device.run(steady)
    device.wait()
    overlapped = (time.perf_counter() - started) / OVERLAPPED
    return seconds[1:], overlapped, np.asarray(output.tokens)[: len(plan.chunks)]


def filled_device(model: ModelConfig, config: EngineConfig, params: PackedParams, compiled: CompiledStep) -> Device:
    """A device whose cache holds random K and V: work on zeros takes less power, so less time, than work on data."""
    device = Device(model, config, params, compiled)
    num_blocks, *block = cache_shape(model, config.cache)
    distinct = min(RANDOM_BLOCKS, num_blocks)

    @jax.jit
    def fill() -> jax.Array:
        blocks = jax.random.normal(jax.random.key(1), (distinct, *block), jnp.dtype(model.dtype))
        return blocks[jnp.arange(num_blocks) % distinct]

    del device.cache  # first, since two may not fit
    device.cache = KVCache(fill(), compiled.kernels)
    return device


def step_config(load: StepLoad, budget: int) -> EngineConfig:
    """Room for exactly the plan of ``full_plan``."""
    prompt = max(budget - load.rows, 1)
    blocks = load.rows * -(-load.context // BLOCK_SIZE) + -(-prompt // BLOCK_SIZE)
    longest = max(load.context, prompt) + 1
    blocks = max(blocks, -(-longest // BLOCK_SIZE))
    return EngineConfig(CacheConfig(BLOCK_SIZE, blocks), SchedulerConfig(budget, load.rows + 1, longest), 0, 4)


def full_plan(load: StepLoad, config: EngineConfig) -> StepPlan:
    """``rows`` decodes at ``context`` tokens and a prompt that fills the budget; greedy, blocks in a shuffled order."""
    stride = next(n for n in (997, 991, 983) if config.cache.num_blocks % n)
    ids = (i * stride % config.cache.num_blocks for i in range(config.cache.num_blocks))
    chunks, admitted = [], []
    for row in range(load.rows + 1):
        length = 1 if row < load.rows else config.scheduler.token_budget - load.rows
        if length == 0:
            continue
        end = load.context if row < load.rows else length
        tokens = tuple((row * 31 + i) % 500 for i in range(end))
        sequence = Sequence(
            Request(f"row-{row}", tokens, SamplingParams(max_tokens=1, temperature=0.0)),
            eos_token_ids=frozenset(),
            arrival=row,
            seed=0,
        )
        sequence.num_computed, sequence.row = end - length, row
        sequence.block_table += [next(ids) for _ in range(-(-end // BLOCK_SIZE))]
        admitted.append(sequence)
        chunks.append(Chunk(sequence, end - length, length))
    return StepPlan(tuple(chunks), tuple(admitted))


def step_cost(model: ModelConfig, config: EngineConfig, plan: StepPlan) -> tuple[int, int]:
    """Bytes that the plan must read and write, and FLOPs it must do, each counted once.

    Bytes: every weight (of positions, and of embeddings that are no head too, only the rows looked up), K and V of
    every context, K and V written.
    FLOPs: 2 per multiply-add of the layers' matrices for each token, of the head for each sampler row, and 4 * head_dim
    for each head, query token and token it attends to.
    """
    params = abstract_params(model)
    tables = [p for name, p in params.items() if name in ("embed.weight", "positions.weight")]
    looked_up = sum(plan.num_tokens * table.shape[1] * table.dtype.itemsize for table in tables)
    only_looked_up = {"positions.weight"} | ({"embed.weight"} if "lm_head.weight" in params else set())
    weights = sum(p.size * p.dtype.itemsize for name, p in params.items() if name not in only_looked_up)
    slot = block_bytes(model, config.cache.block_size) // config.cache.block_size
    contexts = sum(chunk.end for chunk in plan.chunks)
    matrices = sum(p.size for name, p in params.items() if name.startswith("layers.") and p.ndim == 3)
    pairs = sum((chunk.start + 1 + chunk.end) * chunk.length // 2 for chunk in plan.chunks)
    flops = 2 * plan.num_tokens * matrices
    flops += 2 * config.scheduler.max_num_seqs * model.vocab_size * model.hidden_size
    flops += 4 * model.num_layers * model.num_heads * model.head_dim * pairs
    return weights + looked_up + slot * (contexts + plan.num_tokens), flops
