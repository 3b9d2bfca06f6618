"""A process that runs parts and tells the supervisor of each row as it comes: one JSON list a line, [method of Report,
its arguments]."""

import gc
import json
import os
import sys
import time
import traceback
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from threading import Thread
from typing import Any, TextIO

from scripts.device_check.header import device_header
from scripts.device_check.part import Part, Shared
from scripts.device_check.plan import PARTS
from scripts.device_check.report import Measurement
from scripts.device_check.sizes import DRY, FULL


@dataclass(frozen=True)
class Job:
    """``deadlines`` of each part to run, in order, in seconds after ``started`` by the monotonic clock, which all
    processes share. ``reference_kernels``: XLA's, whatever a server would choose. ``header``: say first what the device
    is."""

    deadlines: dict[str, float]
    started: float
    ceilings: dict[str, float]
    dry_run: bool
    reference_kernels: bool
    header: bool


class Wire:
    """A Recorder whose Report is in another process."""

    def __init__(self, out: TextIO, ceilings: dict[str, float]):
        self.ceilings = dict(ceilings)
        self._out = out

    def send(self, method: str, *arguments: Any) -> None:
        self._out.write(json.dumps([method, *arguments]) + "\n")
        self._out.flush()

    def begin(self, name: str) -> None:
        self.send("begin", name)

    def record(self, name: str, found: Measurement | None, error: str | None = None, wall_seconds: float = 0.0) -> None:
        self.send("record", name, None if found is None else asdict(found), error, wall_seconds)

    def fail(self, failure: str) -> None:
        self.send("fail", failure)

    def add_ceiling(self, name: str, value: float) -> None:
        self.ceilings[name] = max(value, self.ceilings.get(name, 0.0))
        self.send("add_ceiling", name, value)


def run(job: Job, wire: Wire) -> None:
    """Run the job's parts; the last word is "end", or "refused" where there is no accelerator."""
    shared = Shared()
    if job.header:
        device = shared.device
        if device.platform == "cpu" and not job.dry_run:
            wire.send("refused")
            return
        wire.send("header", device.device_kind, device_header(device))
    sizes = DRY if job.dry_run else FULL
    if job.reference_kernels:
        sizes = replace(sizes, chosen_kernels=False)
    for name, deadline in job.deadlines.items():
        wire.send("part", name)
        gc.collect()  # what earlier parts left may hold the device's memory
        part = Part(wire, deadline - (time.monotonic() - job.started))
        module, function = PARTS[name].entry.split(":")
        try:
            getattr(import_module(f"scripts.device_check.{module}"), function)(part, sizes, shared)
        except Exception:  # outside of any row; the other parts are wanted all the same
            wire.record(name, None, traceback.format_exc()[-2000:])
    wire.send("end")


def main() -> None:
    """The job is the only argument, as JSON. What anything else prints goes to stderr."""
    Thread(target=_end_with_supervisor, daemon=True).start()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    job = Job(**json.loads(sys.argv[1]))
    run(job, Wire(out, job.ceilings))


def _end_with_supervisor() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


if __name__ == "__main__":
    main()
