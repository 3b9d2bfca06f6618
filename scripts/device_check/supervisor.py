"""Runs the parts in processes that may crash or hang: their rows are kept, and those that follow run all the same."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from itertools import takewhile
from queue import Empty, Queue
from threading import Thread
from typing import Any

from scripts.device_check.header import ROOT
from scripts.device_check.plan import MAIN, PARTS, TOTAL_SECONDS, PartPlan, deadlines
from scripts.device_check.report import UNAVAILABLE, Measurement, Report
from scripts.device_check.worker import Job

GRACE_SECONDS = 15.0
"""After a part's deadline, for the row that it is in."""
EXIT_SECONDS = 5.0
WORKER = (sys.executable, "-m", "scripts.device_check.worker")


class RefusedError(Exception):
    """There is no accelerator."""


class Supervisor:
    """One run of some parts."""

    def __init__(self, names: list[str], *, dry_run: bool, make_report: Callable[[str, dict[str, Any]], Report]):
        """``make_report`` is called with the device's name and what else is known of it."""
        self._make_report = make_report
        self._report: Report | None = None
        self._left = deadlines(names)
        self._dry_run = dry_run
        self._reference_kernels = False
        self._started = time.monotonic()

    def run(self) -> Report:
        """Run them all. RefusedError, or RuntimeError if the first process ends before it knows the device."""
        while self._left:
            self._run_process()
        assert self._report is not None
        return self._report

    def _run_process(self) -> None:
        """Run those of the parts left that share a process with the first, as far as it gets."""
        plan = PARTS[next(iter(self._left))]
        names = list(takewhile(lambda name: PARTS[name].process == plan.process, self._left))
        job = Job(
            deadlines={name: self._left[name] for name in names},
            started=self._started,
            ceilings=self._report.ceilings if self._report else {},
            dry_run=self._dry_run,
            reference_kernels=self._reference_kernels,
            header=self._report is None,
        )
        with subprocess.Popen(
            [*WORKER, json.dumps(asdict(job))],
            cwd=ROOT,
            env=_environment(plan),
            stdin=subprocess.PIPE,  # closes when this process ends, however it does, which ends the worker
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,
        ) as process:
            try:
                lost = self._follow(process)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        if lost is not None:
            self._lost(lost)
            return
        for name in names:
            self._left.pop(name, None)

    def _follow(self, process: subprocess.Popen[str]) -> str | None:
        """Take in what a process says until it ends its parts; if it does not, why."""
        lines: Queue[str | None] = Queue()
        Thread(target=_pump, args=(process, lines), daemon=True).start()
        while True:
            limit = min(next(iter(self._left.values())) + GRACE_SECONDS, TOTAL_SECONDS)
            try:
                line = lines.get(timeout=max(0.0, self._started + limit - time.monotonic()))
            except Empty:
                return f"killed {limit:.0f} s after the start of the run"
            if line is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(EXIT_SECONDS)
                return f"its process ended with status {process.returncode}"
            method, *arguments = json.loads(line)
            if method == "end":
                return None
            self._take(method, *arguments)

    def _take(self, method: str, *arguments: Any) -> None:
        if method == "refused":
            raise RefusedError
        if method == "header":
            self._report = self._make_report(*arguments)
            return
        report = self._report
        assert report is not None
        if method == "part":
            while next(iter(self._left)) != arguments[0]:
                self._left.pop(next(iter(self._left)))
            print(f"# {arguments[0]}", flush=True)
        elif method == "record":
            name, found, error, wall_seconds = arguments
            report.record(name, None if found is None else Measurement(**found), error, wall_seconds)
        else:
            methods: dict[str, Callable[..., None]] = {"begin": report.begin, "fail": report.fail}
            (methods | {"add_ceiling": report.add_ceiling})[method](*arguments)

    def _lost(self, why: str) -> None:
        """What was running has no result. If it was of the main process, what follows takes XLA's kernels, since others
        may be what is wrong; the other processes try what no server would."""
        report = self._report
        if report is None:
            raise RuntimeError(f"no device: {why} before it knew one")
        part = next(iter(self._left))
        if PARTS[part].compares:
            report.record(report.running or part, None, f"{UNAVAILABLE}{why}")
        else:
            report.record(report.running or part, None, why)
            report.fail(f"{part}: {why}")
        del self._left[part]
        self._reference_kernels |= PARTS[part].process == MAIN
        if time.monotonic() - self._started >= TOTAL_SECONDS:
            self._left.clear()


def _environment(plan: PartPlan) -> dict[str, str]:
    added = dict(plan.environment)
    if "XLA_FLAGS" in added:
        added["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {added['XLA_FLAGS']}".strip()
    return os.environ | added


def _pump(process: subprocess.Popen[str], lines: "Queue[str | None]") -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put(None)
