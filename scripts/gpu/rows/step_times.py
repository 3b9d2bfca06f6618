"""Measure step time by token budget: full steps of a random-weight model, with their bytes and FLOPs.

A step is one plan made by hand: ``rows`` sequences decode at ``context`` tokens, whose K and V are random values in the
cache, and a prompt fills the rest of the budget. So no time is spent on computing contexts first.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from statistics import median
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxgen.cache.cache_format import CacheFormat
from jaxgen.core.config import CacheConfig, EngineConfig, SchedulerConfig
from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.model_config import ModelConfig
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.core.sequence import Chunk
from jaxgen.core.step_plan import StepPlan
from jaxgen.engine.start.runners import program_texts
from jaxgen.models.kv_cache import KVCache, cache_dtype, cache_shape
from jaxgen.models.model import PackedParams, abstract_params
from jaxgen.runner.model_runner import ModelRunner
from jaxgen.runner.programs import CompiledStep
from jaxgen.runner.timing import dummy_sequence, time_step
from jaxgen.sizing.token_budget import DevicePeaks, knee, roofline_budget
from jaxgen.weights.encodings.weight_formats import is_product, parameter_bytes
from pallas_kernels.kv_codes import apart, encode
from scripts.gpu.result.report import COPY_RATE, MATRIX_RATE, Measurement, Run, State
from scripts.gpu.roofline.bill import Rates, bill_of, figures
from scripts.gpu.roofline.pallas import Load
from scripts.gpu.rows.bench import Bench, Options
from scripts.gpu.rows.comparison import compared
from scripts.gpu.rows.kernels import BLOCK_SIZE, kernels_for
from scripts.gpu.rows.needs import served_rows
from scripts.gpu.rows.sizes import Sizes
from scripts.gpu.rows.work import StepLoad

MAX_REPEATS = 30
OVERLAPPED = 8
RANDOM_BLOCKS = 8
"""Distinct blocks of the cache, which repeat: random bits for the whole cache would need as much memory again."""
GREEDY = SamplingParams(max_tokens=1, temperature=0.0)
SAMPLING = {"greedy": (GREEDY, GREEDY), "top_p": (replace(GREEDY, temperature=1.0, top_p=0.9),) * 2}
SAMPLING |= {"logprobs": (replace(GREEDY, logprobs=20), GREEDY)}
"""Sampling of the first row, and of all others."""


def at_knee(bench: Bench) -> Measurement:
    """Return the measurement of the step at the token budget that ``jaxgen tune`` would store.

    ``detail.roofline_token_budget``: the budget by the rule for devices without measurements, with these ceilings.
    """
    ran = {int(name.rpartition("_")[2]): row for name, row in bench.results.items() if row["state"] == State.RAN}
    if len(ran) < 2:
        raise RuntimeError(f"only {len(ran)} steps were measured")
    seconds = {budget: row["seconds"] for budget, row in sorted(ran.items())}
    budget = knee(seconds)
    detail: dict[str, Any] = {"token_budget": budget, "tokens_per_second": {n: n / t for n, t in seconds.items()}}
    if {COPY_RATE, MATRIX_RATE} <= bench.ceilings.keys():
        sheet = DevicePeaks(bench.ceilings[MATRIX_RATE], bench.ceilings[COPY_RATE])
        detail["roofline_token_budget"] = roofline_budget(sheet)
    figures = {name: ran[budget][name] for name in ("seconds", "bytes", "flops")}
    return Measurement(**figures, detail=ran[budget]["detail"] | detail)


def full(bench: Bench, load: StepLoad, budget: int, sampling: str = "greedy") -> Run:
    """Measure a step of a whole model, with a server's number of rows."""
    return _measured(bench, load, config_of(bench.sizes, load, budget), sampling)


def with_options(bench: Bench, load: StepLoad, budget: int, options: Options) -> Run:
    """Measure the step as XLA compiles it with more options."""
    return _measured(bench, load, config_of(bench.sizes, load, budget), "greedy", options)


def tried(bench: Bench, options: Options) -> Run:
    """Measure the served step with options that XLA may refuse on this machine."""
    return cast(Run, compared(with_options)(bench, bench.sizes.steps, bench.sizes.served_budget, options))


def decoding(bench: Bench, rows: int) -> Run:
    """Measure the served step of ``rows`` decodes alone, as a server with ``rows`` users has it."""
    load = replace(bench.sizes.steps, rows=rows)
    return _measured(bench, load, served_config(bench.sizes), "greedy", prompt=False)


def config_of(sizes: Sizes, load: StepLoad, budget: int) -> EngineConfig:
    """Return the step's configuration: ``served_config`` for the served step, which is then compiled only once."""
    if replace(load, budgets=sizes.steps.budgets) == sizes.steps and budget == sizes.served_budget:
        return served_config(sizes)
    return step_config(load, budget, served_rows(budget))


def _measured(
    bench: Bench,
    load: StepLoad,
    config: EngineConfig,
    sampling: str,
    options: Options = (),
    *,
    prompt: bool = True,
) -> Run:
    plan = full_plan(load, config, sampling, prompt=prompt)
    kernels = kernels_for(bench, model=load.model)
    params = bench.shared.params_of(load.model, kernels)
    started = time.perf_counter()
    compiled = bench.shared.compiled_step(load.model, config, kernels, options)
    detail = {
        "kernels": kernels.name,
        "rows": config.scheduler.max_num_seqs,
        "decode_rows": load.rows,
        "context": load.context,
        "prompt_tokens": plan.num_tokens - load.rows,
        "sampling": sampling,
        "compile_seconds": round(time.perf_counter() - started, 2),
        "compiler_options": dict(options),
        "temporary_bytes": compiled.temporary_bytes,
        "aliased_bytes": compiled.aliased_bytes,
    }
    if sampling == "greedy":
        detail["bill"] = _billed(compiled, plan, load.model.num_heads, bench.ceilings)
    device = filled_device(load.model, config, params, compiled)

    def run() -> Measurement:
        times = timed(device, plan, bench.sizes.row_seconds)
        if times.tokens.min() < 0 or times.tokens.max() >= load.model.vocab_size:
            raise RuntimeError(f"the step sampled {times.tokens.tolist()}, of a vocabulary of {load.model.vocab_size}")
        moved, flops = step_cost(load.model, config, plan)
        return Measurement(seconds=median(times.seconds), bytes=moved, flops=flops, detail=detail | times.detail())

    return run


def _billed(compiled: CompiledStep, plan: StepPlan, heads: int, ceilings: Mapping[str, float]) -> dict[str, Any] | None:
    """Return what the compiled programs of a greedy step should take, or why that is not known; None: no rates are."""
    if not {COPY_RATE, MATRIX_RATE} <= ceilings.keys():
        return None
    load = Load(tuple((chunk.length, chunk.end) for chunk in plan.chunks), heads)
    texts = list(program_texts(compiled))[:2]  # the layers, and the greedy choice where that is a program of its own
    try:
        kernels = [kernel for text in texts for kernel in bill_of(text, load)]
    except ValueError as error:
        return {"why": str(error)}
    return figures(kernels, Rates(ceilings[COPY_RATE], ceilings[MATRIX_RATE]))


@dataclass(frozen=True)
class Times:
    """Times of single steps, each waited for: ``seconds``, and seconds until ``run`` ``returned`` to the host.

    ``overlapped_*``: the same for steps that are dispatched before the step before them ends, as the engine does.
    ``tokens``: sampled by the last step.
    """

    seconds: list[float]
    returned: list[float]
    overlapped_seconds: float
    overlapped_returned: list[float]
    tokens: np.ndarray

    def detail(self) -> dict[str, Any]:
        return {
            "steps": len(self.seconds),
            "best_seconds": min(self.seconds),
            "returns_seconds": median(self.returned),
            "overlapped_seconds": self.overlapped_seconds,
            "overlapped_returns_seconds": median(self.overlapped_returned),
        }


def timed(device: ModelRunner, plan: StepPlan, row_seconds: float) -> Times:
    """Time steps of one plan; the first step is not counted.

    Overlapped steps are timed here, not by ``time_step``, which waits for each.
    """
    device.load(plan)
    device.wait()
    steady = replace(plan, admitted=())
    seconds: list[float] = []
    returned: list[float] = []
    began = time.perf_counter()
    while len(seconds) < 4 or (len(seconds) < MAX_REPEATS and time.perf_counter() - began < row_seconds):
        timed_step = time_step(device, steady)
        returned.append(timed_step.returned)
        seconds.append(timed_step.seconds)
    ahead = []
    began = time.perf_counter()
    for _ in range(OVERLAPPED):
        started = time.perf_counter()
        output = device.run(steady)
        ahead.append(time.perf_counter() - started)
    device.wait()
    overlapped = (time.perf_counter() - began) / OVERLAPPED
    tokens = np.asarray(output.tokens)[: len(plan.chunks)]
    return Times(seconds[1:], returned[1:], overlapped, ahead[1:], tokens)


def filled_device(
    model: ModelConfig, config: EngineConfig, params: PackedParams, compiled: CompiledStep
) -> ModelRunner:
    """Return a device whose cache has random K and V: work on zeros takes less power, and so less time."""
    device = ModelRunner(model, config, params, compiled)
    num_blocks, *block = cache_shape(model, config.cache)
    distinct = min(RANDOM_BLOCKS, num_blocks)

    @jax.jit
    def fill() -> jax.Array:
        shape = (distinct, *block[:-1], model.head_dim)
        blocks = encode(jax.random.normal(jax.random.key(1), shape, jnp.dtype(model.dtype)), cache_dtype(model))
        blocks = apart(blocks) if compiled.kernels.scales_apart else blocks
        return blocks[jnp.arange(num_blocks) % distinct]

    def refilled(cache: KVCache) -> KVCache:
        for array in jax.tree.leaves(cache):  # first, since two may not fit
            array.delete()
        return KVCache((fill(),), compiled.kernels)

    device.update_cache(refilled)
    return device


def step_config(load: StepLoad, budget: int, rows: int) -> EngineConfig:
    """Return a configuration with blocks for exactly the plan of ``full_plan``."""
    prompt = max(budget - load.rows, 1)
    blocks = load.rows * -(-load.context // BLOCK_SIZE) + -(-prompt // BLOCK_SIZE)
    longest = max(load.context, prompt) + 1
    blocks = max(blocks, -(-longest // BLOCK_SIZE))
    return EngineConfig(CacheConfig(BLOCK_SIZE, blocks), SchedulerConfig(budget, rows, longest), 0, 4)


def served_config(sizes: Sizes) -> EngineConfig:
    """Return a configuration with blocks for the plans of ``full_plan`` and ``decoding``, and the requests of
    ``host_times``."""
    load, budget = sizes.steps, sizes.served_budget
    longest = max(load.context, sizes.host_context + 16 * sizes.host_steps + 64)
    rows = max(load.rows, *sizes.served_decodes)
    blocks = rows * (-(-longest // BLOCK_SIZE) + 1) + 2 * -(-budget // BLOCK_SIZE) + 2
    scheduler = SchedulerConfig(budget, served_rows(budget), blocks * BLOCK_SIZE)
    return EngineConfig(CacheConfig(BLOCK_SIZE, blocks), scheduler, 0, 4)


def full_plan(load: StepLoad, config: EngineConfig, sampling: str = "greedy", *, prompt: bool = True) -> StepPlan:
    """Plan ``rows`` decodes at ``context`` tokens and a ``prompt`` that fills the budget; blocks are in shuffled
    order."""
    stride = next(n for n in (997, 991, 983) if config.cache.num_blocks % n)
    ids = (i * stride % config.cache.num_blocks for i in range(config.cache.num_blocks))
    chunks, admitted = [], []
    for row in range(load.rows + prompt):
        length = 1 if row < load.rows else config.scheduler.token_budget - load.rows
        if length == 0:
            continue
        end = load.context if row < load.rows else length
        tokens = tuple((row * 31 + i) % 500 for i in range(end))
        blocks = islice(ids, -(-end // BLOCK_SIZE))
        sequence = dummy_sequence(row, tokens, SAMPLING[sampling][min(row, 1)], blocks=blocks)
        sequence.num_computed = end - length
        admitted.append(sequence)
        chunks.append(Chunk(sequence, end - length, length))
    return StepPlan(tuple(chunks), tuple(admitted))


def step_cost(model: ModelConfig, config: EngineConfig, plan: StepPlan) -> tuple[int, int]:
    """Return the bytes that the plan must read and write, and its FLOPs, each counted once.

    Bytes: every weight in its format, K and V of every context, K and V written. Of position tables, and of embeddings
    that are not also the head, only the rows looked up count.
    FLOPs: 2 per multiply-add of the layers' matrices for each token, and of the head for each row that samples. Only a
    token's own experts count. Attention adds 4 * head_dim for each head, query token and token that it attends to.
    """
    params = abstract_params(model)
    tables = [p for name, p in params.items() if name in ("embed.weight", "positions.weight")]
    looked_up = sum(plan.num_tokens * table.shape[1] * table.dtype.itemsize for table in tables)
    only_looked_up = {"positions.weight"} | ({"embed.weight"} if "lm_head.weight" in params else set())
    formats = dict(model.weight_formats)
    weights = parameter_bytes(model)
    for name in only_looked_up & params.keys():
        table, form = params[name], formats.get(name)
        weights -= table.size * table.dtype.itemsize if form is None else form.num_bytes(table.shape)
    slot = CacheFormat.of(model, config.cache.block_size).kv_bytes
    contexts = sum(chunk.end for chunk in plan.chunks)
    pairs = sum((chunk.start + 1 + chunk.end) * chunk.length // 2 for chunk in plan.chunks)
    flops = 2 * plan.num_tokens * _matrix_numbers(model)
    flops += 2 * len(plan.chunks) * model.vocab_size * model.hidden_size
    flops += 4 * (model.num_layers - len(model.state_layers)) * model.num_heads * model.head_dim * pairs
    return weights + looked_up + slot * (contexts + plan.num_tokens), flops


def _matrix_numbers(model: ModelConfig) -> int:
    """Return the numbers in the layers' matrices that one token is multiplied with."""
    moe = model.moe if isinstance(model, DecoderConfig) else None
    result = 0
    for name, leaf in abstract_params(model).items():
        if name.startswith("layers.") and leaf.ndim == 3 and name.endswith(".weight"):
            result += leaf.size
        elif is_product(name) and leaf.ndim == 4 and moe is not None:
            result += leaf.size // moe.experts * moe.per_token
    return result
