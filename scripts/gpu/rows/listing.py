"""All rows of the check, in their order: whether it runs at all, then what a user would see, and the rest by worth."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache

from jaxgen.core.config import ModelConfig
from jaxgen.kernels.verdict import ExpertShapes
from pallas_kernels.gpu.attention.items import best_tile_groups, value_slices
from scripts.gpu.result.plan import OTHER_REGISTERS, REGISTERS, PlannedRow, attention_configuration
from scripts.gpu.rows.sizes import BITS, BITS_TOKENS, PIECES, RANDOM_TOKENS, TILES, AttentionLoad, Sizes, StepLoad
from tests.support.attention_cases import Case

MULTIPROCESSORS = 132
"""Multiprocessors of an H200: their number decides which kernels a load needs."""
WRITE_KV = "write_kv"
EXPERTS = "expert_product"
WHOLE_SUMS = (("xla_gpu_experimental_force_split_k", "1"),)
"""XLA splits no sum of a product among thread blocks, as it does by default for some widths."""
TRIALS = {
    "skip_profiled": (("xla_gpu_command_buffer_update_mode", "SKIP_PROFILED"),),
    "concurrent": (("xla_gpu_command_buffer_scheduling_mode", "CONCURRENT"),),
}
"""How XLA updates its CUDA graphs, and whether it puts kernels that do not wait for each other next to each other."""
FAMILY_TOKENS = 64
"""Tokens of the steps of other families."""
STEP_COMPILE = 240.0
"""Seconds for a step of 32 layers to compile, with the time to make its weights."""


@cache
def rows_of(sizes: Sizes) -> tuple[PlannedRow, ...]:
    """Return every row, whether or not there will be time for it."""
    return (
        *_first_ceilings(),
        *_smoke(sizes),
        *_server(sizes),
        *_variants(sizes),
        *_served(sizes),
        *_launches(sizes),
        *_widths(sizes),
        *_attention(sizes),
        *_other_smoke(sizes),
        *_experts(sizes),
        *_restores(sizes),
        *_products(sizes),
        *_steps("steps", sizes.steps, [budget for budget in sizes.steps.budgets if budget != sizes.served_budget]),
        *_knee("steps", sizes.steps),
        *_other_ceilings(),
        *_offload(sizes),
        *_tools(sizes),
        *_plain_launches(sizes),
        *_trials(sizes),
        *_kernel_checks(sizes),
        *_repeatability(),
        *_other_attention(sizes),
        PlannedRow(f"serving_{sizes.serving.name}_jaxgen", "serving", "serving:jaxgen", limit=60.0),
        *_of_other_software(sizes),
        *_steps("opt_steps", sizes.opt_steps, sizes.opt_steps.budgets),
        *_families(sizes),
        *_parity(sizes),
    )


def attention_needs(heads: int, kv_heads: int, head_dim: int, tokens: int) -> tuple[str, ...]:
    """Return the configurations of the kernels that attention launches in a step of ``tokens`` tokens."""
    slices = value_slices(head_dim)
    tiles = slices * best_tile_groups(tokens, heads // kv_heads, kv_heads, head_dim, MULTIPROCESSORS)
    return attention_configuration(PIECES, head_dim, slices), attention_configuration(TILES, head_dim, tiles)


def step_configuration(tokens: int, rows: int) -> str:
    """Return the configuration of a step, for every depth of its model."""
    return f"step of {tokens} tokens and {rows} rows"


def served_rows(budget: int) -> int:
    """Return the number of rows that a step of a server on a GPU has by default."""
    return min(budget, 256)


def _of_model(model: ModelConfig, tokens: int) -> tuple[str, ...]:
    """Return the configurations that a model's step needs; none of XLA's own kernels, which a coded KV cache has."""
    if model.kv_dtype != "auto":
        return ()
    experts = () if ExpertShapes.of(model) is None else (EXPERTS,)
    return (WRITE_KV, *attention_needs(model.num_heads, model.num_kv_heads, model.head_dim, tokens), *experts)


def _of_case(case: Case, tokens: int) -> tuple[str, ...]:
    return attention_needs(case.heads, case.kv_heads, case.head_dim, tokens)


def _first_ceilings() -> Iterator[PlannedRow]:
    yield PlannedRow("ceiling_copy_memcpy", "ceilings", "ceilings:copy", ("memcpy",), process="smoke")
    yield PlannedRow("ceiling_matrix_burst", "ceilings", "ceilings:burst", process="smoke")
    yield PlannedRow("ceiling_matrix_bf16_to_bfloat16", "ceilings", "ceilings:matrix", ("bfloat16",), process="smoke")


def _smoke(sizes: Sizes) -> Iterator[PlannedRow]:
    """Yield the kernels of the served step, a small step, the product of experts and the proof of a start."""
    yield _smoke_kernel(WRITE_KV)
    yield from _smoke_attention(sizes, first=True)
    load, (tokens,) = sizes.small_step, sizes.small_step.budgets
    rows = served_rows(tokens)
    needs = _of_model(load.model, tokens)
    small = PlannedRow(f"smoke_step_{load.name}_{tokens}", "smoke", "step_times:full", (load, tokens), limit=30.0)
    yield replace(small, process="smoke", configuration=step_configuration(tokens, rows), needs=needs)
    yield _smoke_kernel(EXPERTS)
    start = PlannedRow(f"smoke_start_{load.name}_{tokens}", "smoke", "kernel_checks:start", (load.model, tokens, rows))
    yield replace(start, limit=100.0, splits=False, process="tools", needs=needs)


def _other_smoke(sizes: Sizes) -> Iterator[PlannedRow]:
    yield from (_smoke_kernel(name) for name in ("gather_blocks", "scatter_blocks", "partial_recompute"))
    yield from _smoke_attention(sizes, first=False)


def _smoke_kernel(name: str) -> PlannedRow:
    return PlannedRow(f"smoke_{name}", "smoke", f"kernel_checks:{name}", process="smoke", configuration=name)


def _smoke_attention(sizes: Sizes, *, first: bool) -> Iterator[PlannedRow]:
    """Yield attention with the served model's heads (``first``) or other heads, with both pairs of registers."""
    for load in sizes.smokes:
        if (load.case.head_dim == sizes.steps.model.head_dim) is not first:
            continue
        name, configuration = (
            f"smoke_{load.name}",
            attention_configuration(load.kind, load.case.head_dim, load.warpgroups),
        )
        common = PlannedRow("", "smoke", "kernel_checks:smoke", (load,), process="smoke", configuration=configuration)
        yield replace(common, name=name, registers=REGISTERS)
        if load.warpgroups > 1:
            suffix = "_".join(map(str, OTHER_REGISTERS))
            yield replace(common, name=f"{name}_registers_{suffix}", registers=OTHER_REGISTERS, instead_of=name)


def _attention(sizes: Sizes) -> Iterator[PlannedRow]:
    for load in sizes.attention:
        needs, own = _of_load(load), f"load {load.name}"
        yield PlannedRow(load.name, "attention", "attention:measure", (load,), 30.0, configuration=own, needs=needs)
    yield PlannedRow("check_bits", "attention", "kernel_checks:bits", needs=_of_case(BITS, BITS_TOKENS))


def _of_load(load: AttentionLoad) -> tuple[str, ...]:
    return _of_model(load.model, sum(length for length, _ in load.rows))


def _steps(part: str, load: StepLoad, budgets: Iterable[int]) -> Iterator[PlannedRow]:
    for budget in budgets:
        yield _step(part, load, budget)


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
        needs=(*_of_model(load.model, budget), configuration),
    )


def _knee(part: str, load: StepLoad) -> Iterator[PlannedRow]:
    """Yield the knee's row if the load has several steps."""
    rows = tuple(f"step_{load.name}_{budget}" for budget in load.budgets)
    if len(rows) > 1:
        yield PlannedRow(f"step_{load.name}_knee", part, "step_times:at_knee", splits=False, reads=rows)


def _served(sizes: Sizes) -> Iterator[PlannedRow]:
    load, budget = sizes.steps, sizes.served_budget
    step = _step("served", load, budget)
    yield step
    for sampling in ("top_p", "logprobs"):
        yield _step("served", load, budget, sampling)
    for rows in sizes.served_decodes:
        yield replace(step, name=f"served_{load.name}_{rows}", entry="step_times:decoding", arguments=(rows,))
    yield replace(step, name=f"step_{load.name}_{budget}_beside_copies", entry="copies:beside", arguments=())


def _launches(sizes: Sizes) -> Iterator[PlannedRow]:
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


def _widths(sizes: Sizes) -> Iterator[PlannedRow]:
    """Yield a program of few tokens next to one of many."""
    load = sizes.variants[0]
    for narrow, wide in sizes.widths:
        name = f"widths_{load.name}_{narrow}_of_{wide}"
        arguments = load, (narrow, wide), sizes.widths_rows, WHOLE_SUMS
        needs = (*_of_model(load.model, narrow), *_of_model(load.model, wide))
        yield PlannedRow(name, "launches", "widths:compare", arguments, needs=needs)


def _plain_launches(sizes: Sizes) -> Iterator[PlannedRow]:
    """Yield the same without CUDA graphs, which compiles the step once more; a dry run has no such graphs."""
    if not sizes.pallas:
        return
    step = _step("plain_launches", sizes.steps, sizes.served_budget)
    name = f"launches_{sizes.steps.name}_{sizes.served_budget}_without_command_buffers"
    yield replace(step, name=name, entry="launches:profile", arguments=(), process="plain launches")


def _trials(sizes: Sizes) -> Iterator[PlannedRow]:
    """Yield the served step with options of XLA that it may refuse or that may fail, each in a process of its own."""
    step = _step("trials", sizes.steps, sizes.served_budget)
    for name, options in TRIALS.items():
        row = replace(step, name=f"{step.name}_{name}", entry="step_times:tried", arguments=(options,))
        yield replace(row, configuration=f"{step.configuration}, {name}", process=f"trial {name}", compares=True)


def _server(sizes: Sizes) -> Iterator[PlannedRow]:
    """Yield a server that starts, its loads, and a second start, which compiles nothing."""
    load = sizes.server
    name = f"server_{load.name}"
    row = PlannedRow("", "server", "server:start", process="server", configuration=name, needs=(name,))
    start = replace(row, name=f"{name}_start", limit=load.start_limit, splits=False)
    yield start
    ready = replace(row, entry="server:benchmark", limit=60.0, compile_limit=load.start_limit, configuration=None)
    for clients, requests in load.clients:
        yield replace(ready, name=f"{name}_{clients}_clients", arguments=(clients, requests))
    yield replace(start, name=f"{name}_start_again")
    yield replace(start, name=f"{name}_verify_determinism", entry="server:verify", limit=240.0, configuration=None)


def _variants(sizes: Sizes) -> Iterator[PlannedRow]:
    """Yield a step of a mixture of experts; and steps of few layers in other formats, the first as it is."""
    for load in (sizes.moe_step, *sizes.variants):
        for budget in load.budgets:
            needs = _of_model(load.model, budget)
            row = _step("formats", load, budget)
            row = replace(row, configuration=f"step of {load.name}", needs=needs, compile_limit=120.0)
            yield row
            if load.name == sizes.whole_sums:
                row = replace(row, entry="step_times:with_options", arguments=(load, budget, WHOLE_SUMS))
                yield replace(row, name=f"{row.name}_whole_sums")


def _experts(sizes: Sizes) -> Iterator[PlannedRow]:
    for load in sizes.expert_loads:
        name = f"{EXPERTS}_{load.name}"
        yield PlannedRow(name, "formats", "experts:measure", (load,), configuration=EXPERTS, needs=(EXPERTS,))


def _restores(sizes: Sizes) -> Iterator[PlannedRow]:
    load, tokens = sizes.steps, sizes.restored_tokens
    needs = (*_of_model(load.model, sizes.served_budget), "gather_blocks", "scatter_blocks")
    row = PlannedRow(f"restore_{load.name}_{tokens}", "restores", "restores:whole", needs=needs)
    yield replace(row, limit=90.0, compile_limit=STEP_COMPILE)


def _products(sizes: Sizes) -> Iterator[PlannedRow]:
    for name, inputs, outputs in sizes.products:
        yield PlannedRow(f"products_{name}", "products", "products:measure", (inputs, outputs))
        bits = PlannedRow(f"bits_products_{name}", "products", "products:bits", (inputs, outputs))
        yield bits
        yield replace(bits, name=f"{bits.name}_whole_sums", arguments=(inputs, outputs, WHOLE_SUMS))


def _tools(sizes: Sizes) -> Iterator[PlannedRow]:
    tool = PlannedRow("", "tools", "", limit=60.0, splits=False, process="tools", compares=True)
    for load in dict.fromkeys((sizes.attention[0], sizes.attention[-1])):
        needs = (*_of_load(load), f"load {load.name}")
        yield replace(tool, name=f"ncu_{load.name}", entry="tools:ncu", arguments=(load.name,), needs=needs)
    smokes = tuple(row.name for row in _smoke(sizes) if row.entry.startswith("kernel_checks") and row.splits)
    for check in ("memcheck", "racecheck"):
        yield replace(tool, name=f"sanitizer_{check}", entry="tools:sanitizer", arguments=(check,), reads=smokes)


def _other_ceilings() -> Iterator[PlannedRow]:
    yield PlannedRow("ceiling_copy_kernel", "other_ceilings", "ceilings:copy", ("kernel",))
    yield PlannedRow("ceiling_matrix_bf16_to_float32", "other_ceilings", "ceilings:matrix", ("float32",))
    for kind in ("pinned", "pageable"):
        for way in ("host_to_device", "device_to_host"):
            yield PlannedRow(f"ceiling_{way}_{kind}", "other_ceilings", "ceilings:link", (kind, way))


def _kernel_checks(sizes: Sizes) -> Iterator[PlannedRow]:
    row = PlannedRow("", "kernels", "kernel_checks:random")
    for seed in range(sizes.random_batches):
        needs = _of_case(sizes.random_case, RANDOM_TOKENS)
        yield replace(row, name=f"check_attention_random_{seed}", arguments=(seed,), needs=needs)
    row = replace(row, entry="kernel_checks:case")
    for name, case in sizes.attention_cases:
        needs = _of_case(case, sum(length for length, _ in case.rows) + case.padding)
        yield replace(row, name=f"check_attention_{name}", arguments=(case,), needs=needs)
    needs = _of_case(BITS, BITS_TOKENS)
    yield replace(row, name="check_bits_window", entry="kernel_checks:bits", arguments=(70,), needs=needs)


def _offload(sizes: Sizes) -> Iterator[PlannedRow]:
    for load in sizes.offloads:
        for entry, name in (
            ("recompute", f"partial_recompute_{load.name}_{load.tokens}"),
            ("gather", f"gather_blocks_{load.name}"),
            ("scatter", f"scatter_blocks_{load.name}"),
        ):
            needs = (name.partition(f"_{load.name}")[0],)
            yield PlannedRow(name, "offload", f"offload:{entry}", (load,), needs=needs)
        for way in ("device_to_host", "host_to_device"):
            yield PlannedRow(f"staging_{way}_{load.name}", "offload", "offload:staging", (load, way))


def _other_attention(sizes: Sizes) -> Iterator[PlannedRow]:
    for way in ("cudnn", "xla_gathered", "xla_reference"):
        row = PlannedRow("", "other_attention", f"contiguous:{way}", limit=40.0, compares=True)
        for load in sizes.attention:
            yield replace(row, name=f"{way}_{load.name}", arguments=(load,))
    for load in sizes.attention:
        row = PlannedRow(f"torch_sdpa_{load.name}", "other_attention", "torch_attention:sdpa", (load,), limit=40.0)
        yield replace(row, splits=False, process="torch", compares=True)


def _repeatability() -> Iterator[PlannedRow]:
    row = PlannedRow("repeatability_reference", "repeatability", "repeatability:reference", limit=40.0)
    yield row
    for name in ("run_to_run", "reversed", "alone", "among_strangers"):
        yield replace(row, name=f"repeatability_{name}", entry="repeatability:compare", arguments=(name,))
    again = replace(row, name="repeatability_compiled_again", entry="repeatability:compiled_again", process="afresh")
    yield replace(again, reads=(row.name,))


def _of_other_software(sizes: Sizes) -> Iterator[PlannedRow]:
    row = PlannedRow(f"serving_{sizes.serving.name}_transformers", "transformers", "serving:transformers_batch")
    yield replace(row, limit=60.0, splits=False, process="torch", compares=True)


def _families(sizes: Sizes) -> Iterator[PlannedRow]:
    """Yield models of other families in bfloat16 by the device's kernels."""
    for name, model in sizes.families:
        row = PlannedRow(f"parity_kernels_{name}", "families", "families:compare", (model,), 90.0, splits=False)
        yield replace(row, needs=_of_model(model, FAMILY_TOKENS))


def _parity(sizes: Sizes) -> Iterator[PlannedRow]:
    for check in ("greedy", "logits"):
        for name in sizes.goldens:
            yield PlannedRow(f"parity_{check}_{name}", "parity", f"parity:{check}", (name,), 60.0, splits=False)
