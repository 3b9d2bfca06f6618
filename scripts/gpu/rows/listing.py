"""All rows of the check, in their order: whether it runs at all, then what a user would see, and the rest by worth."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from scripts.gpu.result.plan import OTHER_REGISTERS, REGISTERS, PlannedRow, attention_configuration
from scripts.gpu.rows import step_rows
from scripts.gpu.rows.needs import DENSE, EXPERTS, WRITE_KV, of_case, of_load, of_model, served_rows, step_configuration
from scripts.gpu.rows.sizes import Sizes
from scripts.gpu.rows.work import BITS, BITS_TOKENS, RANDOM_TOKENS

FAMILY_TOKENS = 64
"""Tokens of the steps of other families."""


@cache
def rows_of(sizes: Sizes) -> tuple[PlannedRow, ...]:
    """Return every row, whether or not there will be time for it."""
    return (
        *_first_ceilings(),
        *_smoke(sizes),
        *_server(sizes),
        *step_rows.variants(sizes),
        *step_rows.served(sizes),
        *step_rows.launches(sizes),
        *step_rows.widths(sizes),
        *_attention(sizes),
        *_other_smoke(sizes),
        *_experts(sizes),
        *_restores(sizes),
        *_products(sizes),
        *step_rows.steps(sizes),
        *_other_ceilings(),
        *_offload(sizes),
        *_tools(sizes),
        *step_rows.plain_launches(sizes),
        *step_rows.trials(sizes),
        *_kernel_checks(sizes),
        *_repeatability(),
        *_other_attention(sizes),
        *step_rows.opt_steps(sizes),
        *_families(sizes),
        *_parity(sizes),
    )


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
    needs = of_model(load.model, tokens)
    small = PlannedRow(f"smoke_step_{load.name}_{tokens}", "smoke", "step_times:full", (load, tokens), limit=30.0)
    yield replace(small, process="smoke", configuration=step_configuration(tokens, rows), needs=needs)
    yield _smoke_kernel(EXPERTS)
    start = PlannedRow(f"smoke_start_{load.name}_{tokens}", "smoke", "kernel_checks:start", (load.model, tokens, rows))
    yield replace(start, limit=180.0, splits=False, process="tools", needs=needs)


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
        needs, own = of_load(load), f"load {load.name}"
        yield PlannedRow(load.name, "attention", "attention:measure", (load,), 30.0, configuration=own, needs=needs)
    yield PlannedRow("check_bits", "attention", "kernel_checks:bits", needs=of_case(BITS, BITS_TOKENS))


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


def _experts(sizes: Sizes) -> Iterator[PlannedRow]:
    for load in sizes.expert_loads:
        name = f"{EXPERTS}_{load.name}"
        yield PlannedRow(name, "formats", "experts:measure", (load,), configuration=EXPERTS, needs=(EXPERTS,))


def _restores(sizes: Sizes) -> Iterator[PlannedRow]:
    load, tokens = sizes.steps, sizes.restored_tokens
    needs = (*of_model(load.model, sizes.served_budget), "gather_blocks", "scatter_blocks")
    row = PlannedRow(f"restore_{load.name}_{tokens}", "restores", "restores:whole", needs=needs)
    yield replace(row, limit=90.0, compile_limit=step_rows.STEP_COMPILE)


def _products(sizes: Sizes) -> Iterator[PlannedRow]:
    for name, inputs, outputs in sizes.products:
        yield PlannedRow(f"products_{name}", "products", "products:measure", (inputs, outputs))
        bits = PlannedRow(f"bits_products_{name}", "products", "products:bits", (inputs, outputs))
        yield bits
        yield replace(bits, name=f"{bits.name}_whole_sums", arguments=(inputs, outputs, step_rows.WHOLE_SUMS))
    yield from _own_products(sizes)


def _own_products(sizes: Sizes) -> Iterator[PlannedRow]:
    """Yield the products and the norm of our own: first whether they run and have the same bits, then their times."""
    common = PlannedRow("", "own_products", "own_products:bits", process="smoke", configuration=DENSE)
    for name, inputs, outputs in sizes.products:
        yield replace(common, name=f"bits_products_own_{name}", arguments=(inputs, outputs))
    norms = replace(common, name="bits_norms_own", entry="own_products:norms", configuration=None)
    yield replace(norms, arguments=(sizes.own_norm_width,))
    for name, inputs, outputs in sizes.products:
        row = PlannedRow(f"products_own_{name}", "own_products", "own_products:measure", (inputs, outputs))
        yield replace(row, needs=(DENSE,))


def _tools(sizes: Sizes) -> Iterator[PlannedRow]:
    tool = PlannedRow("", "tools", "", limit=60.0, splits=False, process="tools", compares=True)
    for load in dict.fromkeys((sizes.attention[0], sizes.attention[-1])):
        needs = (*of_load(load), f"load {load.name}")
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
        needs = of_case(sizes.random_case, RANDOM_TOKENS)
        yield replace(row, name=f"check_attention_random_{seed}", arguments=(seed,), needs=needs)
    row = replace(row, entry="kernel_checks:case")
    for name, case in sizes.attention_cases:
        needs = of_case(case, sum(length for length, _ in case.rows) + case.padding)
        yield replace(row, name=f"check_attention_{name}", arguments=(case,), needs=needs)
    needs = of_case(BITS, BITS_TOKENS)
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


def _repeatability() -> Iterator[PlannedRow]:
    row = PlannedRow("repeatability_reference", "repeatability", "repeatability:reference", limit=40.0)
    yield row
    for name in ("run_to_run", "reversed", "alone", "among_strangers"):
        yield replace(row, name=f"repeatability_{name}", entry="repeatability:compare", arguments=(name,))
    again = replace(row, name="repeatability_compiled_again", entry="repeatability:compiled_again", process="afresh")
    yield replace(again, reads=(row.name,))


def _families(sizes: Sizes) -> Iterator[PlannedRow]:
    """Yield models of other families in bfloat16 by the device's kernels."""
    for name, model in sizes.families:
        row = PlannedRow(f"parity_kernels_{name}", "families", "families:compare", (model,), 90.0, splits=False)
        yield replace(row, needs=of_model(model, FAMILY_TOKENS))


def _parity(sizes: Sizes) -> Iterator[PlannedRow]:
    for check in ("greedy", "logits"):
        for name in sizes.goldens:
            yield PlannedRow(f"parity_{check}_{name}", "parity", f"parity:{check}", (name,), 60.0, splits=False)
