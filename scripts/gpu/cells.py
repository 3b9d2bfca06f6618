"""Read a device's results, and format them as cells of tables."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from scripts.gpu.report import COPY_RATE, MATRIX_RATE, State

COMPILED, NOT_RUN = "compiled, not run", "not run"
"""Text for a missing row: the first for programs that scripts/ci/check_aot.sh compiles for a GPU."""


@dataclass(frozen=True)
class Result:
    """One run of python -m scripts.gpu; ``about`` is its file, empty where nothing has run."""

    about: dict[str, Any]

    def row(self, name: str) -> dict[str, Any]:
        """Return a row by name; empty where there is none."""
        return next((row for row in self.about.get("rows", []) if row["name"] == name), {})

    def rows(self, *prefixes: str) -> list[dict[str, Any]]:
        return [row for row in self.about.get("rows", []) if row["name"].startswith(prefixes)]

    @property
    def ceilings(self) -> dict[str, float]:
        found: dict[str, float] = self.about.get("ceilings", {})
        return found


def state(row: dict[str, Any], absent: str = NOT_RUN) -> str | None:
    """Return why a row has no measurement; None if it has one."""
    if not row:
        return absent
    if row["state"] == State.RAN:
        return None
    first, _, _ = row["why"].splitlines()[0].partition(": ")
    return f"raised ({first})" if row["state"] == State.RAISED else str(row["state"])


def bound(result: Result, row: dict[str, Any]) -> str:
    if state(row) is not None or not {COPY_RATE, MATRIX_RATE} <= result.ceilings.keys():
        return ""
    memory, arithmetic = row["bytes"] / result.ceilings[COPY_RATE], row["flops"] / result.ceilings[MATRIX_RATE]
    return "memory" if memory > arithmetic else "arithmetic"


def ms(row: dict[str, Any], absent: str = NOT_RUN) -> str:
    return state(row, absent) or number(1e3 * row["seconds"])


def floor(row: dict[str, Any]) -> str:
    return number(1e3 * row["floor_seconds"]) if row.get("floor_seconds") is not None else ""


def fraction(row: dict[str, Any]) -> str:
    return f"{row['fraction']:.2f}" if row.get("fraction") is not None else ""


def rate(row: dict[str, Any]) -> str:
    return f"{row['bytes'] / row['seconds'] / 1e9:,.0f}" if state(row) is None else ""


def detail(row: dict[str, Any], name: str) -> str:
    found = row.get("detail", {}).get(name)
    return number(found) if isinstance(found, float) else str(found or "")


def detail_ms(row: dict[str, Any], name: str) -> str:
    found = row.get("detail", {}).get(name)
    return "" if found is None else number(1e3 * found)


def billed_seconds(row: dict[str, Any]) -> float | None:
    """Return what a step's compiled programs should take, if the row has it."""
    found: float | None = (row.get("detail", {}).get("bill") or {}).get("seconds")
    return found


def ms_of(seconds: float | None) -> str:
    return "" if seconds is None else number(1e3 * seconds)


def number(value: float | None) -> str:
    """Format a number with three significant digits; from 1000 on as a whole number."""
    return "" if value is None else f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [titles, ["---", *["---:"] * (len(titles) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
