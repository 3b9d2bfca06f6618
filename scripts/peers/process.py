"""A peer's server as a process tree: started, waited for, its memory watched, ended."""

import json
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from scripts.peers.peer import SERVED_NAME, Launch, PeerError, last_lines
from scripts.peers.shapes import ROOT

START_SECONDS = 900.0
STOP_SECONDS = 15.0
RSS_EVERY_SECONDS = 0.5
STARTING = 503
HOST = "127.0.0.1"


class RunningServer:
    """``model``: its name in requests; ``log``: what it prints."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path, model: str = SERVED_NAME) -> None:
        self.base_url = f"http://{HOST}:{port}/v1"
        self.start_seconds = 0.0
        self.peak_rss = 0
        """Bytes, the greatest sum over the processes of the tree; what they share counts for each."""
        self._process = process
        self._tree = psutil.Process(process.pid)  # here, before anyone waits for it: its number is sure to be its own
        self._log = log
        self._model = model
        self._watching = threading.Event()

    def wait_until_ready(self, limit: float = START_SECONDS) -> None:
        """Until it completes a request. Raises PeerError when it ends, or has not in ``limit`` seconds."""
        begin = time.monotonic()
        while True:
            self.check()
            try:
                timeout = max(0.1, min(60.0, begin + limit - time.monotonic()))
                self.complete({"prompt": [5, 6, 7], "max_tokens": 1}, timeout=timeout)
                break
            except OSError as error:
                if time.monotonic() - begin > limit:
                    raise PeerError(f"not ready in {limit:g} s ({error}):\n{last_lines(self._log)}") from error
            time.sleep(0.2)
        self.start_seconds = time.monotonic() - begin

    def cpu_seconds(self) -> float:
        """Return the time that cores have spent on the process and its children."""
        parts = [self._tree, *self._tree.children(recursive=True)]
        return sum(times.user + times.system for times in (part.cpu_times() for part in parts))

    def check(self) -> None:
        """Raises PeerError when the process has ended."""
        if self._process.poll() is not None:
            raise PeerError(f"the server ended with {self._process.returncode}:\n{last_lines(self._log)}")

    def complete(self, fields: dict[str, object], timeout: float = 120.0) -> dict[str, Any]:
        """The JSON answer to one greedy request without a stream. Raises OSError, or PeerError when it is refused."""
        body = json.dumps({"model": self._model, "temperature": 0.0, "ignore_eos": True, **fields}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.base_url}/completions", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                result: dict[str, Any] = json.loads(answer.read())
        except urllib.error.HTTPError as error:
            if error.code == STARTING:
                raise
            raise PeerError(f"HTTP {error.code}: {error.read(2000).decode(errors='replace')}") from error
        return result

    def watch(self) -> None:
        """Keep ``peak_rss``, until ``stop``."""
        while not self._watching.wait(RSS_EVERY_SECONDS):
            with suppress(psutil.NoSuchProcess):
                parts = [self._tree, *self._tree.children(recursive=True)]
                self.peak_rss = max(self.peak_rss, sum(part.memory_info().rss for part in parts))

    def stop(self) -> None:
        """End the process and all that it started."""
        self._watching.set()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@contextmanager
def running(
    launch: Launch, port: int, cores: list[int], log: Path, limit: float = START_SECONDS, model: str = SERVED_NAME
) -> Iterator[RunningServer]:
    """A server on these cores that is ready. Raises PeerError when it does not become so in ``limit`` seconds."""
    with log.open("wb") as file, _only(cores):
        process = subprocess.Popen(
            launch.command,
            cwd=ROOT,
            env={**os.environ, **launch.env},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    server = RunningServer(process, port, log, model)
    watch = threading.Thread(target=server.watch)
    watch.start()
    try:
        server.wait_until_ready(limit)
        yield server
    finally:
        server.stop()
        watch.join()


@contextmanager
def _only(cores: list[int]) -> Iterator[None]:
    """What this thread starts inherits the cores that it may use."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def free_port() -> int:
    with socket.create_server((HOST, 0)) as free:
        port: int = free.getsockname()[1]
    return port
