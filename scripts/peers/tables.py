"""Cells of figures that were measured in rounds."""

from collections.abc import Iterable
from statistics import median
from typing import Any

from scripts.peers.records import Line


def values(lines: Iterable[Line], name: str) -> list[Any]:
    """Return the different values, in the order in which they first occur."""
    return list(dict.fromkeys(line[name] for line in lines))


def with_spread(text: str, ratios: list[float]) -> str:
    """Return the text, with the least and the greatest of the rounds' ratios where there are several."""
    return f"{text} ({min(ratios):.2f} to {max(ratios):.2f})" if len(ratios) > 1 else text


def middle(lines: list[Line], name: str) -> str:
    """Return the median over rounds of a figure, with a decimal if it is small."""
    if not lines:
        return "-"
    value = median(line[name] for line in lines)
    return f"{value:.{1 if value < 100.0 else 0}f}"


def in_ms(lines: list[Line], name: str, q: str | int) -> str:
    """Return the median over rounds of a time; none where some round has none, since it is infinite there."""
    times: list[Any] = [cell[name][q] for cell in lines]
    return ms(None if not times or None in times else median(times))


def ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:.{1 if seconds < 0.1 else 0}f}"
