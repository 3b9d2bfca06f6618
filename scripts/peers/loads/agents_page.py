"""The page of a comparison under agents' loads, from its records."""

from collections.abc import Iterator
from statistics import median

from scripts.page.markdown import table
from scripts.peers.loads.agents import Agents
from scripts.peers.page import NOTHING, agreement, choice, formats_of, made_by, origin, purpose, rounds_of
from scripts.peers.records import Records
from scripts.peers.shapes import Shape
from scripts.peers.summary import OURS, Goal, Rounds, percentile_of, shown
from scripts.peers.tables import in_ms, middle

GOALS = (
    Goal("first token (TTFT) P50", percentile_of("ttft_s", "p50"), is_time=True),
    Goal("TTFT P95", percentile_of("ttft_s", "p95"), is_time=True),
    Goal("TTFT of first turns", lambda cell: float(cell["ttft_by_turn_s"][0]), is_time=True),
    Goal("gap between tokens P95", percentile_of("inter_token_s", "p95"), is_time=True),
    Goal("output tokens/s", lambda cell: float(cell["output_tokens_per_s"]), is_time=False),
)
HOW = """
An *agent* has a conversation of several turns. All agents begin together, with the same system prompt of {system:,}
tokens. A turn sends all tokens before it and {new} new ones. It gets a completion of {answer} tokens or of a drawn
length. The next turn follows at once.

- *TTFT* is the time to the first token, of all turns after the first. *TTFT of first turns* is the median of the first
  turns alone. A *gap* is the time between two tokens. Times are in ms.
- *Computed again* counts tokens of a turn's prompt that the server has had before and computes once more: the median
  over turns, and the most. A conversation's last token is always one of them.
- Figures are medians of the *rounds*. In brackets: the least and the greatest lead in a single round.
"""
REQUESTS = (
    "**Requests.** Prompts are token ids. Decoding is greedy and ignores EOS. Each round has other prompts, so at "
    "first nothing is cached. Every server has its prefix cache on."
)
EQUAL_LENGTHS = (
    "**Equal lengths.** Where all completions are equally long, the agents stay one step apart. Each turn then comes "
    "while the prompt of the one before is computed. jaxgen waits a moment for such turns "
    "([tuning.md](../tuning.md#a-wait-after-an-answer))."
)


def sections(records: Records, shape: Shape) -> Iterator[str]:
    yield f"# Agents' conversations on a CPU: {shape.title}"
    servers = records.of_kind("server")
    if not servers:
        yield NOTHING
        yield made_by(shape)
        return
    loads = sorted({Agents.of(cell) for server in servers for cell in server["cells"]})
    by_format = formats_of(servers)
    columns = {name: [(load, rounds_of(mine, load)) for load in loads] for name, mine in by_format.items()}
    yield purpose(records, shape)
    yield from choice({name: [(load.name, rounds) for load, rounds in one] for name, one in columns.items()}, GOALS)
    yield HOW.format(system=loads[0].system, new=loads[0].new, answer=loads[0].answer).strip("\n")
    for name, mine in columns.items():
        yield f"## {name}"
        yield _figures(mine)
        yield "TTFT by turn:"
        yield _by_turn(mine)
    yield from origin(records, REQUESTS, EQUAL_LENGTHS, agreement(servers))
    yield made_by(shape)


def _figures(loads: list[tuple[Agents, dict[str, Rounds]]]) -> str:
    rows = []
    for load, lines in loads:
        for peer, rounds in lines.items():
            mine, ours = list(rounds.values()), lines.get(OURS, {})
            times = [in_ms(mine, "ttft_s", q) for q in ("p50", "p95")]
            gaps = [in_ms(mine, "inter_token_s", q) for q in ("p50", "p95")]
            first = in_ms(mine, "ttft_by_turn_s", 0)
            rate = middle(mine, "output_tokens_per_s")
            leads = [shown(goal, ours, rounds) if peer != OURS else "" for goal in GOALS[:2]]
            rows.append([load.name, peer, str(len(mine)), *times, first, *gaps, rate, _again(rounds), *leads])
    head = ["load", "server", "rounds", "TTFT P50", "P95", "TTFT of first turns", "gap P50", "P95", "tokens/s"]
    return table([*head, "computed again", "jaxgen's lead in TTFT P50", "in TTFT P95"], rows)


def _again(rounds: Rounds) -> str:
    known = [cell["computed_again"] for cell in rounds.values() if cell["computed_again"]]
    return f"{median(one['median'] for one in known):g}, {max(one['most'] for one in known)}" if known else "-"


def _by_turn(loads: list[tuple[Agents, dict[str, Rounds]]]) -> str:
    """Return the medians of TTFT by turn."""
    most = max(load.turns for load, _ in loads)
    rows = [
        [load.name, peer, *(in_ms(list(rounds.values()), "ttft_by_turn_s", turn) for turn in range(load.turns))]
        for load, lines in loads
        for peer, rounds in lines.items()
    ]
    return table(
        ["load", "server", *map(str, range(1, most + 1))], [row + [""] * (most + 2 - len(row)) for row in rows]
    )
