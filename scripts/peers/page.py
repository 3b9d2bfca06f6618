"""The page of a comparison, docs/results/peers.md, from its records."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from scripts.page.markdown import listed, paragraph, point, table
from scripts.peers.agreement import agree
from scripts.peers.load import LONG_ANSWER, OUTPUT_MEAN, PROMPT_MEAN, Cell
from scripts.peers.page_texts import ELSEWHERE, ONE_FILE, OPEN_LOOPS, ROUNDING, SETTINGS, TERMS, TURNS
from scripts.peers.records import Line, Records, by_round
from scripts.peers.shapes import CLIENTS, DEFAULT, FORMATS, Shape
from scripts.peers.summary import (
    HOW_SHORT,
    HOW_TO_READ,
    NONE,
    ONLY,
    OURS,
    Goal,
    Loads,
    Rounds,
    overview,
    percentile_of,
    shown,
    verdict,
)
from scripts.peers.tables import in_ms, middle, values

SLA = "4"
"""FastGen's middle rate, tokens/s."""
TOKENS = Goal("output tokens/s", lambda cell: float(cell["output_tokens_per_s"]), is_time=False)
GAP = Goal("gap between tokens P95", percentile_of("inter_token_s", "p95"), is_time=True)
WITHIN = Goal("requests/s within targets", lambda cell: float(cell["effective_per_s"][SLA]), is_time=False)
GOALS = (TOKENS, Goal("first token (TTFT) P95", percentile_of("ttft_s", "p95"), is_time=True), GAP, WITHIN)
NOTHING = "**Nothing has been measured yet.**"


def sections(records: Records, shape: Shape) -> Iterator[str]:
    """Yield the parts of the page: which server is best at first, how that was measured last."""
    yield f"# jaxgen and other servers on a CPU: {shape.title}"
    servers = records.of_kind("server")
    if not servers:
        yield NOTHING
        yield made_by(shape)
        return
    by_format = formats_of(servers)
    closed = {
        name: [(load.name, rounds_of(mine, load)) for load in _loads(mine) if load.clients and not load.long_every]
        for name, mine in by_format.items()
    }
    yield purpose(records, shape)
    yield from choice(closed, GOALS, HOW_TO_READ if shape.name == DEFAULT else HOW_SHORT)
    terms = TERMS.format(prompt=PROMPT_MEAN, completion=OUTPUT_MEAN, answer=LONG_ANSWER).strip("\n")
    yield terms if shape.name == DEFAULT else ELSEWHERE
    for name, mine in by_format.items():
        yield f"## {name}"
        yield from _figures(mine)
    yield from origin(records, rates(records), window(servers), agreement(servers))
    yield made_by(shape)


def choice(loads: Mapping[str, Loads], goals: Sequence[Goal], how: str = HOW_SHORT) -> Iterator[str]:
    """Yield the summary: in words, and as a table for each format. ``how``: says how to read it."""
    yield "## Which server to choose"
    yield from in_words(loads, goals)
    tables = [overview(name, mine, goals) for name, mine in loads.items()]
    notes = {"only ": ONLY, "| none |": NONE}
    yield paragraph(how + "".join(note for word, note in notes.items() if word in "".join(tables)))
    yield from tables


def in_words(loads: Mapping[str, Loads], goals: Sequence[Goal]) -> Iterator[str]:
    """Yield in how many comparisons jaxgen is best, and a list of the others."""
    first, *behind = verdict(loads, goals)
    yield first
    if behind:
        yield "\n".join(map(point, behind))


def purpose(records: Records, shape: Shape) -> str:
    """Return what is compared, in the first paragraph."""
    servers, machine = records.of_kind("server"), records.of_kind("machine")[-1]
    return paragraph(
        f"{listed(values(servers, 'peer'))} served the same model under the same load, one after another, on "
        f"{machine['cpu']}. The model is {shape.about}, with random weights. {shape.vocabulary}"
    )


def made_by(shape: Shape) -> str:
    load = "" if shape.load == CLIENTS else f" --load {shape.load}"
    text = f"`python -m scripts.peers{load} --shape {shape.name} --page-only` makes this page from docs/results/"
    other = " To measure on your machine, give `--results FILE` in place of `--page-only`."
    return paragraph(f"{text}{shape.results.name}.{other if shape.name == DEFAULT and not load else ''}")


def formats_of(servers: list[Line]) -> dict[str, list[Line]]:
    """Return the servers' lines by format."""
    return {name: [one for one in servers if one["format"] == name] for name in values(servers, "format")}


def rounds_of(servers: list[Line], load: Any) -> dict[str, Rounds]:
    """Return the figures of each server that has any under a load, which is a dataclass."""
    found = {peer: by_round(servers, peer, asdict(load)) for peer in values(servers, "peer")}
    return {peer: rounds for peer, rounds in found.items() if rounds}


def _figures(servers: list[Line]) -> Iterator[str]:
    """Yield a table of all closed loops, one of all open loops, and one for each load with long prompts."""
    loads = _loads(servers)
    if found := [load for load in loads if load.clients and not load.long_every]:
        yield load_table([(load, rounds_of(servers, load)) for load in found])
    if found := [load for load in loads if load.rate]:
        yield "### Requests at a rate"
        yield paragraph(OPEN_LOOPS)
        yield load_table([(load, rounds_of(servers, load)) for load in found])
    for load in loads:
        if load.long_every:
            yield f"### {load.name}"
            yield load_table([(load, rounds_of(servers, load))])


def load_table(loads: Sequence[tuple[Cell, dict[str, Rounds]]]) -> str:
    """Return the figures of each server under loads of one kind."""
    kind = loads[0][0]
    goal = GAP if kind.long_every else WITHIN if kind.rate else TOKENS
    rows = []
    for load, rounds in loads:
        for peer, theirs in rounds.items():
            mine = list(theirs.values())
            row = [f"{load.rate:g}", _came(mine)] if load.rate else [str(load.clients)]
            row += [peer, str(len(mine)), middle(mine, "output_tokens_per_s"), f"{WITHIN.middle(theirs):.2f}"]
            row += [in_ms(mine, "ttft_s", q) for q in ("p50", "p95")]
            row += [in_ms(mine, "inter_token_s", q) for q in ("p50", "p95", "p99")]
            row += [middle([cell["long"] for cell in mine], "prompt_tokens_per_s")] if load.long_every else []
            rows.append([*row, "" if peer == OURS else shown(goal, rounds.get(OURS, {}), theirs)])
    head = ["planned/s", "came/s"] if kind.rate else ["clients"]
    head += ["server", "rounds", "tokens/s", "requests/s within targets"]
    head += ["TTFT P50", "P95", "gap P50", "P95", "P99", *(["long prompts' tokens/s"] if kind.long_every else [])]
    return table([*head, f"jaxgen's lead in {goal.title}"], rows)


def _came(cells: list[Line]) -> str:
    """Return how many requests arrived in a second of the window."""
    return f"{median(cell['ttft_s']['count'] / cell['seconds'] for cell in cells):.1f}"


def origin(records: Records, *notes: str) -> Iterator[str]:
    """Yield how the figures were measured: the machine, rounds, ``notes``, the servers, and what failed."""
    servers = records.of_kind("server")
    yield "## How it was measured"
    yield "\n".join(map(point, [_machine(records.of_kind("machine")[-1], servers), TURNS, *notes]))
    yield from _rounding(servers)
    yield servers_table(servers)
    yield from filter(None, ["\n".join(point(SETTINGS[peer]) for peer in values(servers, "peer") if peer in SETTINGS)])
    yield from failures(records)


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
    if any(FORMATS[name].is_file for name in formats):
        yield ONE_FILE


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
            parts += [
                f"in {name} {first} first tokens and {every} completions of {peer}"
                for peer, (first, every) in found.items()
            ]
    if not parts:
        return text
    rounded = any(FORMATS[name].is_quantised for name in values(servers, "format"))
    why = "so rounding decides" + (", and each server rounds its weights in its own way" if rounded else "")
    return (
        f"{text} Each server completed the same {count} prompts greedily, with {length} tokens each. "
        f"Equal to jaxgen's are {'; '.join(parts)}. Random weights make several tokens nearly equally likely, {why}."
    )


def _loads(servers: list[Line]) -> list[Cell]:
    return sorted({Cell.of(cell) for server in servers for cell in server["cells"]})
