"""Start server processes on chosen cores, and SMG in front of them."""

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from scripts.peers.peer import last_lines
from scripts.peers.process import HOST, START_SECONDS, STOP_SECONDS, free_port
from scripts.peers.shapes import ROOT


class ScalingError(Exception):
    """A process did not start; the message says what it printed last."""


class Process:
    """A server that has been started, perhaps not ready yet. ``cores``: those that it may use; None: all."""

    def __init__(self, command: Sequence[object], port: int, log: Path, cores: Sequence[int] | None = None) -> None:
        self.port = port
        self._log = log
        only = [] if cores is None else ["taskset", "--cpu-list", ",".join(map(str, cores))]
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [*only, *map(str, command)], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
            )
        self._seen = psutil.Process(self._process.pid)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def cpu_seconds(self) -> float:
        """Return the processor time until now, in seconds."""
        times = self._seen.cpu_times()
        return float(times.user + times.system)

    @property
    def resident_bytes(self) -> int:
        return int(self._seen.memory_info().rss)

    def wait(self, path: str = "/ready") -> None:
        """Wait until it answers with 200 there. Raises ScalingError when it ends or takes too long."""
        until = time.monotonic() + START_SECONDS
        while True:
            if self._process.poll() is not None or time.monotonic() > until:
                raise ScalingError(f"{self._process.args!r} is not ready:\n{self.last_lines}")
            with suppress(OSError, urllib.error.URLError), urllib.request.urlopen(self.url + path, timeout=5):
                return
            time.sleep(0.2)

    @property
    def last_lines(self) -> str:
        """Return the last lines that it has printed."""
        return last_lines(self._log)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS)
        self._process.kill()
        self._process.wait()


@contextmanager
def started(
    commands: Sequence[Sequence[object]], logs: Path, cores: Sequence[Sequence[int] | None]
) -> Iterator[list[Process]]:
    """Start servers, as many at a time as there are cores, and yield them when they are ready.

    A command lacks its port, the last word.
    """
    running: list[Process] = []
    together = len(os.sched_getaffinity(0))
    try:
        for number, (command, own) in enumerate(zip(commands, cores, strict=True)):
            if number >= together:
                running[number - together].wait()
            port = free_port()
            running.append(Process([*command, port], port, logs / f"server-{number}.log", own))
        for server in running:
            server.wait()
        yield running
    finally:
        for server in running:
            server.stop()


@contextmanager
def routed(smg: Path, servers: Sequence[Process], logs: Path) -> Iterator[Process]:
    """Start SMG in front of the servers, in turn, and yield it when it has found all of them healthy."""
    port = free_port()
    command: list[object] = [smg, "launch", "--host", HOST, "--port", port, "--policy", "round_robin"]
    command += ["--worker-urls", *(server.url for server in servers), "--worker-startup-check-interval", 1]
    command += ["--prometheus-host", HOST, "--prometheus-port", free_port()]
    router = Process(command, port, logs / f"smg-{len(servers)}.log")
    try:
        router.wait("/workers")
        wanted, until = {server.url for server in servers}, time.monotonic() + START_SECONDS
        while _healthy(router) != wanted:
            if time.monotonic() > until:
                raise ScalingError(f"SMG has not found all of {', '.join(sorted(wanted))}:\n{router.last_lines}")
            time.sleep(0.2)
        yield router
    finally:
        router.stop()


def _healthy(router: Process) -> set[str]:
    with urllib.request.urlopen(f"{router.url}/workers", timeout=5) as answer:
        return {one["url"] for one in json.load(answer)["workers"] if one["is_healthy"]}
