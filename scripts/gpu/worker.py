"""Run rows on request: a request is one line of JSON on stdin, and its answer one line on stdout.

A row is prepared in one request, which compiles, and run in the next.
"""

import faulthandler
import gc
import json
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from importlib import import_module
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any, cast

import jax
import numpy as np

from scripts.gpu.faults import PREPARE, RUN, inject
from scripts.gpu.result.header import device_header
from scripts.gpu.result.plan import PROCESSES
from scripts.gpu.result.report import Measurement, State
from scripts.gpu.rows.bench import Bench, Shared, UnavailableError
from scripts.gpu.rows.listing import rows_of
from scripts.gpu.rows.sizes import DRY, FULL, Sizes

_STACK_AT = 0.9
"""Fraction of a limit after which the stacks of all threads are printed, since the row may hang."""
_PROGRAM_EVENTS = {
    "/jax/compilation_cache/cache_misses": "compiled",
    "/jax/compilation_cache/cache_hits": "reused",
}


def main() -> None:
    """Answer requests. Arguments: the name of the process, and "dry" or "full". All other output goes to stderr."""
    process, size = sys.argv[1:]
    requests: Queue[str] = Queue()
    Thread(target=_read, args=(requests,), daemon=True).start()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    faulthandler.enable()
    worker = Worker(DRY if size == "dry" else FULL)
    if PROCESSES[process].opens_device:
        assert worker.shared.device
    while True:
        out.write(json.dumps(worker.answer(json.loads(requests.get()))) + "\n")
        out.flush()


def _read(requests: "Queue[str]") -> None:
    """Queue requests from stdin. End the process when stdin closes, which happens when the supervisor ends."""
    for line in sys.stdin:
        requests.put(line)
    os._exit(0)


class Worker:
    """Answers requests: of the device's description, to prepare a row, and to run it."""

    def __init__(self, sizes: Sizes):
        self.shared = Shared()
        self._sizes = sizes
        self._prepared: Callable[[], Measurement] | None = None
        self._programs = count_programs()

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request, which names a row to prepare, or the one to run, or asks for a "header"."""
        if "header" in request:
            return self._header() if request["header"] else {}
        faulthandler.dump_traceback_later(_STACK_AT * request["limit"])
        started = time.monotonic()
        try:
            answer = guarded(lambda: self._run(request["run"]) if "run" in request else self._prepare(request))
        finally:
            faulthandler.cancel_dump_traceback_later()
        return answer | {"wall_seconds": round(time.monotonic() - started, 2), "programs": dict(self._programs)}

    def _header(self) -> dict[str, Any]:
        device = self.shared.device
        return {"platform": device.platform, "device": device.device_kind} | device_header(device)

    def _prepare(self, request: dict[str, Any]) -> dict[str, Any]:
        self._prepared = None
        self._programs.clear()
        gc.collect()  # objects of earlier rows may hold the device's memory
        self._prepared = prepare(
            request["row"],
            Bench(
                self._sizes,
                self.shared,
                registers=tuple(request["registers"]),
                ceilings=request["ceilings"],
                results=request["results"],
                out=Path(request["out"]),
            ),
        )
        return {}

    def _run(self, name: str) -> dict[str, Any]:
        run, self._prepared = self._prepared, None
        assert run is not None
        inject(name, RUN)
        return {"found": asdict(run())}


def prepare(name: str, bench: Bench) -> Callable[[], Measurement]:
    """Compile what a row runs, and return the function that runs it."""
    row = next(row for row in rows_of(bench.sizes) if row.name == name)
    module, function = row.entry.split(":")
    entry = getattr(import_module(f"scripts.gpu.rows.{module}"), function)
    inject(name, PREPARE)
    run: Callable[[], Measurement] = partial(entry, bench, *row.arguments)
    return cast(Any, run)() if row.splits else run


def guarded(do: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what ``do`` does, or the state and the reason of its row."""
    try:
        return do()
    except UnavailableError as missing:
        return {"state": State.UNAVAILABLE, "why": str(missing)}
    except Exception as error:  # a device may raise anything; the other rows still run
        message = f"{type(error).__name__}: {error}"[:2000]
        if isinstance(error, jax.errors.JaxRuntimeError) and _is_lost(error):
            return {"state": State.LOST, "why": f"lost the device: {message}"}
        return {"state": State.RAISED, "why": f"{message}\n{traceback.format_exc(limit=-3)[-2000:]}"}


def count_programs() -> Counter[str]:
    """Return counts that follow JAX from now on: programs "compiled", and "reused" from its cache on disk."""
    programs: Counter[str] = Counter()

    def happened(event: str, **_: Any) -> None:
        if (name := _PROGRAM_EVENTS.get(event)) is not None:
            programs[name] += 1

    jax.monitoring.register_event_listener(happened)
    return programs


def _is_lost(error: Exception) -> bool:
    """Whether CUDA's context is lost: its errors are sticky, so that even a trivial program fails."""
    try:
        np.asarray(jax.device_put(np.arange(4)) + 1)
    except jax.errors.JaxRuntimeError:
        return True
    return "CUDA_ERROR_ILLEGAL" in str(error)


if __name__ == "__main__":
    main()
