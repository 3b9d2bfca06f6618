"""Measure step time against token budget, to choose the token budget of a model on this device."""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from statistics import median
from typing import Literal

import jax

from jaxgen.arrays import num_bytes
from jaxgen.assembly.parameters import load_model
from jaxgen.assembly.resolve import resolve_on_device
from jaxgen.cache.cache_format import blocks_bytes
from jaxgen.core.config import EngineConfig, EngineOptions, HubOptions, KernelChoice, LoadFormat
from jaxgen.core.errors import ConfigError
from jaxgen.core.model_config import DType, ModelConfig
from jaxgen.core.quantization import Quantization
from jaxgen.core.request import Request
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.engine.engine import Engine
from jaxgen.engine.start.build import build_engine
from jaxgen.kernels.choice import REFERENCE
from jaxgen.kernels.kernels import Kernels
from jaxgen.models.model import PackedParams
from jaxgen.runner.compilation_cache import persistent_compilation
from jaxgen.runner.programs import compile_step
from jaxgen.sizing.device_memory import DeviceMemory
from jaxgen.sizing.memory import resolve
from jaxgen.sizing.step_bounds import DEFAULT_BLOCK_SIZE, default_max_num_seqs
from jaxgen.sizing.token_budget import TUNE_CONTEXT, TUNE_ROUNDS, knee, least_budget, past_knee
from jaxgen.sizing.tuning_store import save_record

CPU_BUDGETS = (16, 32, 64, 128, 256)
BUDGETS = (*CPU_BUDGETS, 512, 1024, 2048)
_MAX_DECODES = 32
_PROMPT_ROWS = 4
"""Rows in addition to the decodes: for the prompt that ends in a step, the next one, and ones with an unread end."""
_BLOCK_SECONDS = 0.5
_BLOCK_STEPS = (4, 32)
_ESTIMATE_STEPS = 2


@dataclass(frozen=True, slots=True)
class BudgetTime:
    """Measurement of one budget. ``blocks``: seconds per step in each block of ``steps`` steps. ``seconds``: their
    median."""

    token_budget: int
    decodes: int
    seconds: float
    blocks: tuple[float, ...]
    steps: int
    compile_seconds: float


@dataclass(frozen=True, slots=True)
class Tuning:
    """Result of tuning. ``token_budget``: the knee of ``times``, among budgets from ``least_budget`` on. ``ended``: why
    no larger budget was tried. ``skips_padding``: whether the kernels do."""

    token_budget: int
    times: tuple[BudgetTime, ...]
    ended: str
    skips_padding: bool


class FullSteps:
    """Keeps an engine's steps full: ``decodes`` sequences that decode, and one prompt after another.

    The sequences decode after prompts of ``context`` tokens, for ``steps`` steps; each call of ``seconds`` uses one
    step more than it times. Prompts are random, so that no two have a common prefix.
    """

    def __init__(self, engine: Engine, *, decodes: int, context: int, steps: int):
        self._engine = engine
        self._random = random.Random(0)
        self._names = count()
        self._chunk = engine.config.scheduler.token_budget - decodes
        self._prompt_length = min(max(context, self._chunk), engine.config.scheduler.max_model_len - 1)
        writing = SamplingParams(
            max_tokens=steps + fill_steps(self._chunk + decodes, decodes, context), temperature=0.0, ignore_eos=True
        )
        waiting = {self._add(context, writing) for _ in range(decodes)}
        while waiting:
            waiting -= {event.request_id for event in engine.step()}

    def seconds(self, steps: int) -> float:
        """Return the mean time of ``steps`` consecutive steps, seconds.

        The engine times them as it serves, each step dispatched while the one before it runs, because a token budget is
        chosen for that; ``time_step`` waits for each step.
        """
        for _ in range(-(-(steps + 1) * self._chunk // self._prompt_length) + 1):
            self._add(self._prompt_length, SamplingParams(max_tokens=1, temperature=0.0))
        self._engine.step()  # ends the step in flight, which was planned without these prompts
        counted = self._engine.stats().steps
        started = time.perf_counter()
        for _ in range(steps):
            self._engine.step()
        seconds = time.perf_counter() - started
        return seconds / (self._engine.stats().steps - counted)

    def _add(self, length: int, params: SamplingParams) -> str:
        name = f"full-{next(self._names)}"
        tokens = self._random.choices(range(self._engine.model.vocab_size), k=length)
        self._engine.add(Request(name, tuple(tokens), params))
        return name


def fill_steps(token_budget: int, decodes: int, context: int) -> int:
    """Return the most steps that compute ``decodes`` prompts of ``context`` tokens, while those before them decode."""
    return sum(-(-context // (token_budget - row)) + 2 for row in range(decodes))


def measure(
    model: ModelConfig,
    params: PackedParams,
    memory: DeviceMemory,
    *,
    kernels: Kernels = REFERENCE,
    budgets: Sequence[int] | None = None,
    context: int = TUNE_CONTEXT,
    rounds: int = TUNE_ROUNDS,
    report: Callable[[BudgetTime], None] = lambda _: None,
) -> Tuning:
    """Time full steps of the model at each budget, with these kernels, and choose one of them.

    Budgets (None: 16, 32, ... up to 256 on a CPU and 2048 elsewhere) increase until the list, the model's context or
    memory ends. They also end once the knee is clearly past and ``least_budget`` is reached. Then all are timed
    ``rounds`` - 1 times more, in turn, so that a change of the machine's speed affects all of them. ``report`` gets
    each budget's first block at once. Raises ConfigError if no budget can be measured.
    """
    least = least_budget(skips_padding=kernels.skips_padding, is_cpu=memory.is_cpu)
    budgets = sorted(budgets or (CPU_BUDGETS if memory.is_cpu else BUDGETS))
    trials: list[_Trial] = []
    ended = "the last budget of the list"
    for budget in budgets:
        try:
            trial = _Trial(model, params, memory, kernels, budget, context, rounds)
        except ConfigError as error:
            if not trials:
                raise
            ended = str(error)
            break
        memory = replace(memory, free_bytes=memory.free_bytes - trial.cache_bytes)
        trials.append(trial)
        report(trial.result())
        if past_knee({trial.budget: trial.blocks[0] for trial in trials}, least):
            ended = "the knee is past"
            break
    for _ in range(rounds - 1):
        for trial in trials:
            trial.run_block()
    times = tuple(trial.result() for trial in trials)
    found = knee({result.token_budget: result.seconds for result in times}, least)
    return Tuning(found, times, ended, kernels.skips_padding)


class _Trial:
    """The measurement of one budget: an engine, compiled and filled, and its timed blocks of steps."""

    def __init__(
        self,
        model: ModelConfig,
        params: PackedParams,
        memory: DeviceMemory,
        kernels: Kernels,
        budget: int,
        context: int,
        rounds: int,
    ):
        self.budget = budget
        self.blocks: list[float] = []
        rows = default_max_num_seqs(budget, is_cpu=memory.is_cpu)
        self._decodes = max(1, min(_MAX_DECODES, rows - _PROMPT_ROWS))
        steps = _ESTIMATE_STEPS + 1 + rounds * (_BLOCK_STEPS[1] + 1)
        config = self._config(model, memory, _size(params), context, steps)
        self.cache_bytes = blocks_bytes(model, config.cache)
        started = time.perf_counter()
        compiled = compile_step(model, config, kernels)
        self._compile_seconds = time.perf_counter() - started
        engine = build_engine(model, config, params, frozenset(), compiled=compiled)
        self._load = FullSteps(engine, decodes=self._decodes, context=context, steps=steps)
        least, most = _BLOCK_STEPS
        self._steps = min(max(least, int(_BLOCK_SECONDS / self._load.seconds(_ESTIMATE_STEPS))), most)
        self.run_block()

    def run_block(self) -> None:
        self.blocks.append(self._load.seconds(self._steps))

    def result(self) -> BudgetTime:
        return BudgetTime(
            self.budget, self._decodes, median(self.blocks), tuple(self.blocks), self._steps, self._compile_seconds
        )

    def _config(
        self, model: ModelConfig, memory: DeviceMemory, params_bytes: int, context: int, steps: int
    ) -> EngineConfig:
        """Return a configuration that just holds the load. Raises ConfigError if model or memory are too small."""
        chunk = max(self.budget - self._decodes, 1)
        longest = context + steps + fill_steps(self.budget, self._decodes, context)
        prompt = max(context, chunk)
        if max(longest, prompt + 1) > model.max_position:
            raise ConfigError(
                f"a budget of {self.budget} is measured with sequences of {max(longest, prompt + 1)} tokens, "
                f"and the model has {model.max_position} positions"
            )
        blocks = self._decodes * _blocks(longest) + _PROMPT_ROWS * _blocks(prompt + 1) + _MAX_DECODES
        options = EngineOptions(
            token_budget=self.budget,
            max_num_seqs=default_max_num_seqs(self.budget, is_cpu=memory.is_cpu),
            max_model_len=max(longest, prompt + 1),
            num_blocks=blocks,
            prefix_caching=False,
            seed=0,
            single_shape=True,
        )
        return resolve(options, model, memory, token_budget=self.budget, params_bytes=params_bytes)


def _size(params: PackedParams) -> int:
    return sum(map(num_bytes, jax.tree.leaves(params)))


def _blocks(tokens: int) -> int:
    return -(-tokens // DEFAULT_BLOCK_SIZE)


def tune(
    model: str | None = None,
    *,
    hub: HubOptions | None = None,
    dtype: DType | Literal["auto"] = "auto",
    kernels: KernelChoice = "auto",
    quantization: Quantization = "none",
    load_format: LoadFormat = "auto",
    cache_dir: Path | str | None = None,
    gpu_memory_utilization: float = 0.9,
    kv_cache_dtype: str = "auto",
    budgets: Sequence[int] | None = None,
    context: int = TUNE_CONTEXT,
    rounds: int = TUNE_ROUNDS,
    report: Callable[[BudgetTime], None] = lambda _: None,
) -> tuple[Tuning, Path | None]:
    """Measure the token budget of a model on this device and keep it, if the cache can be written.

    From then on ``load_engine`` uses it if no token budget is given. Raises ConfigError.
    """
    resolved = resolve_on_device(
        model,
        hub=hub,
        dtype=dtype,
        kernels=kernels,
        quantization=quantization,
        load_format=load_format,
        cache_dir=cache_dir,
        options=EngineOptions(gpu_memory_utilization=gpu_memory_utilization, kv_cache_dtype=kv_cache_dtype),
        budgets=budgets or BUDGETS,
    )
    with persistent_compilation(resolved.caches.compiled):
        chosen, params = load_model(resolved, block_size=DEFAULT_BLOCK_SIZE, progress=False)
        tuning = measure(
            resolved.model,
            params,
            resolved.memory,
            kernels=chosen,
            budgets=budgets,
            context=context,
            rounds=rounds,
            report=report,
        )
    folder = resolved.tuning_folder
    return tuning, save_record(folder, resolved.model, resolved.device, asdict(tuning)) if folder else None
