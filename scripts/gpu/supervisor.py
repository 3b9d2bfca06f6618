"""Run rows one after another in processes, each in two requests: prepare, which compiles, and run.

If a process hangs or dies, only its current row is lost.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from scripts.gpu.child import Child, LostError
from scripts.gpu.result.plan import OTHER_REGISTERS, REGISTERS, PlannedRow, Registers
from scripts.gpu.result.report import Measurement, Report, Row, State

START_SECONDS = 60.0
"""Seconds for a worker to import JAX and open the device."""


class Workers:
    """Holds at most one worker: a new one opens the device only after the one before it has ended."""

    def __init__(self, *, dry_run: bool, cache_dir: Path, log: Path):
        self._options: dict[str, Any] = {"dry_run": dry_run, "cache_dir": cache_dir, "log": log}
        self._child: Child | None = None

    def header(self) -> dict[str, Any]:
        """Return the description of the device. Raises LostError if the worker is lost."""
        return self.named("smoke").ask({"header": True}, START_SECONDS)

    def named(self, process: str, seconds: float = START_SECONDS) -> Child:
        """Return a worker that is ready. Raises LostError if it is not ready in time."""
        if self._child is not None and self._child.name != process:
            self.end()
        if self._child is None:
            self._child = Child(process, **self._options)
            self._child.ask({"header": False}, seconds)
        return self._child

    def drop(self) -> str:
        """Kill a lost worker, and return the end of its output."""
        child, self._child = self._child, None
        assert child is not None
        child.kill()
        return child.last_words()

    def end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.end()


class Supervisor:
    """Runs the rows of one run."""

    def __init__(
        self,
        rows: Sequence[PlannedRow],
        report: Report,
        workers: Workers,
        *,
        ends: float,
        compile_limit: float | None = None,
    ):
        """``ends``: time by the monotonic clock. ``compile_limit``: of every row, in place of its own."""
        self._rows = rows
        self._report = report
        self._workers = workers
        self._ends = ends
        self._compile_limit = compile_limit

    def run(self) -> None:
        """Run all rows without a result, and record the state of each."""
        part = None
        for row in self._rows:
            if self._report.rows[row.name].has_result:
                continue
            if row.part != part:
                part = row.part
                print(f"# {part}", flush=True)
            self._report.record(*self._run(row))

    def _run(self, row: PlannedRow) -> tuple[Row, dict[str, float]]:
        blank = Row(name=row.name, state=State.NOT_REACHED, configuration=row.configuration, process=row.process)
        if row.instead_of is not None and self._report.rows[row.instead_of].state is not State.LOST:
            return replace(blank, state=State.NOT_NEEDED, why=f"only if {row.instead_of} is lost"), {}
        left = self._ends - time.monotonic()
        registers = self._registers(row)
        if isinstance(registers, str) or left <= 0:
            return replace(blank, why=registers if isinstance(registers, str) else "no time was left"), {}
        began = replace(blank, registers=registers)
        try:
            child = self._workers.named(row.process, min(START_SECONDS, left))
        except LostError as lost:
            words = self._workers.drop()
            if time.monotonic() >= self._ends:
                return replace(blank, why="the run ended before its process was ready"), {}
            return replace(began, state=State.RAISED, why=f"no process: it {lost}\n{words}"), {}
        return self._ask(child, row, began, registers)

    def _ask(self, child: Child, row: PlannedRow, began: Row, registers: Registers) -> tuple[Row, dict[str, float]]:
        """Let the row prepare, and then run. A process that hangs while it compiles says nothing of its kernels."""
        answer = self._stage(child, self._request(row, registers), self._compile_limit or row.compile_limit)
        began = replace(began, prepare_seconds=answer["wall_seconds"])
        if answer.get("hung"):
            answer |= {"state": State.SLOW, "why": f"not ready to run after {answer['hung']:.3g} s"}
        elif "state" not in answer:
            answer = self._stage(child, {"run": row.name}, row.limit)
            began = replace(began, wall_seconds=answer["wall_seconds"])
        began = replace(began, programs=answer.get("programs", {}))
        if answer.get("state") not in (State.LOST, State.SLOW):
            return _answered(began, answer)
        words = self._workers.drop()
        if answer.get("cut"):
            return replace(began, state=State.NOT_REACHED, why="the run ended in it"), {}
        state = State.UNAVAILABLE if row.compares else State(answer["state"])
        return replace(began, state=state, why=answer["why"], detail={"stderr": words}), {}

    def _stage(self, child: Child, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Return the answer, also for a process that is lost. ``hung``: its limit, if that passed. ``cut``: the run
        ended before the limit did."""
        started = time.monotonic()
        limit = max(0.0, min(seconds, self._ends - started))
        try:
            return child.ask(request | {"limit": limit}, limit)
        except LostError as lost:
            spent = time.monotonic()
            answer = {"state": State.LOST, "why": str(lost), "wall_seconds": round(spent - started, 2)}
            cut = limit < seconds and spent >= self._ends
            return answer | {"hung": limit if lost.hung else None, "cut": cut}

    def _registers(self, row: PlannedRow) -> Registers | str:
        """Return the registers to run a row with, or the reason why it cannot be run."""
        if missing := [one for one in row.reads if self._report.rows[one].state is State.NOT_REACHED]:
            return f"it reads {missing[0]}, which was not reached"
        if row.registers is not None:
            return row.registers
        losses = {one: loss for one in row.needs if (loss := self._report.loss(one, REGISTERS)) is not None}
        if not losses:
            return REGISTERS
        if all(self._report.ran(one, OTHER_REGISTERS) for one in losses):
            return OTHER_REGISTERS
        return next(iter(losses.values()))

    def _request(self, row: PlannedRow, registers: Registers) -> dict[str, Any]:
        return {
            "row": row.name,
            "registers": registers,
            "ceilings": self._report.ceilings,
            "results": {name: asdict(self._report.rows[name]) for name in row.reads},
            "out": str(self._report.path.parent),
        }


def _answered(row: Row, answer: dict[str, Any]) -> tuple[Row, dict[str, float]]:
    if "found" not in answer:
        return replace(row, state=State(answer["state"]), why=answer["why"]), {}
    measurement = Measurement(**answer["found"])
    measured = {name: getattr(measurement, name) for name in ("seconds", "bytes", "flops", "detail", "failure")}
    return replace(row, state=State.RAN, **measured), measurement.ceilings
