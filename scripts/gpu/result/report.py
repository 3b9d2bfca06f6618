"""Write the result file: one JSON object with an entry for every row, rewritten after each row, so that an interrupted
run keeps its results."""

import json
import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from scripts.gpu.result.plan import PlannedRow, Registers

COPY_RATE = "copy_bytes_per_second"
MATRIX_RATE = "bf16_flops_per_second"
BURST_RATE = "bf16_burst_flops_per_second"
"""Of bursts of a few milliseconds; floors do not use it."""


class State(StrEnum):
    """The outcome of a row."""

    RAN = "ran"
    RAISED = "raised"
    LOST = "lost"
    """Its process hung or died, or the device did."""
    SLOW = "slow to compile"
    """It was not ready to run after its limit, which says nothing of what it would run."""
    UNAVAILABLE = "unavailable"
    """Other software or a tool is not on this machine."""
    NOT_REACHED = "not reached"
    NOT_NEEDED = "not needed"


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The result of a row. ``seconds``: of one execution; ``bytes``: read and written; ``flops``: 2 per multiply-add.

    ``ceilings``: rates that the machine reached. ``failure``: the check that did not hold. ``detail``: further values.
    """

    seconds: float | None = None
    bytes: int | None = None
    flops: int | None = None
    ceilings: dict[str, float] = field(default_factory=dict)
    detail: dict[str, Any] = field(default_factory=dict)
    failure: str | None = None


Run = Callable[[], Measurement]
"""A row that is compiled, and now runs."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One entry of the file. ``why``: the reason where there is no measurement; ``call``: the number of its run in the
    file, from 0; ``registers``: those of its kernels; ``wall_seconds``: of running, after ``prepare_seconds``;
    ``programs``: how many were "compiled", and "reused" from the cache."""

    name: str
    state: State
    why: str | None = None
    seconds: float | None = None
    bytes: int | None = None
    flops: int | None = None
    failure: str | None = None
    prepare_seconds: float = 0.0
    wall_seconds: float = 0.0
    programs: dict[str, int] = field(default_factory=dict)
    process: str | None = None
    configuration: str | None = None
    registers: Registers | None = None
    call: int = 0
    detail: dict[str, Any] = field(default_factory=dict)

    @property
    def has_result(self) -> bool:
        """Whether a run that resumes this one keeps the row."""
        return self.state not in (State.NOT_REACHED, State.NOT_NEEDED)

    @property
    def held(self) -> bool:
        """Whether the row ran and its check did not fail."""
        return self.state is State.RAN and self.failure is None


class Report:
    """Rows and ceilings of one or more runs, and their file, which is kept up to date."""

    def __init__(self, path: Path, about: dict[str, Any], rows: Sequence[PlannedRow], earlier: dict[str, Any]):
        """``about``: description of this run. ``earlier``: the file that it resumes, or empty."""
        self.path = path
        self.ceilings: dict[str, float] = dict(earlier.get("ceilings", {}))
        self._about = {key: value for key, value in about.items() if key != "call"}
        self._calls = [*earlier.get("calls", []), about["call"]]
        self._started = time.monotonic()
        known = {one["name"]: _read(one) for one in earlier.get("rows", [])}
        never = "the run ended before its turn"
        self.rows = {
            one.name: known.get(one.name) or Row(name=one.name, state=State.NOT_REACHED, why=never) for one in rows
        }
        self.write()

    @property
    def call(self) -> int:
        return len(self._calls) - 1

    @property
    def failures(self) -> list[str]:
        """Failed checks, and rows that raised or were lost."""
        message = (
            (row.name, row.failure or (row.why if row.state in (State.RAISED, State.LOST) else None))
            for row in self.rows.values()
        )
        return [f"{name}: {why.splitlines()[0]}" for name, why in message if why is not None]

    def loss(self, configuration: str, registers: Registers) -> str | None:
        """Describe the first row of the configuration that was lost; None if no row was."""
        for row in self.rows.values():
            if row.state is State.LOST and (row.configuration, row.registers) == (configuration, registers):
                return f"{configuration} ({'/'.join(map(str, registers))} registers) {row.why} in {row.name}"
        return None

    def ran(self, configuration: str, registers: Registers) -> bool:
        """Whether a row of the configuration ran and held."""
        return any(
            row.held and (row.configuration, row.registers) == (configuration, registers) for row in self.rows.values()
        )

    def record(self, row: Row, ceilings: dict[str, float] | None = None) -> None:
        """Record a row and the best of each ceiling, write the file, and print a line."""
        for name, value in (ceilings or {}).items():
            self.ceilings[name] = max(value, self.ceilings.get(name, 0.0))
        self.rows[row.name] = replace(row, call=self.call)
        self.write()
        print(f"{row.name}: {self._said(row)} ({row.prepare_seconds:.1f} + {row.wall_seconds:.1f} s)", flush=True)

    def note(self, **facts: Any) -> None:
        """Add facts of this run to its entry under "calls", and write the file."""
        self._calls[-1] |= facts
        self.write()

    def write(self) -> None:
        """Replace the file by one with all results so far."""
        self._calls[-1]["elapsed_seconds"] = round(time.monotonic() - self._started, 1)
        losses = (
            self.loss(row.configuration, row.registers)
            for row in self.rows.values()
            if row.configuration and row.registers
        )
        whole = {
            **self._about,
            "calls": self._calls,
            "ceilings": self.ceilings,
            "bad_configurations": sorted({loss for loss in losses if loss is not None}),
            "failures": self.failures,
            "rows": [asdict(row) | self._floor(row) for row in self.rows.values()],
        }
        temporary = self.path.with_suffix(".part")
        temporary.write_text(json.dumps(_finite(whole), indent=1, allow_nan=False) + "\n")
        temporary.replace(self.path)

    def _floor(self, row: Row) -> dict[str, float | None]:
        floor = floor_seconds(self.ceilings, row)
        fraction = floor / row.seconds if floor is not None and row.seconds else None
        return {"floor_seconds": floor, "fraction": fraction}

    def _said(self, row: Row) -> str:
        if row.state is not State.RAN:
            return f"{row.state}: {(row.why or '').splitlines()[0]}"
        words = [] if row.seconds is None else [f"{1e3 * row.seconds:.3f} ms"]
        if (fraction := self._floor(row)["fraction"]) is not None:
            words.append(f"{fraction:.3f} of what the ceilings allow")
        if row.failure is not None:
            words.append(f"FAILED {row.failure}")
        return ", ".join(words) or "ran"


def floor_seconds(ceilings: dict[str, float], row: Row) -> float | None:
    """Return the least time that the machine's ceilings allow; None unless bytes, flops and both ceilings are known."""
    if row.bytes is None or row.flops is None or not {COPY_RATE, MATRIX_RATE} <= ceilings.keys():
        return None
    return max(row.bytes / ceilings[COPY_RATE], row.flops / ceilings[MATRIX_RATE])


def _finite(value: Any) -> Any:
    """Replace infinities and NaN, which JSON lacks, by strings; a kernel's error may be one."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def free_path(directory: Path, device: str) -> Path:
    """Return an unused path <device>-<date>[-n].json."""
    slug = re.sub(r"[^a-z0-9.]+", "-", device.lower()).strip("-")
    stem = f"{slug}-{datetime.now(UTC):%Y-%m-%d}"
    path, n = directory / f"{stem}.json", 2
    while path.exists():
        path, n = directory / f"{stem}-{n}.json", n + 1
    return path


def _read(row: dict[str, Any]) -> Row:
    """Return a row of a file."""
    known = {key: value for key, value in row.items() if key not in ("floor_seconds", "fraction")}
    registers = known["registers"]
    return Row(**known | {"state": State(known["state"]), "registers": registers and tuple(registers)})
