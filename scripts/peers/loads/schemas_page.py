"""The page of a comparison of answers under schemas, from its records."""

from collections.abc import Iterator
from statistics import median

from scripts.page.markdown import table
from scripts.peers.loads.schemas import MOST_TOKENS, PROMPT_TOKENS, WITH, WITHOUT, Schemas
from scripts.peers.page import NOTHING, choice, formats_of, made_by, origin, purpose, rounds_of, window
from scripts.peers.records import Line, Records
from scripts.peers.shapes import Shape
from scripts.peers.summary import OURS, Goal, Rounds, shown
from scripts.peers.tables import in_ms, with_spread

GOALS = (
    Goal("completions/s with the schema", lambda cell: float(cell[WITH]["requests_per_s"]), is_time=False),
    Goal("first token (TTFT) P95", lambda cell: cell[WITH]["ttft_s"]["p95"], is_time=True),
    Goal("gap between tokens P50", lambda cell: cell[WITH]["inter_token_s"]["p50"], is_time=True),
    Goal("gap P95", lambda cell: cell[WITH]["inter_token_s"]["p95"], is_time=True),
)
HOW = f"""
A *client* sends a request, reads the whole completion, and sends the next request. Prompts have {PROMPT_TOKENS} tokens.
At first every completion must fit a JSON schema, and has {MOST_TOKENS} tokens at most. Then the same load runs without
a schema. Each completion is then as long as that server's mean completion with it.

- In a *ticket*, most tokens are the only ones that fit: names of keys, and choices. An *order* is mostly free text.
- *With / without* is a server's tokens/s with the schema, divided by those without it.
- *jaxgen's lead* compares completions/s, not tokens/s: servers write the same form in different numbers of tokens.
- *Ended* is the share of completions that were not cut at {MOST_TOKENS} tokens. *TTFT* is the time to the first token.
  A *gap* is the time between two tokens. Times are in ms. Figures are medians of the rounds.
"""
REQUESTS = (
    "**Requests.** Prompts are token ids, no two alike. Decoding is greedy. The schemas are in "
    "scripts/peers/loads/forms.py. OpenVINO GenAI gets them as regular expressions. Its JSON schemas allow endless "
    "white space, and random weights then write nothing else."
)
COLUMNS = [
    "rounds",
    "tokens/s with the schema",
    "without",
    "with / without",
    "completions/s with the schema",
    "tokens per completion",
    "ended",
    "TTFT P50",
    "P95",
    "gap P50 with, without",
    "P95 with, without",
    "jaxgen's lead in completions/s",
]


def sections(records: Records, shape: Shape) -> Iterator[str]:
    yield "# JSON schemas on a CPU"
    servers = records.of_kind("server")
    if not servers:
        yield NOTHING
        yield made_by(shape)
        return
    by_format = formats_of(servers)
    yield purpose(records, shape)
    found = {name: [(load.name, rounds) for load, rounds in _loads(mine)] for name, mine in by_format.items()}
    yield from choice(found, GOALS)
    yield HOW.strip("\n")
    for name, mine in by_format.items():
        yield f"## {name}"
        for load, rounds in _loads(mine):
            yield f"### {load.name}"
            yield _figures(rounds)
    yield from origin(records, window(servers), REQUESTS)
    yield made_by(shape)


def _loads(servers: list[Line]) -> list[tuple[Schemas, dict[str, Rounds]]]:
    """Return each load, with the figures of each server that has any."""
    loads = sorted({Schemas.of(cell) for server in servers for cell in server["cells"]})
    return [(load, rounds_of(servers, load)) for load in loads]


def _figures(lines: dict[str, Rounds]) -> str:
    ours = lines.get(OURS, {})
    return table(["", *COLUMNS], [_row(peer, rounds, ours) for peer, rounds in lines.items()])


def _row(peer: str, rounds: Rounds, ours: Rounds) -> list[str]:
    halves = {name: [cell[name] for cell in rounds.values()] for name in (WITH, WITHOUT)}
    under = halves[WITH]

    def middle(name: str, key: str, digits: int = 0) -> str:
        return f"{median(half[key] for half in halves[name]):.{digits}f}"

    gaps = [", ".join(in_ms(halves[name], "inter_token_s", q) for name in (WITH, WITHOUT)) for q in ("p50", "p95")]
    ended = sum(half["ended"] for half in under) / sum(half["completed"] for half in under)
    speeds = [cell[WITH]["output_tokens_per_s"] / cell[WITHOUT]["output_tokens_per_s"] for cell in rounds.values()]
    return [
        peer,
        str(len(rounds)),
        middle(WITH, "output_tokens_per_s"),
        middle(WITHOUT, "output_tokens_per_s"),
        with_spread(f"{median(speeds):.2f}", speeds),
        middle(WITH, "requests_per_s", digits=2),
        middle(WITH, "answer_tokens"),
        f"{100 * ended:.0f} %",
        *(in_ms(under, "ttft_s", q) for q in ("p50", "p95")),
        *gaps,
        shown(GOALS[0], ours, rounds) if peer != OURS else "",
    ]
