"""The supervisor's handle of a worker: a process that answers one request at a time, and that may hang or die."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any

from scripts.gpu.result.header import ROOT
from scripts.gpu.result.plan import MEMORY_FRACTION, PROCESSES

WORKER = (sys.executable, "-m", "scripts.gpu.worker")
EXIT_SECONDS = 10.0
"""Seconds for a process to end after it was told to, or killed. If its kernel hangs, the driver must drop it first."""
_PACKAGED_PTXAS = ("nvidia/cu13/bin/ptxas", "nvidia/cuda_nvcc/bin/ptxas")
_TAIL = 3000
"""Last characters of a lost process's output that are kept."""


class LostError(Exception):
    """The process hung or died; the message says which, and ``hung`` too."""

    def __init__(self, message: str, *, hung: bool = False):
        super().__init__(message)
        self.hung = hung


class Child:
    """A worker's process, from its start to its end."""

    def __init__(self, process: str, *, dry_run: bool, cache_dir: Path, log: Path):
        """Start the process; its output is appended to ``log``."""
        self.name = process
        self._log = log
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                [*WORKER, process, "dry" if dry_run else "full"],
                cwd=ROOT,
                env=environment(process, cache_dir, os.environ),
                stdin=subprocess.PIPE,  # closes when this process ends, however it does, which ends the worker
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                process_group=0,
            )
        self._answers: Queue[str | None] = Queue()
        Thread(target=self._pump, daemon=True).start()

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Return the answer to a request. Raises LostError if it does not come in time, or the process ends."""
        self._asked_at = self._log.stat().st_size
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        try:
            line = self._answers.get(timeout=seconds)
        except Empty:
            raise LostError(f"hung and was killed after {seconds:.3g} s", hung=True) from None
        if line is None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(EXIT_SECONDS)
            raise LostError(f"ended its process {_ending(self._process.returncode)}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def last_words(self) -> str:
        """Return the end of its output since the last request."""
        with self._log.open("rb") as log:
            log.seek(self._asked_at)
            return log.read().decode(errors="replace")[-_TAIL:]

    def end(self) -> None:
        """Let the process end, then kill it and all processes that it started."""
        self._close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(EXIT_SECONDS)
        self.kill()

    def kill(self) -> None:
        """Kill it and all processes that it started, and wait until they have left the device."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._close()
        until = time.monotonic() + EXIT_SECONDS
        with suppress(subprocess.TimeoutExpired, ProcessLookupError):
            self._process.wait(EXIT_SECONDS)
            while time.monotonic() < until:
                os.killpg(self._process.pid, 0)
                time.sleep(0.05)

    def _close(self) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def _pump(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as answers:
            for line in answers:
                self._answers.put(line)
        self._answers.put(None)


def environment(process: str, cache_dir: Path, base: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a worker. JAX's cache keeps programs, and XLA's autotuning results of fusions."""
    plan = PROCESSES[process]
    result = {**_defaults(base), **base, **plan.environment}
    if "XLA_FLAGS" in plan.environment:
        result["XLA_FLAGS"] = f"{base.get('XLA_FLAGS', '')} {plan.environment['XLA_FLAGS']}".strip()
    if not plan.compiles_afresh:
        result["JAX_COMPILATION_CACHE_DIR"] = str(cache_dir)
        result["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    return result


def _defaults(base: Mapping[str, str]) -> dict[str, str]:
    """Return variables for JAX that ``base`` does not set: a share of memory, and CUDA_ROOT where no package has ptxas.

    JAX accepts only one of its two names for the share of memory, and does not find another ptxas by itself.
    """
    result = {}
    if "XLA_PYTHON_CLIENT_MEM_FRACTION" not in base:
        result["XLA_CLIENT_MEM_FRACTION"] = MEMORY_FRACTION
    command = shutil.which("ptxas", path=f"{base.get('PATH', '')}:/usr/local/cuda/bin")
    packaged = any((Path(one) / name).exists() for one in sys.path for name in _PACKAGED_PTXAS)
    if command is not None and not packaged:
        result["CUDA_ROOT"] = str(Path(command).parents[1])
    return result


def _ending(status: int | None) -> str:
    if status is not None and status < 0:
        return f"by {signal.Signals(-status).name}"
    return f"with status {status}"
