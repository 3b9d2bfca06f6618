"""The result file: one JSON object, written anew after every row, so that a run that is cut still leaves its rows."""

import json
import re
import time
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

COPY_RATE = "copy_bytes_per_second"
MATRIX_RATE = "bf16_flops_per_second"
CUT, UNAVAILABLE = "cut: ", "unavailable: "
"""How the error of a row begins that was left out for want of time, or of something that is not part of jaxgen."""


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
        self.running: str | None = None
        """The row that has begun and not ended."""
        self.write()

    @property
    def has_errors(self) -> bool:
        """Whether a row raised."""
        return any(row.error is not None and not row.error.startswith((CUT, UNAVAILABLE)) for row in self.rows)

    @property
    def has_cuts(self) -> bool:
        """Whether a row was left out for want of time."""
        return any(row.error is not None and row.error.startswith(CUT) for row in self.rows)

    def add_ceiling(self, name: str, value: float) -> None:
        """Keep the better of this and what was there."""
        self.ceilings[name] = max(value, self.ceilings.get(name, 0.0))

    def begin(self, name: str) -> None:
        """A row begins."""
        self.running = name

    def record(self, name: str, found: Measurement | None, error: str | None = None, wall_seconds: float = 0.0) -> None:
        """Append a row, write the file and say it. ``found`` is None where there is an ``error``."""
        self.running = None
        self.rows.append(self._row(name, found, error, wall_seconds))
        self.write()
        row = self.rows[-1]
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

    def _row(self, name: str, found: Measurement | None, error: str | None, wall_seconds: float) -> Row:
        if found is None:
            return Row(name=name, ran=False, error=error, wall_seconds=wall_seconds)
        floor = floor_seconds(self.ceilings, found)
        return Row(
            name=name,
            ran=True,
            seconds=found.seconds,
            bytes=found.bytes,
            flops=found.flops,
            floor_seconds=floor,
            fraction=floor / found.seconds if floor is not None and found.seconds else None,
            wall_seconds=wall_seconds,
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
