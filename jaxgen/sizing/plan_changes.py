"""Find changes with which a model fits, or its whole context does. Host only, no jax."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import ceil

from jaxgen.core.errors import ConfigError
from jaxgen.sizing.device_memory import GIB
from jaxgen.sizing.layerwise_sizes import stream_sizes
from jaxgen.sizing.plan import Plan, PlanRequest

USEFUL_CONTEXT = 2048
"""Least context, in tokens, of what is said to fit, where no length was asked for."""
_MOST_UTILIZATION = 95
"""Percent of an accelerator's memory: the rest is for its driver and for other programs."""
_LEAST_BUDGET = 16
_MOST_GIB = 2**14

Found = Iterator[tuple[str, PlanRequest]]
"""Changes, in words, and the requests that they make."""


def wanted_context(request: PlanRequest, plan: Plan) -> int:
    """Return the context that changes shall give: the one asked for, that of the model, or at least a useful one."""
    longest = request.model.max_position
    if request.options.max_model_len is not None or plan.config is not None:
        return request.options.max_model_len or longest
    return min(longest, USEFUL_CONTEXT)


def find_changes(request: PlanRequest, plan: Plan) -> list[str]:
    """Return changes of which each alone gives the wanted context; none are needed if the plan gives it.

    Every change has been tried: the engine would be sized with it.
    """
    goal = wanted_context(request, plan)
    if plan.config is not None and plan.config.scheduler.max_model_len >= goal:
        return []
    ways: tuple[Callable[[PlanRequest, int], Found], ...] = (
        _more_of_the_memory,
        _smaller_steps,
        _narrower_numbers,
        _cache_of_codes,
        _fewer_rows,
        _more_blocks,
        _cache_on_the_host,
    )
    if request.model.num_devices > 1:  # which has neither yet
        ways = tuple([way for way in ways if way not in (_narrower_numbers, _cache_on_the_host)])
    changes = [first for way in ways if (first := _first_that_works(way(request, goal), goal)) is not None]
    return [*_shorter(request), *changes, *_more_memory(request, goal)]


def _first_that_works(changes: Found, goal: int) -> str | None:
    return next((words for words, changed in changes if _works(changed, goal)), None)


def _works(request: PlanRequest, goal: int) -> bool:
    try:
        return request.resolve().scheduler.max_model_len >= goal
    except ConfigError:
        return False


def _more_of_the_memory(request: PlanRequest, _: int) -> Found:
    if request.platform == "cpu":
        return
    for percent in range(int(100 * request.options.gpu_memory_utilization) + 1, _MOST_UTILIZATION + 1):
        share = percent / 100
        yield f"--gpu-memory-utilization {share}", request.changed(gpu_memory_utilization=share)


def _smaller_steps(request: PlanRequest, _: int) -> Found:
    budget, rows = request.scheduler.token_budget // 2, request.options.max_num_seqs
    while budget >= _LEAST_BUDGET:
        fewer = None if rows is None else min(rows, budget)
        words = f"--token-budget {budget}" + (f" --max-num-seqs {fewer}" if fewer != rows else "")
        yield words, request.changed(token_budget=budget, max_num_seqs=fewer)
        budget //= 2


def _narrower_numbers(request: PlanRequest, _: int) -> Found:
    if request.model.dtype == "float32" and not request.model.weight_formats:  # codes do not become fewer
        model = replace(request.model, dtype="bfloat16")
        yield "--dtype bfloat16", replace(request, model=model, weights=request.weights // 2)


def _cache_of_codes(request: PlanRequest, _: int) -> Found:
    """Yield a cache of 8 bits on a CPU; on accelerators no fast kernels read it."""
    if request.platform == "cpu" and request.model.kv_dtype == "auto" and request.options.kv_host_dtype == "auto":
        yield "--kv-cache-dtype int8", replace(request, model=replace(request.model, kv_dtype="int8"))


def _fewer_rows(request: PlanRequest, _: int) -> Found:
    """Yield fewer rows where each has a state."""
    rows = request.scheduler.max_num_seqs // 2 if request.model.states else 0
    while rows:
        yield f"--max-num-seqs {rows}", request.changed(max_num_seqs=rows)
        rows //= 2


def _more_blocks(request: PlanRequest, goal: int) -> Found:
    """Yield as many blocks as the context has: a CPU's cache is small unless more is asked for."""
    if request.platform == "cpu" and request.options.num_blocks is None:
        need = -(-goal // request.block_size)
        yield f"--num-blocks {need}", request.changed(num_blocks=need)


def _cache_on_the_host(request: PlanRequest, goal: int) -> Found:
    if request.platform == "cpu":
        return
    need = -(-goal // request.block_size)
    for keep_inputs in (False, True):
        sizes = stream_sizes(request.model, request.block_size, request.memory, keep_inputs=keep_inputs)
        size = ceil(1000 * need * sizes.host / GIB) / 1000
        words = f"--kv-residency host --kv-offloading-size {size:g}"
        yield words, request.changed(kv_residency="host", kv_offloading_size=size)


def _shorter(request: PlanRequest) -> Iterator[str]:
    if request.options.max_model_len is None:
        return
    try:
        longest = request.changed(max_model_len=None).resolve().scheduler.max_model_len
    except ConfigError:
        return
    yield f"--max-model-len {longest} or less"


def _more_memory(request: PlanRequest, goal: int) -> Iterator[str]:
    """Yield the least memory that does, in whole GiB."""

    def works(gib: int) -> bool:
        return _works(replace(request, total_bytes=gib * GIB), goal)

    too_little, enough = request.total_bytes // GIB, request.total_bytes // GIB + 1
    while not works(enough):
        too_little, enough = enough, 2 * enough
        if enough > _MOST_GIB:
            return
    while enough - too_little > 1:
        middle = (too_little + enough) // 2
        too_little, enough = (too_little, middle) if works(middle) else (middle, enough)
    yield f"{enough} GiB of free memory" if request.platform == "cpu" else f"a device with {enough} GiB"
