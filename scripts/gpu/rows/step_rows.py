"""The rows of whole steps."""

from collections.abc import Iterator
from dataclasses import replace

from scripts.gpu.result.plan import PlannedRow
from scripts.gpu.rows.needs import of_model, served_rows, step_configuration
from scripts.gpu.rows.sizes import Sizes
from scripts.gpu.rows.work import StepLoad

WHOLE_SUMS = (("xla_gpu_experimental_force_split_k", "1"),)
"""XLA splits no sum of a product among thread blocks, as it does by default for some widths."""
TRIALS = {
    "skip_profiled": (("xla_gpu_command_buffer_update_mode", "SKIP_PROFILED"),),
    "concurrent": (("xla_gpu_command_buffer_scheduling_mode", "CONCURRENT"),),
}
"""How XLA updates its CUDA graphs, and whether it puts kernels that do not wait for each other next to each other."""
STEP_COMPILE = 240.0
"""Seconds for a step of 32 layers to compile, with the time to make its weights."""


def _step(part: str, load: StepLoad, budget: int, sampling: str = "greedy") -> PlannedRow:
    suffix = "" if sampling == "greedy" else f"_{sampling}"
    configuration = step_configuration(budget, served_rows(budget))
    return PlannedRow(
        f"step_{load.name}_{budget}{suffix}",
        part,
        "step_times:full",
        (load, budget, sampling),
        limit=40.0,
        compile_limit=STEP_COMPILE,
        configuration=configuration,
        needs=(*of_model(load.model, budget), configuration),
    )


def steps(sizes: Sizes) -> Iterator[PlannedRow]:
    """Yield the budgets other than the served one, and the knee if there are several."""
    load = sizes.steps
    yield from (_step("steps", load, budget) for budget in load.budgets if budget != sizes.served_budget)
    rows = tuple(f"step_{load.name}_{budget}" for budget in load.budgets)
    if len(rows) > 1:
        yield PlannedRow(f"step_{load.name}_knee", "steps", "step_times:at_knee", splits=False, reads=rows)


def opt_steps(sizes: Sizes) -> Iterator[PlannedRow]:
    yield from (_step("opt_steps", sizes.opt_steps, budget) for budget in sizes.opt_steps.budgets)


def served(sizes: Sizes) -> Iterator[PlannedRow]:
    load, budget = sizes.steps, sizes.served_budget
    step = _step("served", load, budget)
    yield step
    for sampling in ("top_p", "logprobs"):
        yield _step("served", load, budget, sampling)
    for rows in sizes.served_decodes:
        yield replace(step, name=f"served_{load.name}_{rows}", entry="step_times:decoding", arguments=(rows,))
    yield replace(step, name=f"step_{load.name}_{budget}_beside_copies", entry="copies:beside", arguments=())


def launches(sizes: Sizes) -> Iterator[PlannedRow]:
    load, budget = sizes.steps, sizes.served_budget
    step = _step("launches", load, budget)
    whole = replace(step, entry="step_times:with_options", arguments=(load, budget, WHOLE_SUMS))
    yield replace(whole, name=f"{step.name}_whole_sums", configuration=f"{step.configuration} with whole sums")
    name, entry = f"launches_{load.name}_{budget}", "launches:profile"
    step = replace(step, process="profiler")
    yield replace(step, name=name, entry=entry, arguments=())
    for kind in ("decodes", "full"):
        name = f"host_step_{load.name}_{budget}_{kind}"
        yield replace(step, name=name, entry="host_times:measure", arguments=(kind,))


def widths(sizes: Sizes) -> Iterator[PlannedRow]:
    """Yield a program of few tokens next to one of many."""
    load = sizes.variants[0]
    for narrow, wide in sizes.widths:
        name = f"widths_{load.name}_{narrow}_of_{wide}"
        arguments = load, (narrow, wide), sizes.widths_rows, WHOLE_SUMS
        needs = (*of_model(load.model, narrow), *of_model(load.model, wide))
        yield PlannedRow(name, "launches", "widths:compare", arguments, needs=needs)


def plain_launches(sizes: Sizes) -> Iterator[PlannedRow]:
    """Yield the same without CUDA graphs, which compiles the step once more; a dry run has no such graphs."""
    if not sizes.pallas:
        return
    step = _step("plain_launches", sizes.steps, sizes.served_budget)
    name = f"launches_{sizes.steps.name}_{sizes.served_budget}_without_command_buffers"
    yield replace(step, name=name, entry="launches:profile", arguments=(), process="plain launches")


def trials(sizes: Sizes) -> Iterator[PlannedRow]:
    """Yield the served step with options of XLA that it may refuse or that may fail, each in a process of its own."""
    step = _step("trials", sizes.steps, sizes.served_budget)
    for name, options in TRIALS.items():
        row = replace(step, name=f"{step.name}_{name}", entry="step_times:tried", arguments=(options,))
        yield replace(row, configuration=f"{step.configuration}, {name}", process=f"trial {name}", compares=True)


def variants(sizes: Sizes) -> Iterator[PlannedRow]:
    """Yield a step of a mixture of experts; and steps of few layers in other formats, the first as it is."""
    for load in (sizes.moe_step, *sizes.variants):
        for budget in load.budgets:
            needs = of_model(load.model, budget)
            row = _step("formats", load, budget)
            row = replace(row, configuration=f"step of {load.name}", needs=needs, compile_limit=120.0)
            yield row
            if load.name == sizes.whole_sums:
                row = replace(row, entry="step_times:with_options", arguments=(load, budget, WHOLE_SUMS))
                yield replace(row, name=f"{row.name}_whole_sums")
