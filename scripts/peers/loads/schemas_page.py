"""The page of a comparison of answers under schemas, from its records."""

from collections.abc import Iterator
from dataclasses import asdict
from statistics import median
from textwrap import fill
from typing import Any

from scripts.peers.loads.agents import in_ms
from scripts.peers.loads.schemas import MOST_TOKENS, PROMPT_TOKENS, WITH, WITHOUT, Schemas
from scripts.peers.page import OURS, WIDTH, opening, table, values, with_spread
from scripts.peers.records import Line, Records, by_round
from scripts.peers.shapes import Shape

HEAD = (
    "Made by `python -m scripts.peers --load schemas --shape {name}` from docs/results/peers-schemas-{name}.jsonl. All "
    "servers compute the same random weights of {about}. They run one after another on the same machine, with the same "
    "number of threads. The load runs on the same cores. In a round every server has its turn."
)
LOADS = f"""
- **Load**: closed loops of clients; prompts of {PROMPT_TOKENS} token ids, no two alike; greedy. At first answers must
  fit a JSON schema (scripts/peers/loads/forms.py) and have {MOST_TOKENS} tokens at most. Then the same load has free
  answers, each as long as that server's mean answer under the schema.
- Most tokens of a *ticket* are forced: names of keys, and choices. An *order* is mostly free text.
- *With over without*: output tokens/s of the same server. *jaxgen over it*: answers/s under the schema in the same
  round, with the least and the greatest. Answers/s are compared, since servers write a form in different numbers of
  tokens.
- *Ended*: answers under the schema that were not cut. Times are in ms, figures are medians over rounds.
- OpenVINO gets the schema as a regular expression. Its JSON schemas allow white space without end, and random weights
  then write nothing else. llama.cpp's answers have some white space.
- Weights are random, so free text means nothing. A library without a server for this is behind a *minimal server*
  (scripts/peers/token_server.py). It neither validates requests nor makes text, which real servers must do.
"""
NOTHING = "**Nothing has been measured yet.**"
COLUMNS = [
    "output tokens/s with the schema",
    "without",
    "with over without",
    "answers/s with the schema",
    "tokens an answer",
    "ended",
    "TTFT P50",
    "P95",
    "inter-token P50 with, without",
    "P95 with, without",
    "jaxgen over it",
]


def sections(records: Records, shape: Shape) -> Iterator[str]:
    yield f"# Schemas at jaxgen and its peers: {shape.name}"
    yield fill(HEAD.format(name=shape.name, about=shape.about), WIDTH, break_on_hyphens=False)
    servers = records.of_kind("server")
    if not servers:
        yield NOTHING
        return
    yield from opening(records, LOADS)
    for name in values(servers, "format"):
        mine = [server for server in servers if server["format"] == name]
        yield f"## {name}"
        for load in sorted({Schemas.of(cell) for server in mine for cell in server["cells"]}):
            yield f"### {load.name}"
            yield _figures({peer: by_round(mine, peer, asdict(load)) for peer in values(mine, "peer")})


def _figures(lines: dict[str, dict[int, Line]]) -> str:
    ours = lines.get(OURS, {})
    rows = [_row(peer, rounds, ours) for peer, rounds in lines.items() if rounds]
    return table(["", *COLUMNS], rows)


def _row(peer: str, rounds: dict[int, Line], ours: dict[int, Line]) -> list[str]:
    halves = {name: [cell[name] for cell in rounds.values()] for name in (WITH, WITHOUT)}
    under = halves[WITH]

    def middle(name: str, key: str, digits: int = 0) -> str:
        return f"{median(half[key] for half in halves[name]):.{digits}f}"

    gaps = [", ".join(_ms(halves[name], "inter_token_s", q) for name in (WITH, WITHOUT)) for q in ("p50", "p95")]
    ended = sum(half["ended"] for half in under) / sum(half["completed"] for half in under)
    speeds = [cell[WITH]["output_tokens_per_s"] / cell[WITHOUT]["output_tokens_per_s"] for cell in rounds.values()]
    answers = [_answers(ours[index]) / _answers(rounds[index]) for index in sorted(ours.keys() & rounds.keys())]
    return [
        peer,
        middle(WITH, "output_tokens_per_s"),
        middle(WITHOUT, "output_tokens_per_s"),
        with_spread(speeds),
        middle(WITH, "requests_per_s", digits=2),
        middle(WITH, "answer_tokens"),
        f"{100 * ended:.0f} %",
        *(_ms(under, "ttft_s", q) for q in ("p50", "p95")),
        *gaps,
        with_spread(answers) if peer != OURS else "",
    ]


def _answers(cell: Line) -> float:
    return float(cell[WITH]["requests_per_s"])


def _ms(lines: list[dict[str, Any]], name: str, q: str) -> str:
    """Return the median of a figure over rounds; none where some round has none."""
    times = [half[name][q] for half in lines]
    return in_ms(None if None in times else median(times))
