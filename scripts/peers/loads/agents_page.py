"""The page of a comparison under agents' loads, from its records."""

from collections.abc import Iterator
from dataclasses import asdict
from statistics import median
from textwrap import fill

from scripts.peers.loads.agents import Agents, in_ms
from scripts.peers.page import OURS, WIDTH, agreement, opening, table, values, with_spread
from scripts.peers.records import Line, Records, by_round
from scripts.peers.shapes import Shape

HEAD = (
    "Made by `python -m scripts.peers --load agents --shape {name}` from docs/results/peers-agents-{name}.jsonl. All "
    "servers compute the same random weights of {about}. They run one after another on the same machine, with the same "
    "number of threads. The load runs on the same cores. In a round every server has its turn."
)
LOADS = """
- **Load**: conversations that begin together, over one system prompt of {system:,} tokens. A turn adds {new} new tokens
  and gets an answer of {answer}, or of lengths that are drawn, without a pause between turns. A turn sends all tokens
  before it, with the answers as the server gave them.
- **Equal answers**: where all answers are equally long, the agents stay one step apart. If a server begins its next
  step at once, each turn comes while the prompt of the one before is computed, and waits for it. jaxgen waits a moment
  for such turns ([tuning.md](tuning.md#a-wait-after-an-answer)).
- **Requests**: prompts are token ids. Decoding is greedy and ignores EOS. Each round has other prompts, so nothing is
  cached at first.
- *TTFT* is of turns after the first. *Of the first turns* is the median of the first turns alone. Times are in ms.
  Figures are medians over rounds.
- *Ratios* are the peer's TTFT over jaxgen's in the same round, with the least and the greatest. jaxgen is ahead where
  the ratio is over 1.
- *Computed again*: tokens of a turn's prompt that the server had before and did not find in its cache, as the median
  over turns and the most. A conversation's last token is one of them. A server that does not report its cached tokens
  has no figure.
- Every server has its prefix cache on. A library without a server for this is behind a *minimal server*
  (scripts/peers/token_server.py). It neither validates requests nor makes text, which real servers must do.
"""
NOTHING = "**Nothing has been measured yet.**"


def sections(records: Records, shape: Shape) -> Iterator[str]:
    yield f"# Agents at jaxgen and its peers: {shape.name.upper()}"
    yield fill(HEAD.format(name=shape.name, about=shape.about), WIDTH, break_on_hyphens=False)
    servers = records.of_kind("server")
    if not servers:
        yield NOTHING
        return
    loads = sorted({Agents.of(cell) for server in servers for cell in server["cells"]})
    system, new, answer = loads[0].system, loads[0].new, loads[0].answer
    yield from opening(records, LOADS.format(system=system, new=new, answer=answer))
    for name in values(servers, "format"):
        mine = [server for server in servers if server["format"] == name]
        yield f"## {name}"
        yield agreement(mine)
        for load in loads:
            rounds_of = {peer: by_round(mine, peer, asdict(load)) for peer in values(mine, "peer")}
            rounds_of = {peer: rounds for peer, rounds in rounds_of.items() if rounds}
            yield f"### {load.name}"
            yield _figures(rounds_of)
            yield _by_turn(rounds_of, load.turns)


def _figures(lines: dict[str, dict[int, Line]]) -> str:
    head = ["", "TTFT P50", "P95", "of the first turns", "inter-token P50", "P95", "output tokens/s", "computed again"]
    rows = []
    for peer, rounds in lines.items():
        times = [_ms(rounds, "ttft_s", q) for q in ("p50", "p95")]
        gaps = [_ms(rounds, "inter_token_s", q) for q in ("p50", "p95")]
        first = _ms(rounds, "ttft_by_turn_s", 0)
        rate = f"{median(cell['output_tokens_per_s'] for cell in rounds.values()):.0f}"
        ratios = [with_spread(_ratios(lines.get(OURS, {}), rounds, q)) if peer != OURS else "" for q in ("p50", "p95")]
        rows.append([peer, *times, first, *gaps, rate, _again(rounds), *ratios])
    return table([*head, "TTFT P50 over jaxgen's", "P95 over jaxgen's"], rows)


def _ratios(ours: dict[int, Line], theirs: dict[int, Line], q: str) -> list[float]:
    return [theirs[index]["ttft_s"][q] / ours[index]["ttft_s"][q] for index in sorted(ours.keys() & theirs.keys())]


def _ms(rounds: dict[int, Line], name: str, key: str | int) -> str:
    """Return the median of a figure over rounds; none where some round has none."""
    times = [cell[name][key] for cell in rounds.values()]
    return in_ms(None if None in times else median(times))


def _again(rounds: dict[int, Line]) -> str:
    known = [cell["computed_again"] for cell in rounds.values() if cell["computed_again"]]
    return f"{median(one['median'] for one in known):g}, {max(one['most'] for one in known)}" if known else "-"


def _by_turn(lines: dict[str, dict[int, Line]], turns: int) -> str:
    """Return the medians of TTFT, and of cached tokens of servers that say, by turn."""
    rows = []
    for peer, rounds in lines.items():
        times = [_ms(rounds, "ttft_by_turn_s", turn) for turn in range(turns)]
        rows.append([f"{peer}: TTFT", *times])
        cached = [[cell["cached_by_turn"][turn] for cell in rounds.values()] for turn in range(turns)]
        if all(None not in one for one in cached):
            rows.append([f"{peer}: cached tokens", *(f"{median(one):g}" for one in cached)])
    return table(["by turn", *map(str, range(1, turns + 1))], rows)
