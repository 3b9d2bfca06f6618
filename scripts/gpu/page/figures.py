"""Format a device's results as the sections of docs/results/gpu.md."""

from scripts.gpu.page.cells import (
    Column,
    Result,
    Row,
    filled,
    floor,
    fraction,
    ms,
    ms_in,
    number,
    of,
    quoted,
    rate,
    state,
)
from scripts.gpu.page.checks import checks, smoke, verdict, without_result
from scripts.gpu.result.report import BURST_RATE, COPY_RATE, MATRIX_RATE
from scripts.gpu.rows.sizes import FULL
from scripts.gpu.rows.work import OffloadLoad, StepLoad
from scripts.page.markdown import paragraphs

DECODE_GOAL, PROMPT_GOAL, KNEE_GOAL = 0.85, 0.60, 0.80
"""Goals as fractions of the floor: of the measured copy rate, of the measured matrix rate, and of both for the step at
the knee."""
CEILINGS = {
    COPY_RATE: ("copy on the device", 1e12, "TB/s"),
    MATRIX_RATE: ("bfloat16 matrix product", 1e12, "TFLOP/s"),
    BURST_RATE: ("bfloat16 matrix product, bursts of a few ms", 1e12, "TFLOP/s"),
    "host_to_device_pinned_bytes_per_second": ("host to device, pinned", 1e9, "GB/s"),
    "device_to_host_pinned_bytes_per_second": ("device to host, pinned", 1e9, "GB/s"),
    "host_to_device_pageable_bytes_per_second": ("host to device, pageable", 1e9, "GB/s"),
    "device_to_host_pageable_bytes_per_second": ("device to host, pageable", 1e9, "GB/s"),
}
STEP, SERVER = f"step_{FULL.steps.name}", f"server_{FULL.server.name}"
SERVED = f"{STEP}_{FULL.served_budget}"
OF_THE_HOST = """These rows are of an earlier version. It gave the device too little work, so that it measured how fast
the host dispatches. So {what} left out."""


def sections(result: Result) -> list[str]:
    """Return Markdown, one string for each section that has something to say."""
    parts = [
        ("In short", _in_short(result)),
        ("Ceilings", _ceilings(result)),
        ("Whether the kernels run", smoke(result)),
        ("Attention, one layer", _attention(result)),
        ("The step of Llama-3-8B", _steps(result, FULL.steps)),
        ("The step of OPT-6.7B", _steps(result, FULL.opt_steps)),
        ("The step as a server has it", _served(result)),
        ("A server as users start it", _server(result)),
        ("Other formats, and experts", _formats(result)),
        ("The products of a layer", _products(result)),
        ("The host and the launches", _launches(result)),
        ("Recomputing and staging KV", _offload(result)),
        ("Checks", checks(result)),
        ("Rows without a result", without_result(result)),
    ]
    return [f"### {title}\n\n{text}" for title, text in parts if text]


def _in_short(result: Result) -> str:
    """Return five numbers for users, of the rows that have run."""
    lines = []
    loads = {1: ("1 client", "inter_token_s", "{} ms between tokens")}
    loads |= {clients: (f"{clients} clients", "ttft_s", "the first after {} ms") for clients in (16, 256)}
    for clients, (who, times, said) in loads.items():
        if load := result.ran(f"{SERVER}_{clients}_clients"):
            rate, time = of("output_tokens_per_s")(load), ms_in(times, "p50")(load)
            lines.append(f"{who}: **{rate} output tokens/s**, {said.format(time)}")
    if step := result.ran(SERVED):
        time = ms_in("overlapped_seconds")(step)
        lines.append(f"A step of {FULL.served_budget} tokens: **{time} ms**; its floor is {floor(step)} ms")
    if first := result.ran(f"{SERVER}_start"):
        again = result.ran(f"{SERVER}_start_again")
        later = "" if again is None else f", a later one {number(again['seconds'])} s"
        lines.append(f"The first start: **{number(first['seconds'])} s**{later}")
    prompt, answer = FULL.server.prompt, FULL.server.answer
    about = f"""A server of Llama-3-8B's shape in bfloat16 with random weights. The client is `jaxgen benchmark`, with
prompts of {prompt} and answers of {answer} tokens; times are medians."""
    bullets = "\n".join(f"- {line}." for line in lines)
    return paragraphs(about, bullets, "Next to vLLM: **not measured**.") if lines else "Nothing of a server has run."


def _ceilings(result: Result) -> str:
    found, lines = result.about.get("ceilings", {}), []
    for name, (title, unit, of_it) in CEILINGS.items():
        if name in found:
            lines.append([title, f"{found[name] / unit:.3g} {of_it}"])
    return filled(["what this machine reaches", "rate"], lines)


def _attention(result: Result) -> str:
    others = {"XLA's own, ms": "xla_reference", "XLA, gathered first, ms": "xla_gathered"}
    others |= {"cuDNN, ms": "cudnn"}
    lines = []
    for load in FULL.attention:
        row, goal = result.row(load.name), DECODE_GOAL if load.rows[0][0] == 1 else PROMPT_GOAL
        own = [of("kernels")(row), ms(row), fraction(row), f"{goal:.2f}" if row else "", ms_in("plan_seconds")(row)]
        lines.append([f"`{load.name}`", *own, *(ms(result.row(f"{way}_{load.name}")) for way in others.values())])
    planning = "planning, once per step, ms (not included)"
    return filled(["load", "kernels", "time, ms", "floor / time", "goal", planning, *others], lines)


def _bound(result: Result, row: Row) -> str:
    ceilings = result.about.get("ceilings", {})
    if state(row) is not None or not {COPY_RATE, MATRIX_RATE} <= ceilings.keys():
        return ""
    memory, arithmetic = row["bytes"] / ceilings[COPY_RATE], row["flops"] / ceilings[MATRIX_RATE]
    return "memory" if memory > arithmetic else "arithmetic"


def _steps(result: Result, load: StepLoad) -> str:
    columns: list[Column] = [
        ("time, ms", ms),
        ("back to back, ms per step", ms_in("overlapped_seconds")),
        ("roofline estimate, ms", ms_in("bill", "seconds")),
        ("floor, ms", floor),
        ("bound by", lambda row: _bound(result, row)),
        ("floor / time", fraction),
        ("tokens/s", lambda row: "" if state(row) else f"{int(row['name'].split('_')[-1]) / row['seconds']:,.0f}"),
    ]
    names = {str(budget): f"step_{load.name}_{budget}" for budget in sorted(load.budgets)}
    knee = result.ran(f"step_{load.name}_knee")
    text = ""
    if knee is not None:
        found = knee["detail"]
        text = f"""The knee (the budget with the highest tokens / time²), which `jaxgen tune` would store:
**{found["token_budget"]} tokens**, {fraction(knee)} of the floor (goal {KNEE_GOAL:.2f}). By the ceilings alone the
budget would be {found.get("roofline_token_budget", "unknown")}."""
    return paragraphs(result.table("token budget", names, columns), text)


def _served(result: Result) -> str:
    ways = {f"{FULL.steps.rows} decodes and a prompt, greedy": "", "top_p 0.9": "_top_p"}
    ways |= {"log-probabilities of one row": "_logprobs", "greedy, sums of products not split": "_whole_sums"}
    names = {title: SERVED + suffix for title, suffix in ways.items()}
    names |= {f"decodes alone: {rows}": f"served_{FULL.steps.name}_{rows}" for rows in FULL.served_decodes}
    columns: list[Column] = [
        ("time, ms", ms),
        ("call returns, ms", ms_in("returns_seconds")),
        ("back to back, ms per step", ms_in("overlapped_seconds")),
        ("back to back: call returns, ms", ms_in("overlapped_returns_seconds")),
    ]
    text, row = "", result.ran(f"{SERVED}_beside_copies")
    if row is not None:
        both = [number(row["detail"][f"{key}_bytes_per_second"] / 1e9) for key in ("copied", "copied_alone")]
        alone = ms_in("alone_seconds")(row)
        text = f"""During copies of blocks to the host, a step takes {ms(row)} ms; alone it takes {alone} ms. The copies
reach {both[0]} GB/s, and alone {both[1]}."""
    return paragraphs(result.table(f"{FULL.served_budget} tokens, 256 rows", names, columns), text)


def _server(result: Result) -> str:
    load = FULL.server
    names = {str(clients): f"{SERVER}_{clients}_clients" for clients, _ in load.clients}
    columns: list[Column] = [
        ("output tokens/s", lambda row: state(row) or number(row["detail"]["output_tokens_per_s"])),
        ("requests/s", of("requests_per_s")),
        ("first token, ms, P50", ms_in("ttft_s", "p50")),
        ("P95", ms_in("ttft_s", "p95")),
        ("between tokens, ms, P50", ms_in("inter_token_s", "p50")),
        ("P95", ms_in("inter_token_s", "p95")),
    ]
    notes = []
    for title, suffix in (("The first start", "start"), ("a second one", "start_again")):
        row = result.ran(f"{SERVER}_{suffix}")
        if row is not None:
            cached = row["detail"]["cached_programs"]
            notes.append(f"{title} takes {number(row['seconds'])} s, with {cached} programs in its cache")
    verified = result.row(f"{SERVER}_verify_determinism")
    if verified:
        notes.append(f"`verify-determinism`: {verdict(verified)}")
    clients = result.table("clients", names, columns)
    about = f"Prompts of {load.prompt} tokens, answers of {load.answer} (means), random weights of Llama-3-8B's shape:"
    return paragraphs(about, clients, f"{'; '.join(notes)}." if notes else "") if clients else ""


def _formats(result: Result) -> str:
    names = [f"step_{load.name}_{budget}" for load in (*FULL.variants, FULL.moe_step) for budget in load.budgets]
    names.append(f"step_{FULL.whole_sums}_{FULL.variants[0].budgets[0]}_whole_sums")
    columns: list[Column] = [
        ("kernels", of("kernels")),
        ("time, ms", ms),
        ("back to back, ms", ms_in("overlapped_seconds")),
    ]
    columns += [
        ("by its roofline estimate, ms", ms_in("bill", "seconds")),
        ("floor, ms", floor),
        ("floor / time", fraction),
    ]
    experts = [f"expert_product_{one.name}" for one in FULL.expert_loads]
    of_experts: list[Column] = [
        ("kernels", of("kernels")),
        ("time, ms", lambda row: ms(row) if state(row) or _of_device(row) else f"at most {ms(row)}"),
        ("floor / time", lambda row: fraction(row) if _of_device(row) else ""),
        ("XLA's loop, ms", ms_in("loop_seconds")),
    ]
    old = any(state(row) is None and not _of_device(row) for row in map(result.row, experts))
    why = OF_THE_HOST.format(what="the share of the floor is") if old else ""
    return paragraphs(
        result.table("step", quoted(names), columns),
        result.table("product of experts", quoted(experts), of_experts),
        why,
    )


def _of_device(row: Row) -> bool:
    """Whether a row of products measured the device: if it says how long the host dispatched."""
    found = row.get("detail", {})
    return "dispatch_share" in found or any("dispatch_share" in one for one in found.get("tokens", {}).values())


def _products(result: Result) -> str:
    lines, old = [], False
    for name, inputs, outputs in FULL.products:
        row, bits = result.row(f"products_{name}"), result.row(f"bits_products_{name}")
        whole = result.row(f"{bits.get('name')}_whole_sums")
        old = old or (state(row) is None and not _of_device(row))
        found = row["detail"]["tokens"] if _of_device(row) else {}
        cells = [_product(found[str(tokens)]) if found else "" for tokens in FULL.product_tokens]
        lines.append([f"{name}, {inputs} to {outputs}", *cells, _equal(bits), _equal(whole)])
    of_bits = f"bits across {', '.join(map(str, FULL.bits_tokens))} rows"
    titles = ["TFLOP/s (of the ceiling), by tokens" if any(line[1] for line in lines) else "product"]
    text = filled([*titles, *map(str, FULL.product_tokens), of_bits, f"{of_bits}, whole sums"], lines)
    why = "A served step gives each product a fixed number of rows. So these differences do not change answers."
    return paragraphs(text, OF_THE_HOST.format(what="their rates are") if old else "", why) if text else ""


def _equal(row: Row) -> str:
    return state(row) or ("equal" if row["detail"]["equal"] else f"differ ({row['detail']['unequal']})")


def _product(times: dict[str, float | None]) -> str:
    rate, share = times["flops_per_second"], times["of_ceiling"]
    assert rate is not None
    return f"{rate / 1e12:.0f}" if share is None else f"{rate / 1e12:.0f} ({share:.2f})"


def _launches(result: Result) -> str:
    name = f"launches_{FULL.steps.name}_{FULL.served_budget}"
    columns: list[Column] = [("time, ms", ms), ("idle device", of("idle_share"))]
    columns += [("device events", of("device_events")), ("share in graphs", of("graph_share"))]
    columns.append(
        ("host calls", lambda row: number(sum(row.get("detail", {}).get("host_calls", {}).values()) or None))
    )
    rows = {"as it is": name, "without command buffers": f"{name}_without_command_buffers"}
    profile = result.table(f"step of {FULL.served_budget} tokens", rows, columns)
    pieces = [(f"{piece}, ms", ms_in(f"{piece}_seconds")) for piece in ("schedule", "dispatch", "complete", "host")]
    kinds = {kind: f"host_{SERVED}_{kind}" for kind in ("decodes", "full")}
    host = result.table("engine's step", kinds, [("time, ms", ms), ("idle device", of("idle_share")), *pieces])
    note = "The host works while the device does. So its time is not the time that the device waits." if host else ""
    return paragraphs(profile, host, note)


def _offload(result: Result) -> str:
    columns: list[Column] = [("kernels", of("kernels")), ("time, ms", ms), ("GB/s", rate)]
    columns += [
        ("floor / time, or of the link", lambda row: of("fraction_of_link")(row) or fraction(row)),
        ("XLA's own, ms", ms_in("reference_seconds")),
    ]
    copies = result.table("what", quoted(name for load in FULL.offloads for name in _offload_names(load)), columns)
    row = result.row(f"restore_{FULL.steps.name}_{FULL.restored_tokens}")
    lines = [[way, state(row) or ms_in(f"{way}_seconds")(row)] for way in ("transfer", "recompute", "plan")]
    titles = [f"an offloaded context of {FULL.restored_tokens:,} tokens", "first token after, ms"]
    return paragraphs(copies, filled(titles, lines))


def _offload_names(load: OffloadLoad) -> list[str]:
    copies = [f"{name}_{load.name}" for name in ("gather_blocks", "scatter_blocks")]
    staging = [f"staging_{way}_{load.name}" for way in ("device_to_host", "host_to_device")]
    return [f"partial_recompute_{load.name}_{load.tokens}", *copies, *staging]
