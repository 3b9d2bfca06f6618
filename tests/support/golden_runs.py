"""The engine on the recorded checkpoints: logits of single steps, greedy tokens through a schedule. Needs no pytest."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxtyping import Array, Float, Int

from jaxgen.cache.window_manager import blocks_for
from jaxgen.core.config import CacheConfig, EngineConfig, SchedulerConfig
from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.model_config import ModelConfig
from jaxgen.core.sequence import Sequence
from jaxgen.core.stats import EngineStats
from jaxgen.engine.start.build import build_engine
from jaxgen.kernels.choice import REFERENCE
from jaxgen.kernels.kernels import Kernels
from jaxgen.models.kv_cache import KVCache, init_cache
from jaxgen.models.model import PackedParams, Params, bind, graph_of
from jaxgen.models.placement import pack_params
from jaxgen.runner.packer import Packer
from jaxgen.runner.row_state import RowLoader, RowState, init_rows, load_row
from jaxgen.runner.step import begin
from jaxgen.runner.step_layout import StepLayout
from jaxgen.scheduling.scheduler import Scheduler
from jaxgen.weights.load import load_model_config, load_params
from tests.support.engines import LLAMA, compiled_step, request, run, tokens
from tests.support.goldens import GOLDENS, Golden, golden_answers

LOGIT_TOLERANCE = 1e-4
"""Largest difference of logits, relative to the largest logit of the answer."""

SMALL = EngineConfig(CacheConfig(8, 48), SchedulerConfig(16, 4, 128), seed=0, max_logit_bias=4)
"""Budgets and blocks that cut every long prompt; 48 blocks hold three of the longest sequences."""

SNAPSHOTS = 4
"""Of models with states, fewer than there are prompts."""


def longer(name: str) -> ModelConfig:
    """Return the description of a golden, with as many tokens and positions as the model of most tests."""
    return replace(load_golden(name)[0], vocab_size=LLAMA.vocab_size, max_position=LLAMA.max_position)


def with_snapshots(limits: EngineConfig, model: ModelConfig) -> EngineConfig:
    """Return the limits for a model that may have states."""
    return replace(limits, cache=replace(limits.cache, num_snapshots=SNAPSHOTS)) if model.states else limits


def fitted(limits: EngineConfig, model: ModelConfig) -> EngineConfig:
    """Return the limits with what a model must have: snapshots, and blocks of each kind where rows have several shapes.

    Those of windows are the fewest with which all rows run.
    """
    limits = with_snapshots(limits, model)
    if not model.has_several_rows:
        return limits
    rows, size = limits.scheduler.max_num_seqs, limits.cache.block_size
    windows = tuple([kind.window or 0 for kind in model.cache_kinds[1:]])
    least = tuple([blocks_for(rows, window, size, limits.scheduler) for window in windows])
    return replace(limits, cache=replace(limits.cache, windows=windows, window_blocks=least))


Forward = Callable[[PackedParams, KVCache, RowState, Int[Array, "W"]], tuple[Float[Array, "T V"], KVCache]]


@cache
def load_golden(name: str) -> tuple[ModelConfig, Params]:
    """Configuration and float32 parameters of a checkpoint of ``goldens.NAMES``."""
    config = load_model_config(GOLDENS / name, "float32")
    if isinstance(config, DecoderConfig):  # as the engine does for its longest context
        config = config.within(max(len(answer.prompt) + len(answer.greedy) for answer in golden_answers(name)))
    return config, load_params(GOLDENS / name, config, progress=False)


def greedy_tokens(
    config: ModelConfig, params: Params, answers: Iterable[Golden], limits: EngineConfig
) -> tuple[list[list[int]], EngineStats]:
    """What a new engine generates for all prompts at once, chunked and mixed, and its statistics."""
    todo = [
        request(f"r{i}", answer.prompt, max_tokens=len(answer.greedy), temperature=0.0, ignore_eos=True)
        for i, answer in enumerate(answers)
    ]
    limits = fitted(limits, config)
    engine = build_engine(config, limits, params, frozenset(), compiled=compiled_step(config, limits))
    events = run(engine, todo)
    return [tokens(events[one.request_id]) for one in todo], engine.stats()


def relative_logit_error(
    config: ModelConfig, params: Params, answers: Iterable[Golden], limits: EngineConfig, kernels: Kernels = REFERENCE
) -> float:
    """The largest difference to the recorded logits of any answer, relative to that answer's largest logit."""
    limits = fitted(limits, config)
    forward = make_forward(config, limits)
    packed = pack_params(config, dict(params), kernels)
    errors = []
    for answer in answers:
        got = logits_of_chunks(forward, config, packed, answer, limits, kernels)
        errors.append(np.abs(got[answer.rows] - answer.logits).max() / np.abs(answer.logits).max())
    return float(np.max(errors))


def make_forward(config: ModelConfig, limits: EngineConfig) -> Forward:
    """The model alone, jitted: logits of every token of a packed plan."""
    graph, layout = graph_of(config), StepLayout(config, limits, limits.scheduler.token_budget)

    @jax.jit
    def forward(
        params: PackedParams, cache: KVCache, rows: RowState, words: Int[Array, "W"]
    ) -> tuple[Float[Array, "T V"], KVCache]:
        model = bind(graph, params)
        _, batch = begin(rows, words, layout)
        hidden, cache = model(batch, cache)
        return model.logits(model.head_products(hidden, batch.num_tokens)), cache

    return forward


def logits_of_chunks(
    forward: Forward,
    config: ModelConfig,
    params: PackedParams,
    answer: Golden,
    limits: EngineConfig,
    kernels: Kernels = REFERENCE,
) -> npt.NDArray[np.float32]:
    """Logits [n, V] of the prompt and the greedy answer but its last token, computed in chunks of the budget."""
    known = (*answer.prompt, *answer.greedy[:-1])
    scheduler = Scheduler(limits.scheduler, limits.cache)
    sequence = Sequence(request("a", known, max_tokens=1), eos_token_ids=frozenset(), arrival=0, seed=0)
    scheduler.add(sequence)
    packer = Packer(limits)
    cache = init_cache(config, limits.cache, kernels, num_rows=limits.scheduler.max_num_seqs)
    pieces = []
    while scheduler.has_work:
        plan = scheduler.schedule()
        rows = init_rows(limits, config.vocab_size)
        rows = load_row(rows, jnp.asarray(RowLoader(limits, config.vocab_size).words(sequence)))
        logits, cache = forward(params, cache, rows, jnp.asarray(packer.pack(plan)))
        pieces.append(np.asarray(logits)[: plan.num_tokens])
        scheduler.complete(plan, [0] * plan.num_samples)
    return np.concatenate(pieces)
