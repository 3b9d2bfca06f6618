"""The page of a comparison, docs/peers.md, from its records."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from textwrap import fill

from jaxgen.server.benchmark.metrics import SLAS
from scripts.peers.agreement import agree
from scripts.peers.load import LONG_ANSWER, OUTPUT_MEAN, PROMPT_MEAN, Cell
from scripts.peers.page_texts import ELSEWHERE, LONG_PROMPTS, OPEN_LOOPS, ROUNDING, TERMS
from scripts.peers.records import Line, Records, by_round
from scripts.peers.shapes import CLIENTS, DEFAULT, FORMATS, Shape
from scripts.peers.summary import HOW_TO_READ, ONLY, OURS, Goal, Loads, Rounds, overview, percentile_of, verdict
from scripts.peers.tables import in_ms, listed, middle, table, values, with_spread

SLA = "4"
"""FastGen's middle rate, tokens/s, where one number is compared."""
SLAS_SHOWN = [f"{sla:g}" for sla in SLAS]
GOALS = (
    Goal("output tokens/s", lambda cell: float(cell["output_tokens_per_s"]), is_time=False),
    Goal("first token (TTFT) P95", percentile_of("ttft_s", "p95"), is_time=True),
    Goal("gap between tokens P95", percentile_of("inter_token_s", "p95"), is_time=True),
    Goal("requests/s within targets", lambda cell: float(cell["effective_per_s"][SLA]), is_time=False),
)
WIDTH = 120
NOTHING = "**Nothing has been measured yet.**"


def write_page(parts: Iterable[str], path: Path) -> None:
    path.write_text("\n\n".join(parts).rstrip("\n") + "\n")


def paragraph(text: str) -> str:
    return fill(text, WIDTH, break_on_hyphens=False, break_long_words=False)


def point(text: str) -> str:
    return fill(text, WIDTH, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)


def sections(records: Records, shape: Shape) -> Iterator[str]:
    """Yield the parts of the page: which server is best at first, how that was measured last."""
    yield f"# jaxgen and other servers on a CPU: {shape.title}"
    servers = records.of_kind("server")
    if not servers:
        yield NOTHING
        yield made_by(shape)
        return
    by_format = {name: [one for one in servers if one["format"] == name] for name in values(servers, "format")}
    closed = {
        name: [(load.name, _rounds(mine, load)) for load in _loads(mine) if load.clients and not load.long_every]
        for name, mine in by_format.items()
    }
    yield purpose(records, shape)
    yield from choice(closed, GOALS)
    yield TERMS.format(prompt=PROMPT_MEAN, completion=OUTPUT_MEAN).strip("\n") if shape.name == DEFAULT else ELSEWHERE
    for name, mine in by_format.items():
        yield f"## {name}"
        yield from _figures(mine)
    yield from origin(records, rates(records), window(servers), agreement(servers))
    yield made_by(shape)


def choice(loads: Mapping[str, Loads], goals: Sequence[Goal]) -> Iterator[str]:
    """Yield the summary: in words, and as a table for each format."""
    yield "## Which server to choose"
    yield paragraph(verdict(loads.values(), goals))
    tables = [overview(name, mine, goals) for name, mine in loads.items()]
    yield paragraph(HOW_TO_READ + (ONLY if any("only " in one for one in tables) else ""))
    yield from tables


def purpose(records: Records, shape: Shape) -> str:
    """Return what is compared, in the first paragraph."""
    servers, machine = records.of_kind("server"), records.of_kind("machine")[-1]
    return paragraph(
        f"{listed(values(servers, 'peer'))} served the same model under the same load, one after another, on "
        f"{machine['cpu']}. The model is {shape.about}, with random weights. {shape.vocabulary}"
    )


def made_by(shape: Shape) -> str:
    load = "" if shape.load == CLIENTS else f" --load {shape.load}"
    return paragraph(
        f"`python -m scripts.peers{load} --shape {shape.name}` makes this page from docs/results/{shape.results.name}."
    )


def cells(servers: Iterable[Line], peer: str, load: Cell) -> Rounds:
    """Return a peer's figures of a load, by round; the newest where a round has several."""
    return by_round(servers, peer, asdict(load))


def _rounds(servers: list[Line], load: Cell) -> dict[str, Rounds]:
    """Return the figures of each server that has any."""
    found = {peer: cells(servers, peer, load) for peer in values(servers, "peer")}
    return {peer: rounds for peer, rounds in found.items() if rounds}


def ratios(ours: Rounds, theirs: Rounds, load: Cell) -> list[float]:
    """Of the rounds that have both figures; over 1 where ours is ahead."""
    pairs = [(ours[index], theirs[index]) for index in sorted(ours.keys() & theirs.keys())]
    if load.long_every:
        times = [(a["inter_token_s"]["p95"], b["inter_token_s"]["p95"]) for a, b in pairs]
        return [b / a for a, b in times if a and b]
    rates = [tuple(_rate(one, load) for one in pair) for pair in pairs]
    return [a / b for a, b in rates if a and b]


def _rate(cell: Line, load: Cell) -> float:
    return float(cell["effective_per_s"][SLA] if load.rate else cell["output_tokens_per_s"])


def _within_targets(cells: list[Line]) -> str:
    """Return the effective throughput at all SLAs; one number where they are equal."""
    texts = [f"{median(cell['effective_per_s'][sla] for cell in cells):.2f}" for sla in SLAS_SHOWN]
    return ", ".join(texts[:1] if len(set(texts)) == 1 else texts)


def _figures(servers: list[Line]) -> Iterator[str]:
    """Yield a table of all closed loops, one of all open loops, and one for each load with long prompts."""
    loads = _loads(servers)
    if found := [load for load in loads if load.clients and not load.long_every]:
        yield load_table([(load, _rounds(servers, load)) for load in found])
    if found := [load for load in loads if load.rate]:
        yield "### Requests at a rate"
        yield paragraph(OPEN_LOOPS)
        yield load_table([(load, _rounds(servers, load)) for load in found])
    for load in loads:
        if load.long_every:
            yield f"### {load.name}"
            yield paragraph(LONG_PROMPTS.format(answer=LONG_ANSWER))
            yield load_table([(load, _rounds(servers, load))])


def load_table(loads: Sequence[tuple[Cell, dict[str, Rounds]]]) -> str:
    """Return the figures of each server under loads of one kind."""
    rows = []
    for load, rounds in loads:
        for peer, theirs in rounds.items():
            mine = list(theirs.values())
            row = [f"{load.rate or load.clients:g}", peer]
            row += [middle(mine, "output_tokens_per_s"), _within_targets(mine)]
            row += [in_ms(mine, "ttft_s", q) for q in ("p50", "p95")]
            row += [in_ms(mine, "inter_token_s", q) for q in ("p50", "p95", "p99")]
            row += [middle([cell["long"] for cell in mine], "prompt_tokens_per_s")] if load.long_every else []
            rows.append([*row, "" if peer == OURS else with_spread(ratios(rounds.get(OURS, {}), theirs, load))])
    kind = loads[0][0]
    head = ["arriving/s" if kind.rate else "clients", "server", "tokens/s", "requests/s within targets"]
    head += ["TTFT P50", "P95", "gap P50", "P95", "P99"]
    return table([*head, *(["long prompts' tokens/s"] if kind.long_every else []), "jaxgen over it"], rows)


def origin(records: Records, *notes: str) -> Iterator[str]:
    """Yield how the figures were measured: the machine, rounds, ``notes``, the servers, and what failed."""
    servers = records.of_kind("server")
    yield "## How it was measured"
    yield "\n".join(map(point, [_machine(records.of_kind("machine")[-1], servers), turns(servers), *notes]))
    yield from _rounding(servers)
    yield servers_table(servers)
    yield from failures(records)


def turns(lines: list[Line]) -> str:
    """Return how often each server had its turn."""
    counts = {peer: len({one["round"] for one in lines if one["peer"] == peer}) for peer in values(lines, "peer")}
    times = (f"{peer} {'once' if count == 1 else f'{count} times'}" for peer, count in counts.items())
    return f"**Rounds.** The servers took turns: {listed(times)}."


def window(servers: list[Line]) -> str:
    """Return which part of a load is measured."""
    seconds, warmup = (" or ".join(f"{value:g}" for value in values(servers, name)) for name in ("seconds", "warmup"))
    return f"**Window.** Each load is measured for {seconds} s, after a warm-up of {warmup} s or more."


def rates(records: Records) -> str:
    """Return what the machine reaches."""
    limits = records.of_kind("machine")[-1]["limits"]
    return (
        f"**Rates.** Memory is read at {limits['memory_bytes_per_s'] / 1e9:.1f} GB/s. PyTorch's matmuls reach "
        f"{limits['float32_flops_per_s'] / 1e9:.0f} GFLOP/s in float32, {limits['bfloat16_flops_per_s'] / 1e9:.0f} in "
        "bfloat16."
    )


def _machine(machine: Line, servers: list[Line]) -> str:
    dates = " to ".join(sorted({server["started"][:10] for server in servers}))
    return (
        f"**Machine.** {machine['cpu']}, {machine['system']}, {dates}. Servers have {machine['threads']} threads. The "
        "client runs on the same cores."
    )


def _rounding(servers: list[Line]) -> Iterator[str]:
    formats = values(servers, "format")
    if any(FORMATS[name].is_quantised for name in formats):
        yield "Each server's own tool makes weights of fewer bits from the same bfloat16 weights, with its defaults:"
        known = [ROUNDING[peer] for peer in values(servers, "peer") if peer in ROUNDING]
        yield "\n".join(map(point, known))


def servers_table(servers: list[Line]) -> str:
    formats = values(servers, "format")
    rows = []
    for peer in values(servers, "peer"):
        mine = [server for server in servers if server["peer"] == peer]
        versions = ", ".join(f"{name} {version}" for name, version in mine[-1]["versions"].items())
        memory = [[server["peak_rss"] / 2**30 for server in mine if server["format"] == name] for name in formats]
        ready = median(server["start_seconds"] for server in mine)
        peaks = [f"{max(one):.2f}" if one else "-" for one in memory]
        rows.append([peer, versions, mine[-1]["note"], f"{ready:.0f}", *peaks])
    peaks = [f"{name}: peak memory, GiB" for name in formats]
    return table(["", "versions", "how it is run", "ready after, s", *peaks], rows)


def failures(records: Records) -> Iterator[str]:
    """Say what could not be measured, if anything."""
    if found := records.failures():
        yield "Not measured:"
        yield "\n".join(f"- {_failure(failure)}" for failure in found)


def _failure(failure: Line) -> str:
    lines = failure["error"].splitlines()
    what = f"{failure['peer']}, {failure['format']}, round {failure['round']}"
    return f"{what}: `{lines[0][:200]}`" + (f" ... `{lines[-1][:200]}`" if len(lines) > 1 else "")


def agreement(servers: list[Line]) -> str:
    """Return whether the servers compute the same model."""
    wrong = sum(cell["wrong_lengths"] for server in servers for cell in server["cells"])
    text = f"**Same model.** Completions of a wrong length: {wrong}."
    count, length, parts = 0, 0, []
    for name in values(servers, "format"):
        answers = {one["peer"]: one["answers"] for one in servers if one["format"] == name and one["answers"]}
        if ours := answers.pop(OURS, []):
            count, length = len(ours), len(ours[0])
            found = {peer: agree(ours, theirs) for peer, theirs in answers.items()}
            parts += [f"{name}: {', '.join(f'{peer} {first} and {every}' for peer, (first, every) in found.items())}"]
    if not parts:
        return text
    rounded = any(FORMATS[name].is_quantised for name in values(servers, "format"))
    why = "so rounding decides" + (", and each server rounds its weights in its own way" if rounded else "")
    return (
        f"{text} Of {count} greedy completions, these agree with jaxgen's in the first token, and in all {length}: "
        f"{'; '.join(parts)}. Random weights make several tokens nearly equally likely, {why}."
    )


def _loads(servers: list[Line]) -> list[Cell]:
    return sorted({Cell.of(cell) for server in servers for cell in server["cells"]})
