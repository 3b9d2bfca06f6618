"""Which server is best at each load: the short answer at the top of a page."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from statistics import median

from scripts.peers.records import Line
from scripts.peers.tables import listed, table

OURS = "jaxgen"
EQUAL = 0.02
"""Servers that differ by less are called equal: rounds of one server differ by as much."""
HOW_TO_READ = (
    "A cell names the best server, and compares jaxgen with the best other one. Above 1 jaxgen is ahead. Below 1 it is "
    f"behind, and the cell is bold. Within {100 * EQUAL:.0f} % servers are equal."
)
ONLY = " *Only*: no other server has met the targets."
Rounds = dict[int, Line]
"""A server's figures of a load, by round."""
Loads = Sequence[tuple[str, dict[str, Rounds]]]
"""Names of loads, each with the rounds of each server."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure to choose a server by. ``of``: reads it off the figures of a load; None for a time that is infinite."""

    title: str
    of: Callable[[Line], float | None]
    is_time: bool

    def gain(self, ours: Line, other: Line) -> float | None:
        """Return how many times better we are, from 0 to infinity; None where neither has reached anything."""
        mine, its = self.of(ours), self.of(other)
        if self.is_time:
            mine, its = (inf if one is None else one for one in (its, mine))
        if (not mine and not its) or mine == its == inf:
            return None
        return (mine or 0.0) / its if its else inf


def percentile_of(name: str, q: str) -> Callable[[Line], float | None]:
    """Return what reads a percentile of times off figures."""
    return lambda cell: cell[name][q]


def overview(title: str, loads: Loads, goals: Sequence[Goal]) -> str:
    """Return a table of the best servers by goal, with a column for each load."""
    rows = [[goal.title, *(_cell(rounds, goal) for _, rounds in loads)] for goal in goals]
    return table([title, *(name for name, _ in loads)], rows)


def verdict(tables: Iterable[Loads], goals: Sequence[Goal]) -> str:
    """Return in a sentence or two in how many cells of such tables we are best, and to whom we lose in what."""
    cells = [
        (goal, found) for loads in tables for _, rounds in loads for goal in goals if (found := best(rounds, goal))
    ]
    lost: dict[str, list[str]] = {}
    for goal, (peer, lead) in cells:
        if lead < 1.0 - EQUAL:
            lost.setdefault(peer, []).append(goal.title)
    if not cells:
        return "Servers have not been measured in the same round."
    behind = sum(map(len, lost.values()))
    text = f"{OURS} is best or equal in {len(cells) - behind} of {len(cells)} comparisons."
    if not lost:
        return text
    parts = [f"to {peer} in {listed(dict.fromkeys(titles))}" for peer, titles in lost.items()]
    return f"{text} It loses at some loads: {'; '.join(parts)}."


def choices(loads: Loads, goals: Sequence[Goal]) -> Iterator[str]:
    """Yield for each load who is ahead in what, and by how much."""
    for name, rounds in loads:
        ahead: dict[str, list[str]] = {}
        for goal in goals:
            if (found := best(rounds, goal)) is not None:
                peer, lead = found
                leader = "equal" if abs(lead - 1.0) <= EQUAL else OURS if lead > 1.0 else peer
                times = lead if leader == OURS else 1.0 / lead if lead else inf
                by = f" ({times:.2f} times)" if leader != "equal" and times < inf else ""
                ahead.setdefault(leader, []).append(f"{goal.title}{by}")
        equal = [f"equal in {listed(ahead.pop('equal'))}"] if "equal" in ahead else []
        parts = [f"{leader} is ahead in {listed(titles)}" for leader, titles in ahead.items()] + equal
        yield f"**{name}**: {'; '.join(parts) or 'not measured by two servers'}."


def best(rounds: dict[str, Rounds], goal: Goal) -> tuple[str, float] | None:
    """Return the best other server, and how many times better we are: the median of the rounds' ratios.

    None where no round has figures of both.
    """
    ours, found = rounds.get(OURS, {}), []
    for peer, theirs in rounds.items():
        both = sorted(ours.keys() & theirs.keys()) if peer != OURS else []
        gains = [gain for index in both if (gain := goal.gain(ours[index], theirs[index])) is not None]
        if gains:
            lead = median(gains)
            # Where a round of either has nothing, the others decide.
            found.append((peer, min(gains) if lead == inf else lead or max(gains)))
    return min(found, key=lambda one: one[1], default=None)


def _cell(rounds: dict[str, Rounds], goal: Goal) -> str:
    if (found := best(rounds, goal)) is None:
        return "none" if len(rounds) > 1 else "-"
    peer, lead = found
    if lead == inf:
        return f"only {OURS}"
    if lead == 0.0:
        return f"**only {peer}**"
    if abs(lead - 1.0) <= EQUAL:
        return f"equal {lead:.2f}"
    return f"{OURS} {lead:.2f}" if lead > 1.0 else f"**{peer} {lead:.2f}**"
