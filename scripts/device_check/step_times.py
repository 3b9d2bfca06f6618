"""Step time against token budget: full steps of a random-weight model, their bytes and FLOPs, and the floor of both.

A step is one plan made by hand: ``rows`` sequences decode at ``context`` tokens, whose K and V are whatever the cache
holds, and a prompt fills the rest of the budget. So no time goes into computing contexts first.
"""

import time
from collections.abc import Callable
from functools import partial
from statistics import median

import jax
import jax.numpy as jnp
import numpy as np

from jaxgen.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from jaxgen.device import Device
from jaxgen.kernels import Kernels
from jaxgen.kv_cache import KVCache, cache_shape
from jaxgen.memory_plan import block_bytes
from jaxgen.models import Params
from jaxgen.programs import compile_step
from jaxgen.request import Request, SamplingParams
from jaxgen.scheduler import StepPlan
from jaxgen.sequence import Chunk, Sequence
from scripts.device_check.kernels import BLOCK_SIZE, kernels_for
from scripts.device_check.report import Measurement, Part
from scripts.device_check.sizes import Sizes

MAX_REPEATS = 30


def run(part: Part, sizes: Sizes, params_of: Callable[[ModelConfig], Params]) -> None:
    """A row for making the parameters, then one for each budget."""
    part.measure(f"init_{sizes.step_name}", partial(_init, sizes.step_model, params_of))
    for budget in sizes.budgets:
        part.measure(f"step_{sizes.step_name}_{budget}", partial(_step, sizes, params_of, budget))


def _init(model: ModelConfig, params_of: Callable[[ModelConfig], Params]) -> Measurement:
    started = time.perf_counter()
    params = params_of(model)
    seconds = time.perf_counter() - started
    return Measurement(detail={"seconds_with_compilation": seconds, "bytes": sum(p.nbytes for p in params.values())})


def _step(sizes: Sizes, params_of: Callable[[ModelConfig], Params], budget: int) -> Measurement:
    model = sizes.step_model
    config = step_config(sizes, budget)
    plan = full_plan(sizes, config)
    params = params_of(model)
    started = time.perf_counter()
    kernels = kernels_for(sizes, model)
    compiled = compile_step(model, config, kernels)
    detail = {
        "kernels": kernels.name,
        "decode_rows": sizes.rows,
        "context": sizes.context,
        "prompt_tokens": budget - sizes.rows,
        "compile_seconds": round(time.perf_counter() - started, 2),
        "temporary_bytes": compiled.temporary_bytes,
        "aliased_bytes": compiled.aliased_bytes,
    }
    device = Device(model, config, params, compiled)
    device.cache = _random_cache(model, config, kernels)
    seconds: list[float] = []
    began = time.perf_counter()
    while len(seconds) < 4 or (len(seconds) < MAX_REPEATS and time.perf_counter() - began < sizes.row_seconds):
        started = time.perf_counter()
        output = device.run(plan)
        device.wait()
        seconds.append(time.perf_counter() - started)
    seconds = seconds[1:]
    tokens = np.asarray(output.tokens)[: len(plan.chunks)]
    if tokens.min() < 0 or tokens.max() >= model.vocab_size:
        raise RuntimeError(f"the step sampled {tokens.tolist()}, of a vocabulary of {model.vocab_size}")
    detail |= {"best_seconds": min(seconds), "steps": len(seconds)}
    moved, flops = step_cost(model, config, plan, params)
    return Measurement(seconds=median(seconds), bytes=moved, flops=flops, detail=detail)


def step_config(sizes: Sizes, budget: int) -> EngineConfig:
    """Room for exactly the plan of ``full_plan``."""
    prompt = max(budget - sizes.rows, 1)
    blocks = sizes.rows * -(-sizes.context // BLOCK_SIZE) + -(-prompt // BLOCK_SIZE)
    longest = max(sizes.context, prompt) + 1
    blocks = max(blocks, -(-longest // BLOCK_SIZE))
    return EngineConfig(CacheConfig(BLOCK_SIZE, blocks), SchedulerConfig(budget, sizes.rows + 1, longest), 0, 4)


def full_plan(sizes: Sizes, config: EngineConfig) -> StepPlan:
    """``rows`` decodes at ``context`` tokens and a prompt that fills the budget; greedy, blocks in a shuffled order."""
    stride = next(n for n in (997, 991, 983) if config.cache.num_blocks % n)
    ids = (i * stride % config.cache.num_blocks for i in range(config.cache.num_blocks))
    chunks, admitted = [], []
    for row in range(sizes.rows + 1):
        length = 1 if row < sizes.rows else config.scheduler.token_budget - sizes.rows
        if length == 0:
            continue
        end = sizes.context if row < sizes.rows else length
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


def step_cost(model: ModelConfig, config: EngineConfig, plan: StepPlan, params: Params) -> tuple[int, int]:
    """Bytes that the plan must read and write, and FLOPs it must do, each counted once.

    Bytes: every weight (of untied embeddings only the rows looked up), K and V of every context, K and V written.
    FLOPs: 2 per multiply-add of the layers' matrices for each token, of the head for each sampler row, and 4 * head_dim
    for each head, query token and token it attends to.
    """
    table = params["embed.weight"]
    looked_up = plan.num_tokens * model.hidden_size * table.dtype.itemsize
    tied = "lm_head.weight" not in params
    weights = sum(p.nbytes for p in params.values()) - (0 if tied else table.nbytes)
    slot = block_bytes(model, config.cache.block_size) // config.cache.block_size
    contexts = sum(chunk.end for chunk in plan.chunks)
    matrices = sum(p.size for name, p in params.items() if name.startswith("layers.") and p.ndim == 3)
    pairs = sum((chunk.start + 1 + chunk.end) * chunk.length // 2 for chunk in plan.chunks)
    flops = 2 * plan.num_tokens * matrices
    flops += 2 * config.scheduler.max_num_seqs * model.vocab_size * model.hidden_size
    flops += 4 * model.num_layers * model.num_heads * model.head_dim * pairs
    return weights + looked_up + slot * (contexts + plan.num_tokens), flops


def _random_cache(model: ModelConfig, config: EngineConfig, kernels: Kernels) -> KVCache:
    """Random K and V: work on zeros takes less power, so less time, than work on data."""
    shape = cache_shape(model, config.cache)
    make = jax.jit(lambda key: jax.random.normal(key, shape, jnp.dtype(model.dtype)))
    return KVCache(make(jax.random.key(1)), kernels)
