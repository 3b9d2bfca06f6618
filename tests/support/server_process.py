"""``jaxgen serve`` in a process of its own, as users run it."""

import logging
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

from tests.support.paths import ROOT

logger = logging.getLogger(__name__)

START_SECONDS = 120
SMALL = ("--max-model-len", "512", "--token-budget", "32", "--max-num-seqs", "4")


@dataclass
class ServerProcess:
    """A server in a process of its own that has said that it is ready."""

    process: subprocess.Popen[str]
    line: str
    """What it prints when it is ready: lines, of which the last is a request to try."""
    errors: Path

    @property
    def url(self) -> str:
        """It ends with /v1."""
        found = re.search(r"https?://[\w.:\[\]]+/v1", self.line)
        assert found, self.line
        return found[0]

    @property
    def root(self) -> str:
        return self.url.removesuffix("/v1")

    def log(self) -> str:
        """All it has said on stderr until now."""
        return self.errors.read_text(encoding="utf-8")

    def last(self) -> str:
        """The last line of that."""
        return self.log().splitlines()[-1]


@contextmanager
def served(
    *arguments: str,
    environment: dict[str, str] | None = None,
    module: tuple[str, ...] = ("jaxgen.server.cli",),
    at: tuple[str, ...] = ("--port", "0"),
    cwd: Path = ROOT,
) -> Iterator[ServerProcess]:
    """A server that is ready, at a free port or ``at`` another place; killed at the end. ``module``: what is run as
    jaxgen, with its own arguments."""
    command = [sys.executable, "-m", *module, "serve", *at, *SMALL, *arguments]
    # A file: a pipe that nobody reads stops the server when it is full of log lines. It is read by its name, since an
    # open file's position is the server's too.
    with tempfile.NamedTemporaryFile("w") as errors:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=os.environ | (environment or {}),
        )
        watchdog = threading.Timer(START_SECONDS, process.kill)
        watchdog.start()
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline()]
            while lines[-1] and not lines[-1].startswith("Try: "):
                lines.append(process.stdout.readline())
            server = ServerProcess(process, "".join(lines), Path(errors.name))
            watchdog.cancel()
            assert server.line, server.log()
            yield server
        finally:
            watchdog.cancel()
            process.kill()
            process.communicate()


@dataclass
class Starting:
    """A process that has just been started."""

    process: subprocess.Popen[bytes]
    pid: int
    """The server's own, in our namespace."""
    errors: Path

    def handles(self, number: int) -> bool:
        """Whether the process has a handler for the signal. A first process does not get signals without one."""
        try:
            masks = Path(f"/proc/{self.pid}/status").read_text()
        except FileNotFoundError:
            return False
        caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", masks, re.MULTILINE)
        return caught is not None and int(caught[1], 16) >> (number - 1) & 1 == 1

    def told(self, number: int) -> int:
        """The exit code after a signal."""
        os.kill(self.pid, number)
        return self.process.wait(START_SECONDS)

    def lines(self) -> list[str]:
        """What it has said on stderr."""
        return self.errors.read_text().splitlines()


@contextmanager
def starting(
    *arguments: str, first: bool = False, environment: dict[str, str] | None = None, serve: bool = True
) -> Iterator[Starting]:
    """A server at a free port that is only starting; killed at the end. ``first``: with the process id 1, as in a
    container. Not ``serve``: another program, whose arguments for python these are."""
    server = ("-m", "jaxgen.server.cli", "serve", "--port", "0", *SMALL) if serve else ()
    around = _first_process() if first else ()
    with tempfile.NamedTemporaryFile("w") as errors:
        process = subprocess.Popen(
            [*around, sys.executable, *server, *arguments],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env=os.environ | (environment or {}),
        )
        try:
            yield Starting(process, _child(process.pid) if around else process.pid, Path(errors.name))
        finally:
            process.kill()
            process.wait()


@cache
def _first_process() -> tuple[str, ...]:
    """A command that gives the command after it the process id 1; empty where that is not allowed, which is said."""
    own = ("--pid", "--fork", "--mount-proc", "--kill-child")
    for command in (("unshare", *own), ("unshare", "--user", "--map-root-user", *own)):
        try:
            if subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0:
                return command
        except FileNotFoundError:
            break
    logger.warning("no process namespaces here: a server is not the first process, but a child like others")
    return ()


def _child(pid: int) -> int:
    parent = psutil.Process(pid)
    until(lambda: bool(parent.children()))
    return int(parent.children()[0].pid)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.0005)


def is_running(pid: int) -> bool:
    """Whether there is such a process, other than one that has ended and waits for its parent."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
