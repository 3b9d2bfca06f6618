"""Choose the bounds of a step that options leave open: tokens, rows, context. Host only, no jax."""

from dataclasses import replace

from jaxgen.core.config import EngineConfig, EngineOptions, SchedulerConfig
from jaxgen.core.errors import ConfigError
from jaxgen.core.model_config import ModelConfig
from jaxgen.sizing.allocation import vocabulary_bytes
from jaxgen.sizing.token_budget import CPU_NARROW, CPU_ROWS, GPU_ROWS

DEFAULT_BLOCK_SIZE = 64
LEAST_ROWS = 16
"""Default for the rows of a step on an accelerator with little memory."""
ROWS_SHARE = 1 / 8
"""Largest share of the memory left by the weights that these rows take, without their KV blocks."""


def no_wider(config: EngineConfig, options: EngineOptions, token_budget: int) -> EngineConfig:
    """Return the configuration with at most the given tokens of a step, or as many as the options want rows."""
    scheduler = config.scheduler
    rows = options.max_num_seqs or min(scheduler.max_num_seqs, default_max_num_seqs(token_budget, is_cpu=True))
    narrower = replace(scheduler, token_budget=max(min(scheduler.token_budget, token_budget), rows), max_num_seqs=rows)
    return replace(config, scheduler=narrower)


def default_max_num_seqs(
    token_budget: int, *, is_cpu: bool, row_bytes: int = 0, room: int | None = None, most: int = GPU_ROWS
) -> int:
    """Return the default number of rows of a step. A row costs logits and KV cache, and little of a step's time.

    On a CPU a quarter of the budget at most, so that decodes leave room for prompts. On accelerators ``most``, or fewer
    where ``row_bytes`` for each row would take much of ``room``, the bytes left by the weights (None: unknown).
    """
    if is_cpu:
        return min(token_budget, max(CPU_NARROW, token_budget // 4), CPU_ROWS)
    rows = most
    while room is not None and rows > LEAST_ROWS and rows * row_bytes > ROWS_SHARE * room:
        rows //= 2
    return min(token_budget, rows)


def scheduler_config(
    options: EngineOptions,
    model: ModelConfig,
    token_budget: int,
    *,
    is_cpu: bool,
    room: int | None,
    most_rows: int = GPU_ROWS,
) -> SchedulerConfig:
    """Return the bounds of a step: ``max_model_len`` may become smaller where the cache is sized.

    ``token_budget``, ``most_rows`` as for ``resolve``; ``room`` as for ``default_max_num_seqs``. Raises ConfigError.
    """
    token_budget = options.token_budget or max(token_budget, options.max_num_seqs or 1)
    if options.max_model_len is not None and options.max_model_len > model.max_position:
        raise ConfigError(
            f"--max-model-len {options.max_model_len} is over the {model.max_position} positions the model has: "
            f"use --max-model-len {model.max_position} or less"
        )
    max_model_len = options.max_model_len or model.max_position
    max_num_seqs = options.max_num_seqs
    if max_num_seqs is None:
        row_bytes = vocabulary_bytes(model) + 2 * model.state_bytes  # of the row, and of its snapshot
        max_num_seqs = default_max_num_seqs(token_budget, is_cpu=is_cpu, row_bytes=row_bytes, room=room, most=most_rows)
    return SchedulerConfig(
        token_budget,
        max_num_seqs,
        max_model_len,
        prefix_caching=options.prefix_caching,
        background_tokens=_background_tokens(options, is_cpu=is_cpu),
    )


def _background_tokens(options: EngineOptions, *, is_cpu: bool) -> int | None:
    """Return the limit of background tokens, by default None on accelerators and 0 on CPUs.

    On an accelerator at the knee of its throughput, a token in place of padding is free; on a CPU it never is.
    """
    if options.background_tokens is None and is_cpu:
        return 0
    return options.background_tokens
