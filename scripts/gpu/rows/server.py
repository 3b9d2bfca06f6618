"""Start a server as users do: `jaxgen serve` of a model with random weights, whose cache fills the device.

`jaxgen benchmark` sends its load, and `jaxgen verify-determinism` checks the same model. The server lives as long as
its worker's process, for all its rows.
"""

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from jaxgen.weights.packaged.tiny import make_tiny_outline
from scripts.gpu.result.header import ROOT
from scripts.gpu.result.report import Measurement, Run
from scripts.gpu.rows.bench import Bench, UnavailableError
from scripts.gpu.rows.work import ServerLoad

JAXGEN = (sys.executable, "-m", "jaxgen.server.cli")
NOT_A_USERS = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_PREALLOCATE", "JAX_COMPILATION_CACHE_DIR")
"""Variables of a worker's process that a user's shell has not."""
POLL_SECONDS = 0.25
STOP_SECONDS = 20.0
VERIFIED = 8
"""Requests of ``verify-determinism``, each of which it computes many times."""
_TAIL = 3000
_MISSING = re.compile(r"No module named '[\w.]+'|PackageNotFoundError: .*")


@dataclass(frozen=True)
class Server:
    """A server that is ready."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def get(self, path: str) -> str:
        """Return the body of a page."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            return str(answer.read().decode())

    def printed(self) -> str:
        return self.log.read_text(errors="replace")[-_TAIL:]

    def stop(self) -> None:
        """Stop it, and wait until the device is free again."""
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(STOP_SECONDS)


_RUNNING: list[Server] = []
"""The server of this process, if there is one."""


def start(bench: Bench) -> Measurement:
    """Start the server, stopping the one before it. ``seconds``: until it is ready.

    ``detail.cached_programs``: compiled programs that were there before, of which a cold start has none.
    """
    load, folder = bench.sizes.server, server_cache()
    cached = count_programs(folder)
    model = model_directory(load)
    began = time.monotonic()
    server = _started_anew(load, model, folder)
    seconds = time.monotonic() - began
    detail = {
        "cached_programs": cached,
        "programs": count_programs(folder),
        "flags": list(load.flags),
        "facts": facts_of(server.get("/metrics")),
        "printed": server.printed(),
    }
    return Measurement(seconds=seconds, detail=detail)


def benchmark(bench: Bench, clients: int, requests: int) -> Run:
    """Run ``jaxgen benchmark`` with the given clients. ``seconds``: of the load; ``detail`` has what it reports.

    Starts a server if none runs, as in a run that resumes another.
    """
    load = bench.sizes.server
    if not _RUNNING or _RUNNING[-1].process.poll() is not None:
        _started_anew(load, model_directory(load), server_cache())
    return partial(_loaded, load, _RUNNING[-1], clients, requests)


def _loaded(load: ServerLoad, server: Server, clients: int, requests: int) -> Measurement:
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "run.jsonl"
        flags: dict[str, object] = {
            "base-url": f"http://127.0.0.1:{server.port}/v1",
            "clients": clients,
            "requests": requests,
            "prompt-mean": load.prompt,
            "output-mean": load.answer,
            "temperature": 0,
            "output": output,
        }
        status, printed = _run("benchmark", flags)
        if status or not output.exists():
            raise _error("jaxgen benchmark", status, printed)
        (point,) = json.loads(output.read_text().splitlines()[-1])["points"]
    lost = point["requests"]["sent"] - point["requests"]["completed"]
    failure = f"{lost} of {point['requests']['sent']} requests were not completed" if lost else None
    return Measurement(seconds=point["duration_s"], detail={"clients": clients, **point}, failure=failure)


def verify(bench: Bench) -> Measurement:
    """Run ``jaxgen verify-determinism`` on the server's model, with the server stopped. All bits must agree."""
    load = bench.sizes.server
    _stop()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "report.json"
        flags: dict[str, object] = {"model": model_directory(load), "load-format": "dummy", "kernels": load.kernels}
        status, printed = _run(
            "verify-determinism", flags | {"requests": VERIFIED, "cache-dir": server_cache(), "json": output}
        )
        if not output.exists():
            raise _error("jaxgen verify-determinism", status, printed)
        report = json.loads(output.read_text())
    failure = f"not all bits agree: {printed.splitlines()[-1]}" if status else None
    return Measurement(seconds=time.monotonic() - began, detail=report, failure=failure)


def _run(command: str, flags: Mapping[str, object]) -> tuple[int, str]:
    """Run a command of jaxgen, and return its status and the end of its output."""
    words = (word for name, value in flags.items() for word in (f"--{name}", str(value)))
    done = subprocess.run(
        (*JAXGEN, command, *words),
        cwd=ROOT,
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    return done.returncode, done.stdout.decode(errors="replace")[-_TAIL:]


@cache
def model_directory(load: ServerLoad) -> Path:
    """Write a model's config.json and a tokenizer, without weights."""
    directory = Path(tempfile.mkdtemp(prefix="jaxgen-gpu-check-model-"))
    make_tiny_outline(directory, **json.loads(load.config))
    return directory


def server_cache() -> Path:
    """Return the server's cache directory, inside that of the workers, with which it is kept."""
    kept = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    return Path(kept) / "server" if kept else Path(tempfile.mkdtemp(prefix="jaxgen-gpu-check-cache-"))


def count_programs(folder: Path) -> int:
    """Return the number of compiled programs in JAX's caches below a folder."""
    return sum(1 for _ in folder.rglob("*-cache"))


def facts_of(metrics: str) -> dict[str, str]:
    """Return what a server's /metrics says of itself: the labels of each ``*_info``."""
    result = {}
    for line in metrics.splitlines():
        if line.startswith("jaxgen_") and (info := re.match(r"(\w+_info)\{(.*)\} 1", line)):
            result[info[1]] = info[2]
    return result


def _started_anew(load: ServerLoad, model: Path, folder: Path) -> Server:
    """Stop the server that runs, and return a new one."""
    _stop()
    _RUNNING.append(_started(load, model, folder))
    return _RUNNING[-1]


def _stop() -> None:
    while _RUNNING:
        _RUNNING.pop().stop()


def _started(load: ServerLoad, model: Path, folder: Path) -> Server:
    """Return the server once it is ready. Raises RuntimeError if it ends before; the row's limit ends a wait."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    log = Path(tempfile.mkdtemp(prefix="jaxgen-gpu-check-log-")) / "server.log"
    named = ("--model", str(model), "--load-format", "dummy", "--port", str(port), "--cache-dir", str(folder))
    with log.open("wb") as output:
        process = subprocess.Popen(
            (*JAXGEN, "serve", *named, "--kernels", load.kernels, *load.flags),
            cwd=ROOT,
            env=_environment(),
            stdout=output,
            stderr=output,
        )
    server = Server(process, port, log)
    while process.poll() is None:
        with suppress(OSError):
            server.get("/ready")
            return server
        time.sleep(POLL_SECONDS)
    print(server.printed(), file=sys.stderr)
    raise _error("jaxgen serve", process.returncode, server.printed())


def _error(command: str, status: int, printed: str) -> Exception:
    """Return the error for a command that failed: what is missing here is not jaxgen's failure."""
    if missing := _MISSING.findall(printed):
        return UnavailableError(f"{command} needs packages that are not here: {missing[-1]}")
    return RuntimeError(f"{command} ended with status {status}: {printed}")


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in NOT_A_USERS}
