"""The result file: one JSON object, written anew after every row, so that a run that is cut still leaves its rows."""

import json
import re
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

COPY_RATE = "copy_bytes_per_second"
MATRIX_RATE = "bf16_flops_per_second"
CUT = "cut: "
"""How the error of a row begins that was left out for want of time."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What one row found. ``seconds``: of one execution; ``bytes``: read and written; ``flops``: 2 per multiply-add.

    ``failure`` says which check did not hold; ``detail`` is anything else worth keeping.
    """

    seconds: float | None = None
    bytes: int | None = None
    flops: int | None = None
    detail: dict[str, Any] = field(default_factory=dict)
    failure: str | None = None


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the result. ``floor_seconds``: max(bytes / copy rate, flops / matrix rate) with the ceilings of the
    same run; ``fraction``: floor_seconds / seconds."""

    name: str
    ran: bool
    seconds: float | None = None
    bytes: int | None = None
    flops: int | None = None
    floor_seconds: float | None = None
    fraction: float | None = None
    error: str | None = None
    wall_seconds: float = 0.0
    detail: dict[str, Any] = field(default_factory=dict)


class Report:
    """Collects ceilings, rows and failures, and keeps the file in step with them."""

    def __init__(self, directory: Path, device: str, header: dict[str, Any]):
        """Makes ``directory`` if need be and picks a file name that is not taken: <device>-<date>[-n].json."""
        directory.mkdir(parents=True, exist_ok=True)
        self.path = _free_path(directory, device)
        self.ceilings: dict[str, float] = {}
        self.rows: list[Row] = []
        self.failures: list[str] = []
        self._header = {"device": device, **header}
        self._started = time.monotonic()
        self._lock = threading.Lock()
        self.write()

    @property
    def has_errors(self) -> bool:
        """Whether a row raised."""
        return any(row.error is not None and not is_cut(row) for row in self.rows)

    @property
    def has_cuts(self) -> bool:
        """Whether a row was left out for want of time."""
        return any(is_cut(row) for row in self.rows)

    def add_ceiling(self, name: str, value: float) -> None:
        """Keep the better of this and what was there."""
        self.ceilings[name] = max(value, self.ceilings.get(name, 0.0))

    def add(self, row: Row) -> None:
        """Append a row, write the file and say it."""
        self.rows.append(row)
        self.write()
        if row.error is not None:
            says = row.error.splitlines()[0]
        else:
            says = "" if row.seconds is None else f"{1e3 * row.seconds:.3f} ms"
            says += "" if row.fraction is None else f", {row.fraction:.3f} of what the ceilings allow"
        print(f"{row.name}: {says} ({row.wall_seconds:.1f} s spent)", flush=True)

    def fail(self, failure: str) -> None:
        """Keep a check that did not hold; the run goes on."""
        self.failures.append(failure)
        self.write()
        print(f"FAILED {failure}", flush=True)

    def write(self) -> None:
        """Replace the file by one with everything known so far."""
        with self._lock:
            whole = {
                **self._header,
                "elapsed_seconds": round(time.monotonic() - self._started, 1),
                "ceilings": self.ceilings,
                "failures": self.failures,
                "rows": [asdict(row) for row in self.rows],
            }
            temporary = self.path.with_suffix(".part")
            temporary.write_text(json.dumps(whole, indent=1) + "\n")
            temporary.replace(self.path)


def is_cut(row: Row) -> bool:
    return row.error is not None and row.error.startswith(CUT)


class Part:
    """The rows of one part, within its budget of seconds."""

    def __init__(self, report: Report, budget_seconds: float):
        self.report = report
        self._budget = budget_seconds
        self._started = time.monotonic()
        self._latest = 0.0

    def measure(self, name: str, function: Callable[[], Measurement], *, free: bool = False) -> Measurement | None:
        """Run one row and record it; None if it raised, or was cut because one more row like the latest would exceed
        the budget. A ``free`` one takes no time, so is not cut. A row's error is recorded in it and ends nothing else.
        """
        spent = time.monotonic() - self._started
        if not free and spent + self._latest > self._budget:
            self.report.add(Row(name=name, ran=False, error=f"{CUT}{spent:.0f} s of {self._budget:.0f} s are spent"))
            return None
        started = time.monotonic()
        try:
            found = function()
        except Exception as error:  # whatever a device raises: the other rows are wanted all the same
            wall = time.monotonic() - started
            self._latest = wall
            said = f"{type(error).__name__}: {error}"
            where = traceback.format_exc(limit=-3)
            self.report.add(Row(name=name, ran=False, error=f"{said[:2000]}\n{where[-2000:]}", wall_seconds=wall))
            return None
        wall = time.monotonic() - started
        self._latest = wall
        self.report.add(self._row(name, found, round(wall, 2)))
        if found.failure is not None:
            self.report.fail(f"{name}: {found.failure}")
        return found

    def _row(self, name: str, found: Measurement, wall: float) -> Row:
        floor = floor_seconds(self.report.ceilings, found)
        fraction = floor / found.seconds if floor is not None and found.seconds else None
        return Row(
            name=name,
            ran=True,
            seconds=found.seconds,
            bytes=found.bytes,
            flops=found.flops,
            floor_seconds=floor,
            fraction=fraction,
            wall_seconds=wall,
            detail=found.detail,
        )


def floor_seconds(ceilings: dict[str, float], found: Measurement) -> float | None:
    """The least time the machine's ceilings allow; None unless bytes, flops and both ceilings are known."""
    if found.bytes is None or found.flops is None or not {COPY_RATE, MATRIX_RATE} <= ceilings.keys():
        return None
    return max(found.bytes / ceilings[COPY_RATE], found.flops / ceilings[MATRIX_RATE])


def _free_path(directory: Path, device: str) -> Path:
    slug = re.sub(r"[^a-z0-9.]+", "-", device.lower()).strip("-")
    stem = f"{slug}-{datetime.now(UTC):%Y-%m-%d}"
    path, n = directory / f"{stem}.json", 2
    while path.exists():
        path, n = directory / f"{stem}-{n}.json", n + 1
    return path
