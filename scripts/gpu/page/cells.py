"""Read a device's results, and format them as tables in Markdown."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scripts.gpu.result.report import State
from scripts.page.markdown import table

NOT_RUN = "not run"
"""Text for a row that a result does not have."""
_NOTHING = {"", NOT_RUN, State.NOT_REACHED, State.NOT_NEEDED, State.UNAVAILABLE}
"""Cells without a value."""

Row = dict[str, Any]
Column = tuple[str, Callable[[Row], str]]
"""A title, and the cell of a row."""


@dataclass(frozen=True)
class Result:
    """One run of python -m scripts.gpu; ``about`` is its file, empty where nothing has run."""

    about: dict[str, Any]

    def row(self, name: str) -> Row:
        """Return a row by name; empty where there is none."""
        return next((row for row in self.about.get("rows", []) if row["name"] == name), {})

    def rows(self, *prefixes: str) -> list[Row]:
        return [row for row in self.about.get("rows", []) if row["name"].startswith(prefixes)]

    def ran(self, name: str) -> Row | None:
        """Return the row if it has a measurement."""
        row = self.row(name)
        return row if state(row) is None else None

    def table(self, title: str, names: Mapping[str, str], columns: Sequence[Column]) -> str:
        """Return a table of rows; ``names``: of the rows, by what the first column says."""
        lines = [[first, *(cell(self.row(name)) for _, cell in columns)] for first, name in names.items()]
        return filled([title, *(of for of, _ in columns)], lines)


def quoted(names: Iterable[str]) -> dict[str, str]:
    """Return names of rows by what the first column of their table says."""
    return {f"`{name}`": name for name in names}


def state(row: Row) -> str | None:
    """Return why a row has no measurement; None if it has one."""
    if not row:
        return NOT_RUN
    if row["state"] == State.RAN:
        return None
    first, _, _ = row["why"].splitlines()[0].partition(": ")
    if row["state"] == State.RAISED:
        return f"failed: raised {first}"
    return "failed: lost its process or the device" if row["state"] == State.LOST else str(row["state"])


def ms(row: Row) -> str:
    return state(row) or number(1e3 * row["seconds"])


def floor(row: Row) -> str:
    return ms_of(row.get("floor_seconds"))


def fraction(row: Row) -> str:
    return f"{row['fraction']:.2f}" if row.get("fraction") is not None else ""


def rate(row: Row) -> str:
    return f"{row['bytes'] / row['seconds'] / 1e9:,.0f}" if state(row) is None else ""


def of(*path: str) -> Callable[[Row], str]:
    """Return the cell of a value in ``detail``."""
    return lambda row: _text(_found(row, path))


def ms_in(*path: str) -> Callable[[Row], str]:
    """Return the cell of seconds in ``detail``."""
    return lambda row: ms_of(_found(row, path))


def ms_of(seconds: float | None) -> str:
    return "" if seconds is None else number(1e3 * seconds)


def number(value: float | None) -> str:
    """Format a number with three significant digits; from 1000 on as a whole number."""
    return "" if value is None else f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def filled(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table without columns that have no value, or "" if no column has one."""
    lines = [titles, *rows]
    kept = [0, *(i for i in range(1, len(titles)) if any(line[i] not in _NOTHING for line in lines[1:]))]
    head, *body = ([line[i] for i in kept] for line in lines)
    return "" if len(kept) == 1 else table(head, body)


def _found(row: Row, path: Sequence[str]) -> Any:
    value: Any = row.get("detail", {})
    for name in path:
        value = (value or {}).get(name)
    return value


def _text(value: Any) -> str:
    return number(value) if isinstance(value, float) else str(value or "")
