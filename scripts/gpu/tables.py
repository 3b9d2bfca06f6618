"""Format a device's results as tables in Markdown."""

from collections.abc import Iterable
from textwrap import wrap

from scripts.gpu.cells import (
    COMPILED,
    NOT_RUN,
    Result,
    billed_seconds,
    bound,
    detail,
    detail_ms,
    floor,
    fraction,
    ms,
    ms_of,
    number,
    rate,
    state,
    table,
)
from scripts.gpu.report import COPY_RATE, MATRIX_RATE, State
from scripts.gpu.rows import rows_of
from scripts.gpu.served_tables import formats, restored, server
from scripts.gpu.sizes import FULL, OffloadLoad, StepLoad

DECODE_GOAL, PROMPT_GOAL, KNEE_GOAL = 0.85, 0.60, 0.80
"""Goals as fractions of the floor: of the measured copy rate, of the measured matrix rate, and of both for the step at
the knee."""
STEPS = {"Llama-3-8B": FULL.steps, "OPT-6.7B": FULL.opt_steps}
"""Models with a table of token budgets."""
CEILINGS = {
    COPY_RATE: ("copy on the device", 1e12, "TB/s"),
    MATRIX_RATE: ("bfloat16 matrix product", 1e12, "TFLOP/s"),
    "host_to_device_pinned_bytes_per_second": ("host to device, pinned", 1e9, "GB/s"),
    "device_to_host_pinned_bytes_per_second": ("device to host, pinned", 1e9, "GB/s"),
    "host_to_device_pageable_bytes_per_second": ("host to device, pageable", 1e9, "GB/s"),
    "device_to_host_pageable_bytes_per_second": ("device to host, pageable", 1e9, "GB/s"),
}


def sections(result: Result) -> list[str]:
    """Return Markdown, one string for each section."""
    parts = [
        ("Ceilings", _ceilings(result)),
        ("Whether the kernels run", _smoke(result)),
        ("Attention, one layer", _attention(result)),
        *((f"The step of {name}", _steps(result, load)) for name, load in STEPS.items()),
        ("The step as a server has it", _served(result)),
        ("A server as users start it", server(result)),
        ("Other formats, and experts", formats(result)),
        ("The products of a layer", _products(result)),
        ("The host and the launches", _launches(result)),
        ("Recomputing and staging KV", _offload(result)),
        ("From end to end", _serving(result)),
        ("Checks", _checks(result)),
        ("Rows without a result", _without_result(result)),
    ]
    return [f"### {title}\n\n{text}" for title, text in parts]


def _ceilings(result: Result) -> str:
    rows = []
    for name, (title, unit, unit_name) in CEILINGS.items():
        rate = result.ceilings.get(name)
        rows.append([title, NOT_RUN if rate is None else f"{rate / unit:.3g} {unit_name}"])
    return table(["what this machine reaches", "rate"], rows)


def _smoke(result: Result) -> str:
    """Return the outcome of each kernel and small step, and the bad configurations."""
    rows = []
    for plan in rows_of(FULL):
        row = result.row(plan.name)
        if plan.part != "smoke" or row.get("state") == State.NOT_NEEDED or (plan.instead_of and not row):
            continue
        verdict = state(row) or row["failure"] or "passed"
        rows.append([f"`{plan.name}`", detail(row, "kernels"), verdict, detail(row, "largest_error")])
    text = table(["row", "kernels", "outcome", "largest error"], rows)
    bad = [f"- {one}" for one in result.about.get("bad_configurations", [])]
    return "\n".join([text, "", *bad]) if bad else text


def _attention(result: Result) -> str:
    titles = ["load", "kernels", "time, ms", "floor / time", "goal", "planning, once per step, ms (not included)"]
    others = {"XLA's own, ms": "xla_reference", "XLA, gathered first, ms": "xla_gathered"}
    others |= {"cuDNN, ms": "cudnn", "PyTorch, ms": "torch_sdpa"}
    rows = []
    for load in FULL.attention:
        row = result.row(load.name)
        goal = DECODE_GOAL if load.rows[0][0] == 1 else PROMPT_GOAL
        line = [f"`{load.name}`", detail(row, "kernels"), ms(row, COMPILED), fraction(row), f"{goal:.2f}"]
        line += [detail_ms(row, "plan_seconds")]
        rows.append(line + [ms(result.row(f"{prefix}_{load.name}")) for prefix in others.values()])
    return table([*titles, *others], rows)


def _steps(result: Result, load: StepLoad) -> str:
    rows = []
    for budget in sorted(load.budgets):
        row = result.row(f"step_{load.name}_{budget}")
        rate = f"{budget / row['seconds']:,.0f}" if state(row) is None else ""
        times = [ms(row, COMPILED), detail_ms(row, "overlapped_seconds"), ms_of(billed_seconds(row))]
        rows.append([str(budget), *times, floor(row), bound(result, row), fraction(row), rate])
    text = table(
        [
            "token budget",
            "time, ms",
            "back to back, ms per step",
            "by the bill, ms",
            "floor, ms",
            "bound by",
            "floor / time",
            "tokens/s",
        ],
        rows,
    )
    if len(load.budgets) < 2:
        return text
    row = result.row(f"step_{load.name}_knee")
    why = state(row, COMPILED)
    if why is not None:
        knee = (
            f"The knee (the budget with the highest tokens / time²): {why}. The goal there is {KNEE_GOAL:.2f} of the "
            "floor."
        )
        return f"{text}\n\n{knee}"
    found = row["detail"]
    return (
        f"{text}\n\nThe knee, and what `jaxgen tune` would store: **{found['token_budget']} tokens**, "
        f"{fraction(row)} of the floor (goal {KNEE_GOAL:.2f}). By the ceilings alone the budget would be "
        f"{found.get('roofline_token_budget', 'unknown')}."
    )


def _served(result: Result) -> str:
    name, budget = f"step_{FULL.steps.name}_{FULL.served_budget}", FULL.served_budget
    rows = []
    ways = {"greedy": "", "top_p 0.9": "_top_p", "log-probabilities of one row": "_logprobs"}
    for title, suffix in (ways | {"greedy, sums of products not split": "_whole_sums"}).items():
        row = result.row(name + suffix)
        pieces = ("returns_seconds", "overlapped_seconds", "overlapped_returns_seconds")
        rows.append([title, ms(row), *(detail_ms(row, piece) for piece in pieces)])
    titles = [
        f"{budget} tokens, 256 rows",
        "time, ms",
        "call returns, ms",
        "back to back, ms per step",
        "back to back: call returns, ms",
    ]
    row = result.row(f"{name}_beside_copies")
    why = state(row)
    if why is not None:
        return f"{table(titles, rows)}\n\nWith copies of blocks to the host: {why}."
    found = row["detail"]
    rates = [number(found[key] / 1e9) for key in ("copied_bytes_per_second", "copied_alone_bytes_per_second")]
    return (
        f"{table(titles, rows)}\n\nDuring copies of blocks to the host, a step takes {ms(row)} ms; alone it "
        f"takes {detail_ms(row, 'alone_seconds')} ms. The copies reach {rates[0]} GB/s, and alone {rates[1]}."
    )


def _products(result: Result) -> str:
    rows = []
    for name, inputs, outputs in FULL.products:
        row = result.row(f"products_{name}")
        why = state(row)
        found = row.get("detail", {}).get("tokens", {})
        cells = [why or _product(found[str(tokens)]) for tokens in FULL.product_tokens]
        bits = result.row(f"bits_products_{name}")
        equal = state(bits) or ("equal" if bits["detail"]["equal"] else f"differ ({bits['detail']['unequal']})")
        rows.append([f"{name}, {inputs} to {outputs}", *cells, equal])
    of_bits = f"bits across {', '.join(map(str, FULL.bits_tokens))} rows"
    found = table(["TFLOP/s (of the ceiling), by tokens", *map(str, FULL.product_tokens), of_bits], rows)
    why = "A served step gives each product a fixed number of rows. So these differences do not change answers."
    return f"{found}\n\n{why}"


def _product(times: dict[str, float | None]) -> str:
    rate, share = times["flops_per_second"], times["of_ceiling"]
    assert rate is not None
    return f"{rate / 1e12:.0f}" if share is None else f"{rate / 1e12:.0f} ({share:.2f})"


def _launches(result: Result) -> str:
    name, budget = FULL.steps.name, FULL.served_budget
    rows = []
    for title, suffix in (("as it is", ""), ("without command buffers", "_without_command_buffers")):
        row = result.row(f"launches_{name}_{budget}{suffix}")
        found = row.get("detail", {})
        figures = [number(found.get(key)) for key in ("busy_share", "device_events", "graph_share")]
        rows.append([title, ms(row), *figures, number(sum(found["host_calls"].values()) if found else None)])
    shares = "share of time with GPU work", "device events", "share in graphs"
    text = table([f"step of {budget} tokens", "time, ms", *shares, "host calls"], rows)
    rows = []
    for title in ("decodes", "full"):
        row = result.row(f"host_step_{name}_{budget}_{title}")
        pieces = ("schedule_seconds", "dispatch_seconds", "complete_seconds", "host_seconds")
        rows.append([title, ms(row), *(detail_ms(row, piece) for piece in pieces), detail(row, "host_share")])
    titles = ["engine's step", "time, ms", "schedule, ms", "dispatch, ms", "complete, ms", "host, ms", "host's share"]
    return f"{text}\n\n{table(titles, rows)}"


def _offload(result: Result) -> str:
    rows = []
    for load in FULL.offloads:
        for name in _offload_names(load):
            row = result.row(name)
            found = row.get("detail", {})
            share = number(found["fraction_of_link"]) if "fraction_of_link" in found else fraction(row)
            rows.append(
                [
                    f"`{name}`",
                    detail(row, "kernels"),
                    ms(row),
                    rate(row),
                    share,
                    detail_ms(row, "reference_seconds"),
                ]
            )
    copies = table(["what", "kernels", "time, ms", "GB/s", "floor / time, or of the link", "XLA's own, ms"], rows)
    return f"{copies}\n\n{restored(result)}"


def _offload_names(load: OffloadLoad) -> list[str]:
    copies = [f"{name}_{load.name}" for name in ("gather_blocks", "scatter_blocks")]
    staging = [f"staging_{way}_{load.name}" for way in ("device_to_host", "host_to_device")]
    return [f"partial_recompute_{load.name}_{load.tokens}", *copies, *staging]


def _serving(result: Result) -> str:
    load = FULL.serving
    rows = []
    for title in ("jaxgen", "transformers"):
        row = result.row(f"serving_{load.name}_{title}")
        why = state(row)
        rate = "" if why is not None else f"{row['detail']['output_tokens_per_second']:,.0f}"
        rows.append([title, why or f"{row['seconds']:.2f}", rate])
    about = f"{load.requests} prompts of {load.prompt} tokens at once, answers of {load.answer}, a 1B Llama shape:"
    return f"{about}\n\n{table(['engine', 'time, s', 'output tokens/s'], rows)}"


def _checks(result: Result) -> str:
    rows = result.rows("smoke_", "check_", "parity_", "repeatability_", "sanitizer_")
    if not rows:
        return f"Kernels, parity and repeatability: {NOT_RUN}."
    held = [row for row in rows if row["state"] == State.RAN and row["failure"] is None]
    asked = [row for row in rows if row["state"] != State.NOT_NEEDED]
    failed = sum(row["failure"] is not None for row in asked)
    missing = len(asked) - len(held) - failed
    of_all = f"Of {len(asked)} checks of kernels, parity and repeatability"
    text = f"{of_all} {len(held)} held, {failed} failed, {missing} have no result."
    failures = [f"- failed: {one}" for one in result.about["failures"]]
    return "\n".join([text, "", *failures]) if failures else text


def _without_result(result: Result) -> str:
    names: dict[str, list[str]] = {}
    for row in result.about.get("rows", []):
        if row["state"] not in (State.RAN, State.NOT_NEEDED):
            names.setdefault(f"{row['state']}: {row['why'].splitlines()[0]}", []).append(row["name"])
    return "\n\n".join(f"{why}:\n\n{listed(of)}" for why, of in names.items()) or ("None." if result.about else "All.")


def listed(names: Iterable[str]) -> str:
    """Return names of rows as a block of text: they may be a hundred."""
    return "\n".join(["```text", *wrap(" ".join(names), 120), "```"])
