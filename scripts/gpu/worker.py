"""Run rows on request: a request is one line of JSON on stdin, and its answer one line on stdout."""

import faulthandler
import gc
import json
import os
import sys
import time
import traceback
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any

import jax
import numpy as np

from scripts.gpu.bench import Bench, Shared, UnavailableError
from scripts.gpu.faults import inject
from scripts.gpu.header import device_header
from scripts.gpu.plan import PROCESSES
from scripts.gpu.report import State
from scripts.gpu.rows import rows_of
from scripts.gpu.sizes import DRY, FULL, Sizes

_STACK_AT = 0.9
"""Fraction of a row's limit after which the stacks of all threads are printed, since the row may hang."""


def main() -> None:
    """Answer requests. Arguments: the name of the process, and "dry" or "full". All other output goes to stderr."""
    process, size = sys.argv[1:]
    requests: Queue[str] = Queue()
    Thread(target=_read, args=(requests,), daemon=True).start()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    faulthandler.enable()
    shared = Shared()
    if PROCESSES[process].opens_device:
        assert shared.device
    while True:
        out.write(json.dumps(_answer(json.loads(requests.get()), DRY if size == "dry" else FULL, shared)) + "\n")
        out.flush()


def _read(requests: "Queue[str]") -> None:
    """Queue requests from stdin. End the process when stdin closes, which happens when the supervisor ends."""
    for line in sys.stdin:
        requests.put(line)
    os._exit(0)


def _answer(request: dict[str, Any], sizes: Sizes, shared: Shared) -> dict[str, Any]:
    if "row" not in request:
        device = shared.device if request["header"] else None
        return (
            {}
            if device is None
            else {"platform": device.platform, "device": device.device_kind} | device_header(device)
        )
    bench = Bench(
        sizes,
        shared,
        registers=tuple(request["registers"]),
        ceilings=request["ceilings"],
        results=request["results"],
        out=Path(request["out"]),
    )
    faulthandler.dump_traceback_later(_STACK_AT * request["limit"])
    started = time.monotonic()
    try:
        return run_row(request["row"], bench) | {"wall_seconds": round(time.monotonic() - started, 2)}
    finally:
        faulthandler.cancel_dump_traceback_later()


def run_row(name: str, bench: Bench) -> dict[str, Any]:
    """Run a row. Return its measurement under "found", or its state and the reason."""
    row = next(row for row in rows_of(bench.sizes) if row.name == name)
    module, function = row.entry.split(":")
    gc.collect()  # objects of earlier rows may hold the device's memory
    try:
        inject(name)
        entry = getattr(import_module(f"scripts.gpu.{module}"), function)
        return {"found": asdict(entry(bench, *row.arguments))}
    except UnavailableError as missing:
        return {"state": State.UNAVAILABLE, "why": str(missing)}
    except Exception as error:  # a device may raise anything; the other rows still run
        said = f"{type(error).__name__}: {error}"[:2000]
        if isinstance(error, jax.errors.JaxRuntimeError) and _is_lost(error):
            return {"state": State.LOST, "why": f"lost the device: {said}"}
        return {"state": State.RAISED, "why": f"{said}\n{traceback.format_exc(limit=-3)[-2000:]}"}


def _is_lost(error: Exception) -> bool:
    """Whether CUDA's context is lost: its errors are sticky, so that even a trivial program fails."""
    try:
        np.asarray(jax.device_put(np.arange(4)) + 1)
    except jax.errors.JaxRuntimeError:
        return True
    return "CUDA_ERROR_ILLEGAL" in str(error)


if __name__ == "__main__":
    main()
