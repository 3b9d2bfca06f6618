"""Which server is best at each load: the short answer at the top of a page."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import median

from scripts.page.markdown import listed, table
from scripts.peers.records import Line
from scripts.peers.tables import with_spread

OURS = "jaxgen"
LEVEL = (0.98, 1.02)
"""Leads, rounded to two decimals, of servers that are called equal: rounds of one server differ by as much."""
HOW_TO_READ = (
    "A cell names the best server. The number is *jaxgen's lead* over the best other server: jaxgen's figure divided "
    "by the other's, and for times (TTFT and gaps) the other's divided by jaxgen's. So above 1 jaxgen is ahead. Where "
    "it is behind, the cell is bold. *Equal*: the lead, rounded to two decimals, is from "
    f"{LEVEL[0]} to {LEVEL[1]}. Figures are medians of rounds, from the tables below."
)
HOW_SHORT = (
    "A cell names the best server and jaxgen's lead ([how to read it](peers.md#which-server-to-choose)). Above 1 "
    "jaxgen is ahead."
)
ONLY = " *Only*: no other server met the targets."
NONE = " *None*: no server met the targets."
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

    def middle(self, rounds: Rounds) -> float | None:
        """Return the median over rounds; None for a time that is infinite in some round."""
        found = [self.of(line) for line in rounds.values()]
        known = [one for one in found if one is not None]
        return median(known) if len(known) == len(found) else None

    def lead(self, ours: Rounds, theirs: Rounds) -> float | None:
        """Return how many times better our median is, from 0 to infinity; None where nothing can be compared."""
        if not ours or not theirs:
            return None
        mine, its = self.middle(ours), self.middle(theirs)
        if self.is_time:
            mine, its = (inf if one is None else one for one in (its, mine))
        if (not mine and not its) or mine == its == inf:
            return None
        return (mine or 0.0) / its if its else inf


def is_behind(lead: float) -> bool:
    return round(lead, 2) < LEVEL[0]


def is_equal(lead: float) -> bool:
    return LEVEL[0] <= round(lead, 2) <= LEVEL[1]


def shown(goal: Goal, ours: Rounds, theirs: Rounds) -> str:
    """Return our lead, with the least and the greatest of single rounds that both have; bold where we are behind."""
    lead = goal.lead(ours, theirs)
    if lead is None or lead in (0.0, inf):
        return "-"
    both = sorted(ours.keys() & theirs.keys())
    ratios = [one for index in both if (one := goal.lead({0: ours[index]}, {0: theirs[index]}))]
    text = f"**{lead:.2f}**" if is_behind(lead) else f"{lead:.2f}"
    return with_spread(text, [one for one in ratios if one < inf])


def percentile_of(name: str, q: str) -> Callable[[Line], float | None]:
    """Return what reads a percentile of times off figures."""
    return lambda cell: cell[name][q]


def overview(title: str, loads: Loads, goals: Sequence[Goal]) -> str:
    """Return a table of the best servers by goal, with a column for each load."""
    rows = [[goal.title, *(_cell(rounds, goal) for _, rounds in loads)] for goal in goals]
    return table([title, *(name for name, _ in loads)], rows)


def verdict(tables: Mapping[str, Loads], goals: Sequence[Goal]) -> Iterator[str]:
    """Yield in how many cells of such tables we are best, then for each goal which other server is best where."""
    cells = [
        (goal, name, load, found)
        for name, loads in tables.items()
        for load, rounds in loads
        for goal in goals
        if (found := best(rounds, goal))
    ]
    if not cells:
        yield "No load has been measured with two servers."
        return
    lost: dict[tuple[str, str], dict[str, list[str]]] = {}
    for goal, name, load, (peer, lead) in cells:
        if is_behind(lead):
            lost.setdefault((peer, goal.title), {}).setdefault(name, []).append(load)
    behind = sum(len(loads) for places in lost.values() for loads in places.values())
    best_in = f"{OURS} is best or equal in {len(cells) - behind} of {len(cells)} comparisons."
    yield best_in + (" In the others, the best servers are:" if lost else "")
    for (peer, title), places in sorted(lost.items()):
        where = "; ".join(f"{name} with {listed(loads)}".strip() for name, loads in places.items())
        yield f"{peer} in {title}: {where}."


def choices(loads: Loads, goals: Sequence[Goal]) -> Iterator[str]:
    """Yield for each load who is ahead in what, and by how much."""
    for name, rounds in loads:
        ahead: dict[str, list[str]] = {}
        for goal in goals:
            if (found := best(rounds, goal)) is not None:
                peer, lead = found
                leader = "equal" if is_equal(lead) else OURS if lead > 1.0 else peer
                times = lead if leader == OURS else 1.0 / lead if lead else inf
                by = f" ({times:.2f} times)" if leader != "equal" and times < inf else ""
                ahead.setdefault(leader, []).append(f"{goal.title}{by}")
        equal = [f"equal in {listed(ahead.pop('equal'))}"] if "equal" in ahead else []
        parts = [f"{leader} is ahead in {listed(titles)}" for leader, titles in ahead.items()] + equal
        yield f"**{name}**: {'; '.join(parts) or 'not measured by two servers'}."


def best(rounds: dict[str, Rounds], goal: Goal) -> tuple[str, float] | None:
    """Return the best other server, and our lead over it; None where nothing can be compared."""
    others = [(peer, goal.lead(rounds.get(OURS, {}), theirs)) for peer, theirs in rounds.items() if peer != OURS]
    return min(((peer, lead) for peer, lead in others if lead is not None), key=lambda one: one[1], default=None)


def _cell(rounds: dict[str, Rounds], goal: Goal) -> str:
    if (found := best(rounds, goal)) is None:
        return "none" if len(rounds) > 1 else "-"
    peer, lead = found
    if lead == inf:
        return f"only {OURS}"
    if lead == 0.0:
        return f"**only {peer}**"
    if is_equal(lead):
        return "equal"
    return f"{OURS} {lead:.2f}" if lead > 1.0 else f"**{peer} {lead:.2f}**"
