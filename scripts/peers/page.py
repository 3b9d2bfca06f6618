"""The page of a comparison, docs/peers.md, from its records."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from scripts.peers.agreement import agree
from scripts.peers.limits import fractions
from scripts.peers.load import LONG_ANSWER, LONG_EVERY_SECONDS, LONG_PROMPT, OUTPUT_MEAN, PROMPT_MEAN
from scripts.peers.records import Line, Records

OURS = "jaxgen"
INTRO = f"""# jaxgen beside its peers

Made by `python -m scripts.peers` from docs/results/peers.jsonl. All servers compute the same random weights of a Llama
shape (88 million parameters: hidden 768, 12 layers, 12 heads, 4 KV heads, 8,192 tokens), one after another on the same
machine with the same number of threads, the load beside them on the same cores. In a round every server has its turn.

- **Load**: closed loops of clients; prompts of {PROMPT_MEAN} and answers of {OUTPUT_MEAN} tokens on average, Normal
  with a standard deviation of 30 %; token ids, no two prompts alike, greedy, EOS ignored, so that all compute
  the same number of tokens. Everything goes over HTTP as server-sent events. Libraries without a server for this are
  behind a *minimal server* (scripts/peers/token_server.py), which neither validates nor makes text, as real ones must.
- **Long prompts**: meanwhile a prompt of {LONG_PROMPT:,} tokens (answer: {LONG_ANSWER}) arrives every
  {LONG_EVERY_SECONDS:g} s, whatever became of those before. The figures are the clients' alone, but for the last column
  but one: tokens/s of long prompts that got their first token.
- Every figure is of a window of time in the load, after a warm-up of the same load: tokens that arrived in it, TTFT of
  requests that started in it. Clients begin together, with prompts alone, so without long prompts no window begins
  before as many answers are there as clients. Times are in ms, figures are medians over rounds. *Ratios* are jaxgen's
  output tokens/s over the peer's in the same round (for long prompts the peer's P95 inter-token time over jaxgen's),
  with the least and the greatest of the rounds: over 1 jaxgen is ahead.
- *Of memory's rate*: bytes of all weights, once for as many output tokens as there are clients; *of products' rate*:
  the products of all tokens with the weights; each as part of what torch's own products reach on this machine.
- *Peak memory* is the greatest sum of the resident memory of a server's processes. *Ready after* is a median over
  rounds, so of starts that find what earlier ones compiled, in a cache apart from the user's.
"""
NOTHING = "\n**Nothing has been measured yet.**\n"


def write_page(records: Records, path: Path) -> None:
    path.write_text("\n\n".join(sections(records)).rstrip("\n") + "\n")


def sections(records: Records) -> Iterator[str]:
    yield INTRO.rstrip("\n")
    servers = records.of_kind("server")
    if not servers:
        yield NOTHING.strip("\n")
        return
    machine = records.of_kind("machine")[-1]
    yield _machine(machine, servers)
    yield "## The servers"
    yield _servers(servers)
    if failures := records.failures():
        yield "Not measured:"
        yield "\n".join(f"- {_failure(failure)}" for failure in failures)
    for dtype in _values(servers, "dtype"):
        mine = [server for server in servers if server["dtype"] == dtype]
        yield f"## {dtype}"
        yield _agreement(mine)
        yield _overview(mine)
        for clients, long_prompts in _loads(mine):
            with_long = f" beside prompts of {LONG_PROMPT:,} tokens" if long_prompts else ""
            yield f"### {clients} client{'s' * (clients != 1)}{with_long}"
            yield _load(mine, clients, long_prompts, machine["limits"])


def cells(servers: Iterable[Line], peer: str, clients: int, long_prompts: bool) -> dict[int, Line]:
    """A peer's figures of a load, by round; the newest where a round has several."""
    return {
        server["round"]: cell
        for server in servers
        if server["peer"] == peer
        for cell in server["cells"]
        if (cell["clients"], cell["long_prompts"]) == (clients, long_prompts)
    }


def ratios(ours: dict[int, Line], theirs: dict[int, Line], long_prompts: bool) -> list[float]:
    """Of the rounds that have both figures; over 1 where ours is ahead."""
    pairs = [(ours[index], theirs[index]) for index in sorted(ours.keys() & theirs.keys())]
    if long_prompts:
        times = [(a["inter_token_s"]["p95"], b["inter_token_s"]["p95"]) for a, b in pairs]
        return [b / a for a, b in times if a and b]
    rates = [(a["output_tokens_per_s"], b["output_tokens_per_s"]) for a, b in pairs]
    return [a / b for a, b in rates if a and b]


def with_spread(values: list[float]) -> str:
    if not values:
        return "-"
    return f"**{median(values):.2f}** ({min(values):.2f} to {max(values):.2f})"


def _machine(machine: Line, servers: list[Line]) -> str:
    limits = machine["limits"]
    dates = sorted(server["started"][:10] for server in servers)
    seconds, warmup = (" or ".join(f"{value:g}" for value in _values(servers, name)) for name in ("seconds", "warmup"))
    return (
        f"{machine['cpu']}, {machine['system']}, {machine['threads']} threads; {dates[0]} to {dates[-1]}; windows of "
        f"{seconds} s after {warmup} s or more. Memory is read at {limits['memory_bytes_per_s'] / 1e9:.1f} GB/s; "
        f"products reach {limits['float32_flops_per_s'] / 1e9:.0f} GFLOP/s in float32, "
        f"{limits['bfloat16_flops_per_s'] / 1e9:.0f} in bfloat16."
    )


def _servers(servers: list[Line]) -> str:
    dtypes = _values(servers, "dtype")
    rows = []
    for peer in _values(servers, "peer"):
        mine = [server for server in servers if server["peer"] == peer]
        versions = ", ".join(f"{name} {version}" for name, version in mine[-1]["versions"].items())
        memory = [[server["peak_rss"] / 2**30 for server in mine if server["dtype"] == dtype] for dtype in dtypes]
        ready = median(server["start_seconds"] for server in mine)
        rounds = str(len(_values(mine, "round")))
        peaks = [f"{max(one):.2f}" if one else "-" for one in memory]
        rows.append([peer, versions, mine[-1]["note"], rounds, f"{ready:.0f}", *peaks])
    peaks = [f"peak memory {dtype}, GiB" for dtype in dtypes]
    return _table(["", "versions", "how", "rounds", "ready after, s", *peaks], rows)


def _failure(failure: Line) -> str:
    lines = failure["error"].splitlines()
    what = f"{failure['peer']}, {failure['dtype']}, round {failure['round']}"
    return f"{what}: `{lines[0][:200]}`" + (f" ... `{lines[-1][:200]}`" if len(lines) > 1 else "")


def _agreement(servers: list[Line]) -> str:
    """Whether they compute the same model."""
    answers = {server["peer"]: server["answers"] for server in servers}
    found = []
    for peer, theirs in answers.items():
        if peer != OURS and OURS in answers:
            first, whole = agree(answers[OURS], theirs)
            found.append(f"{peer} {first} and {whole}")
    wrong = sum(cell["wrong_lengths"] for server in servers for cell in server["cells"])
    text = f"Answers of the wrong length: {wrong}."
    if found:
        count, length = len(answers[OURS]), len(answers[OURS][0])
        text += f" Of {count} prompts, those whose first token and whose {length} tokens agree with jaxgen's: "
        text += "; ".join(found) + "."
    return text


def _overview(servers: list[Line]) -> str:
    loads = [(clients, long_prompts) for clients, long_prompts in _loads(servers) if not long_prompts]
    rows = []
    for peer in _values(servers, "peer"):
        found = [list(cells(servers, peer, *load).values()) for load in loads]
        rows.append([peer, *(_middle(one, "output_tokens_per_s") for one in found)])
    return _table(["output tokens/s at clients", *(str(clients) for clients, _ in loads)], rows)


def _load(servers: list[Line], clients: int, long_prompts: bool, limits: dict[str, float]) -> str:
    ours = cells(servers, OURS, clients, long_prompts)
    rows = []
    for peer in _values(servers, "peer"):
        theirs = cells(servers, peer, clients, long_prompts)
        if mine := list(theirs.values()):
            parts = [fractions(limits, servers[0]["dtype"], cell) for cell in mine]
            rows.append(
                [
                    peer,
                    _middle(mine, "requests_per_s", digits=2),
                    _middle(mine, "output_tokens_per_s"),
                    *(_times(mine, "ttft_s", q) for q in ("p50", "p95")),
                    *(_times(mine, "inter_token_s", q) for q in ("p50", "p95", "p99")),
                    *(f"{100 * median(part[name] for part in parts):.0f} %" for name in PARTS),
                    *([_middle([cell["long"] for cell in mine], "prompt_tokens_per_s")] if long_prompts else []),
                    "" if peer == OURS else with_spread(ratios(ours, theirs, long_prompts)),
                ]
            )
    head = ["", "requests/s", "output tokens/s", "TTFT P50", "P95", "inter-token P50", "P95", "P99", *PARTS.values()]
    return _table(
        [*head, *(["long prompts' tokens/s", "P95 over jaxgen's"] if long_prompts else ["jaxgen over it"])], rows
    )


PARTS = {"memory": "of memory's rate", "products": "of products' rate"}


def _middle(found: list[Line], name: str, digits: int = 0) -> str:
    return f"{median(cell[name] for cell in found):.{digits}f}" if found else "-"


def _times(found: list[Line], name: str, q: str) -> str:
    """The median over rounds of a percentile, ms; none where some round has none, since it is infinite there."""
    times: list[Any] = [cell[name][q] for cell in found]
    if not times or None in times:
        return "-"
    return f"{1e3 * median(times):.{1 if median(times) < 0.1 else 0}f}"


def _loads(servers: list[Line]) -> list[tuple[int, bool]]:
    found = {(cell["long_prompts"], cell["clients"]) for server in servers for cell in server["cells"]}
    return [(clients, long_prompts) for long_prompts, clients in sorted(found)]


def _values(lines: Iterable[Line], name: str) -> list[Any]:
    """Those that occur, in the order in which they first do."""
    return list(dict.fromkeys(line[name] for line in lines))


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    """In Markdown."""
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
