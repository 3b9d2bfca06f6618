"""Tables of figures in Markdown."""

from collections.abc import Iterable


def table(head: str, rows: Iterable[list[str]]) -> str:
    """Return a table; ``head``: names of columns with `` | `` between them. All but the first are aligned right."""
    names = head.split(" | ")
    lines = [names, ["---"] + ["---:"] * (len(names) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def percent(part: float, *, sign: bool = False) -> str:
    """Return a share as whole percents."""
    return f"{100 * part:+.0f} %" if sign else f"{100 * part:.0f} %"
