"""The page of a comparison, docs/peers.md, from its records."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import median
from textwrap import fill
from typing import Any

from jaxgen.server.benchmark.metrics import SLAS
from scripts.peers.agreement import agree
from scripts.peers.load import LONG_ANSWER, LONG_PROMPT, OUTPUT_MEAN, PROMPT_MEAN, Cell
from scripts.peers.records import Line, Records, by_round
from scripts.peers.shapes import DEFAULT, FORMATS, Shape

OURS = "jaxgen"
SLAS_SHOWN = [f"{sla:g}" for sla in SLAS]
HEAD = (
    "Made by `python -m scripts.peers --shape {name}` from docs/results/peers-{name}.jsonl. All servers compute the "
    "same random weights of {about}. They run one after another on the same machine, with the same number of threads. "
    "The load runs on the same cores. In a round every server has its turn."
)
MEASURED = f"""
## What is measured

- **Load**: closed loops of clients. Each client sends its next request when the one before ends. Prompts have
  {PROMPT_MEAN} and completions {OUTPUT_MEAN} tokens on average (normal distribution, standard deviation 30 %).
- **Requests**: prompts are token ids, and no two are alike. Decoding is greedy and ignores EOS, so all servers compute
  the same number of tokens.
- **Minimal server**: OpenVINO and transformers are libraries. They are behind a small HTTP server
  (scripts/peers/token_server.py) that neither validates requests nor makes text, which real servers must do.
- **Open loops**: the same requests arrive by a Poisson process, whether earlier requests have ended or not.
- **Long prompts**: during a closed loop, a prompt of {LONG_PROMPT:,} tokens (completion: {LONG_ANSWER}) arrives every
  few seconds. The columns show the clients of the loop alone, except "long prompts' tokens/s".

## What the columns mean

- Times are in ms. Figures are medians over rounds. "One round" means that there is no spread.
- *TTFT*: time to first token. *Inter-token*: time between tokens. Both are of the requests in a window of some seconds
  after a warm-up.
- *Effective* requests/s are FastGen's ([benchmark.md](benchmark.md)). The first token comes within prompt tokens /
  512 s, and later tokens come at SLA tokens/s or faster.
- *jaxgen over it*: jaxgen's output tokens/s over the peer's in the same round, with the least and the greatest of the
  rounds. jaxgen is ahead where it is over 1. In open loops it compares effective requests/s at an SLA of 4.
- *P95 over jaxgen's*: the peer's P95 inter-token time over jaxgen's. jaxgen is ahead where it is over 1.
- *Peak memory*: the greatest sum of the resident memory of a server's processes.
- *Ready after*: the seconds until the server is ready. Most starts find programs that earlier starts compiled.
"""
ELSEWHERE = "[peers.md](peers.md#what-is-measured) says what is measured, and what the columns mean."
ROUNDED = """
Each peer's own tool rounds the same bfloat16 weights to 8 and 4 bits, with the tool's defaults:

- jaxgen: `jaxgen serve --quantization`.
- OpenVINO: `optimum-cli export openvino --weight-format`. 8 bits are by channel and asymmetric. 4 bits are in groups of
  128 and asymmetric, with the head in 8 bits.
- llama.cpp: `llama-quantize`, in blocks of 32. With 4 bits the tied head is in Q6_K.
"""
WIDTH = 120
CURVE = """
## Early first tokens or short gaps

Each point is a rule for how much of a step prompts may take, in a simulation with this machine's step times. Crosses
are measured. The default ([tuning.md](tuning.md#where-padding-costs-nothing)) lets a step take at most 6 times as long
as without prompts. With more, first tokens come hardly earlier.

![P95 between tokens over time to first token](fill.png)
"""
NOTHING = "\n**Nothing has been measured yet.**\n"


def write_page(parts: Iterable[str], path: Path) -> None:
    path.write_text("\n\n".join(parts).rstrip("\n") + "\n")


def sections(records: Records, shape: Shape) -> Iterator[str]:
    yield f"# jaxgen compared with its peers: {shape.name.upper()}"
    yield fill(HEAD.format(name=shape.name, about=shape.about), WIDTH, break_on_hyphens=False)
    servers = records.of_kind("server")
    if not servers:
        yield NOTHING.strip("\n")
        return
    by_format = {name: [one for one in servers if one["format"] == name] for name in values(servers, "format")}
    yield "## In short"
    for name, mine in by_format.items():
        yield _overview(mine, name)
    yield MEASURED.strip("\n") if shape.name == DEFAULT else ELSEWHERE
    machine = records.of_kind("machine")[-1]
    if any(FORMATS[name].is_quantised for name in by_format):
        yield ROUNDED.strip("\n")
    yield _machine(machine, servers)
    yield "## The servers"
    yield servers_table(servers)
    yield from failures(records)
    if shape.name == DEFAULT:
        yield CURVE.strip("\n")
    for name, mine in by_format.items():
        yield f"## {name}"
        yield agreement(mine)
        yield _effective(mine)
        for load in _loads(mine):
            yield f"### {load.name}"
            yield _load(mine, load)


def cells(servers: Iterable[Line], peer: str, load: Cell) -> dict[int, Line]:
    """A peer's figures of a load, by round; the newest where a round has several."""
    return by_round(servers, peer, asdict(load))


def ratios(ours: dict[int, Line], theirs: dict[int, Line], load: Cell) -> list[float]:
    """Of the rounds that have both figures; over 1 where ours is ahead."""
    pairs = [(ours[index], theirs[index]) for index in sorted(ours.keys() & theirs.keys())]
    if load.long_every:
        times = [(a["inter_token_s"]["p95"], b["inter_token_s"]["p95"]) for a, b in pairs]
        return [b / a for a, b in times if a and b]
    rates = [tuple(_rate(one, load) for one in pair) for pair in pairs]
    return [a / b for a, b in rates if a and b]


def _rate(cell: Line, load: Cell) -> float:
    return float(cell["effective_per_s"]["4"] if load.rate else cell["output_tokens_per_s"])


def with_spread(values: list[float]) -> str:
    if not values:
        return "-"
    if len(values) == 1:
        return f"**{values[0]:.2f}** (one round)"
    return f"**{median(values):.2f}** ({min(values):.2f} to {max(values):.2f})"


def _machine(machine: Line, servers: list[Line]) -> str:
    limits = machine["limits"]
    dates = " to ".join(sorted({server["started"][:10] for server in servers}))
    seconds, warmup = (" or ".join(f"{value:g}" for value in values(servers, name)) for name in ("seconds", "warmup"))
    return (
        f"Measured on {machine['cpu']}, {machine['system']}, {machine['threads']} threads, {dates}. "
        f"Windows are {seconds} s long and begin after {warmup} s or more. "
        f"Memory is read at {limits['memory_bytes_per_s'] / 1e9:.1f} GB/s. "
        f"torch's matmuls reach {limits['float32_flops_per_s'] / 1e9:.0f} GFLOP/s in float32, "
        f"{limits['bfloat16_flops_per_s'] / 1e9:.0f} in bfloat16."
    )


def opening(records: Records, loads: str) -> Iterator[str]:
    """Yield what stands before the figures: ``loads``, the machine, the servers, and what could not be measured."""
    servers = records.of_kind("server")
    machine = records.of_kind("machine")[-1]
    date = max(server["started"] for server in servers)[:10]
    yield loads.strip("\n")
    yield f"{machine['cpu']}, {machine['system']}, {machine['threads']} threads; {date}."
    yield "## The servers"
    yield servers_table(servers)
    yield from failures(records)


def servers_table(servers: list[Line]) -> str:
    formats = values(servers, "format")
    rows = []
    for peer in values(servers, "peer"):
        mine = [server for server in servers if server["peer"] == peer]
        versions = ", ".join(f"{name} {version}" for name, version in mine[-1]["versions"].items())
        memory = [[server["peak_rss"] / 2**30 for server in mine if server["format"] == name] for name in formats]
        ready = median(server["start_seconds"] for server in mine)
        rounds = str(len(values(mine, "round")))
        peaks = [f"{max(one):.2f}" if one else "-" for one in memory]
        rows.append([peer, versions, mine[-1]["note"], rounds, f"{ready:.0f}", *peaks])
    peaks = [f"peak memory {name}, GiB" for name in formats]
    return table(["", "versions", "how", "rounds", "ready after, s", *peaks], rows)


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
    """Whether they compute the same model."""
    answers = {server["peer"]: server["answers"] for server in servers}
    parts = []
    for peer, theirs in answers.items():
        if peer != OURS and OURS in answers:
            first, whole = agree(answers[OURS], theirs)
            parts.append(f"{peer} {first} and {whole}")
    wrong = sum(cell["wrong_lengths"] for server in servers for cell in server["cells"])
    text = f"Completions of the wrong length: {wrong}."
    if parts:
        count, length = len(answers[OURS]), len(answers[OURS][0])
        text += f" Of {count} completions, these agree with jaxgen's in the first token, and in all {length}: "
        text += "; ".join(parts) + "."
        text += " Random weights give several tokens nearly the same probability, so rounding decides between them."
    return text


def _overview(servers: list[Line], name: str) -> str:
    loads = [load for load in _loads(servers) if load.clients and not load.long_every]
    rows = []
    for peer in values(servers, "peer"):
        by_load = [list(cells(servers, peer, load).values()) for load in loads]
        rows.append([peer, *(_middle(one, "output_tokens_per_s") for one in by_load)])
    return table([f"{name}: output tokens/s with clients", *(str(load.clients) for load in loads)], rows)


def _effective(servers: list[Line]) -> str:
    """The medians at each load and the greatest of them, by SLA."""
    loads = [load for load in _loads(servers) if not load.long_every]
    rows = []
    for peer in values(servers, "peer"):
        by_load = [list(cells(servers, peer, load).values()) for load in loads]
        rates = [[median(cell["effective_per_s"][sla] for cell in one) for sla in SLAS_SHOWN if one] for one in by_load]
        most = [max(column) for column in zip(*filter(None, rates), strict=True)]
        rows.append([peer, *map(_listed, rates), _listed(most)])
    slas = ", ".join(SLAS_SHOWN)
    return table([f"effective requests/s at SLA {slas}", *(load.name for load in loads), "the most"], rows)


def _listed(rates: Iterable[float]) -> str:
    return ", ".join(f"{rate:.2f}" for rate in rates) or "-"


def _load(servers: list[Line], load: Cell) -> str:
    ours = cells(servers, OURS, load)
    rows = []
    for peer in values(servers, "peer"):
        theirs = cells(servers, peer, load)
        if mine := list(theirs.values()):
            rows.append(
                [
                    peer,
                    _middle(mine, "requests_per_s", digits=2),
                    _middle(mine, "output_tokens_per_s"),
                    *(_times(mine, "ttft_s", q) for q in ("p50", "p95")),
                    *(_times(mine, "inter_token_s", q) for q in ("p50", "p95", "p99")),
                    *([_middle([cell["long"] for cell in mine], "prompt_tokens_per_s")] if load.long_every else []),
                    "" if peer == OURS else with_spread(ratios(ours, theirs, load)),
                ]
            )
    head = ["", "requests/s", "output tokens/s", "TTFT P50", "P95", "inter-token P50", "P95", "P99"]
    return table(
        [*head, *(["long prompts' tokens/s", "P95 over jaxgen's"] if load.long_every else ["jaxgen over it"])], rows
    )


def _middle(lines: list[Line], name: str, digits: int = 0) -> str:
    return f"{median(cell[name] for cell in lines):.{digits}f}" if lines else "-"


def _times(lines: list[Line], name: str, q: str) -> str:
    """The median over rounds of a percentile, ms; none where some round has none, since it is infinite there."""
    times: list[Any] = [cell[name][q] for cell in lines]
    if not times or None in times:
        return "-"
    return f"{1e3 * median(times):.{1 if median(times) < 0.1 else 0}f}"


def _loads(servers: list[Line]) -> list[Cell]:
    return sorted({Cell.of(cell) for server in servers for cell in server["cells"]})


def values(lines: Iterable[Line], name: str) -> list[Any]:
    """Return the different values, in the order in which they first occur."""
    return list(dict.fromkeys(line[name] for line in lines))


def table(head: list[str], rows: Iterable[list[str]]) -> str:
    """In Markdown."""
    rule = f"|---|{'---:|' * (len(head) - 1)}"
    top, *body = ("| " + " | ".join(line) + " |" for line in (head, *rows))
    return "\n".join((top, rule, *body))
