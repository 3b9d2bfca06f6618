"""A helper process as its parent sees it: calls with limits of time and memory, after which the process is ended."""

import json
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from jaxgen.core.errors import HelperLostError, RequestRefusedError
from jaxgen.processes.child import LONGEST_ANSWER, receive, send

logger = logging.getLogger(__name__)

MEMORY = 2**29
"""Bytes that one call may take."""
START_SECONDS = 60.0
"""Longest time in which a process starts, and in which it makes an object."""
WAITS = 3
_MOST_OBJECTS = 8
_OWN_SIGNALS = {signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP}
"""Signals by which a process ends for what it did itself: a library ends it where it gets no memory."""
_PROGRAM = "import sys; sys.path[:] = {path!r}; from jaxgen.processes.child import main; main({descriptor})"


class Target:
    """An object that helper processes make when they first need it; its methods take and return JSON's values."""

    def __init__(self, factory: str, arguments: Callable[[], tuple[Any, ...]] = tuple) -> None:
        """``factory``: a function or class, as ``module:name``; it is called with the ``arguments``."""
        self.factory = factory
        self.arguments = arguments


class Helper:
    """A process that is started at the first call, and again after it was ended. One thread at a time uses it."""

    def __init__(self, memory: int = MEMORY) -> None:
        self._memory = memory
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._made: dict[Target, int] = {}
        self._keys = count()
        self.num_at_limit = 0
        """Calls that reached a limit."""
        self.start_seconds = 0.0
        """Seconds in which processes started and made their objects."""

    @property
    def pid(self) -> int | None:
        """The process id; None: there is no process now."""
        return None if self._process is None else self._process.pid

    def call(self, target: Target, method: str, *arguments: Any, seconds: float, **options: Any) -> Any:
        """Return what a method of the target returns. ``seconds``: of a processor, rounded up, so that a busy machine
        refuses no more; of the clock it may take WAITS times as many. A start does not count.

        Raises TimeoutError and MemoryError at the limits, which mostly end the process; RequestRefusedError as the
        method does; and RuntimeError with the words of any other error of it. Another process is asked once where
        something else ended this one. Raises HelperLostError where that happens again, or no process starts.
        """
        request = (method, arguments, options, (seconds, self._memory))
        try:
            try:
                return self._call(target, request, seconds)
            except _EndedError as error:
                logger.warning("%s: another does it again", error)
                return self._call(target, request, seconds)
        except (TimeoutError, MemoryError):
            self.num_at_limit += 1
            raise

    def start_again(self, targets: list[Target]) -> None:
        """Start a process that has made these targets, so that no later call waits for them."""
        began = time.monotonic()
        for target in targets:
            if target not in self._made:
                self._make(target)
        self.start_seconds += time.monotonic() - began

    @property
    def made(self) -> list[Target]:
        """What the process has made; empty: there is no process now."""
        return list(self._made)

    def close(self) -> None:
        """End the process, whatever it does."""
        self._made.clear()
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _call(self, target: Target, request: tuple[Any, ...], seconds: float) -> Any:
        if self._process is not None and self._process.poll() is not None:
            self.close()  # somebody ended it while it had no work
        self.start_again([target])
        return self._ask(("call", self._made[target], *request), seconds)

    def _status(self) -> int:
        """End the process and return its exit status; of one that a signal had ended, the number below zero."""
        assert self._process is not None
        if self._connection is not None:
            self._connection.close()
        try:
            status = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            status = 0
        self.close()
        return status

    def _make(self, target: Target) -> None:
        if len(self._made) >= _MOST_OBJECTS:
            self._ask(("drop", self._made.pop(next(iter(self._made)))), START_SECONDS)
        key = next(self._keys)
        try:
            self._ask(("make", key, target.factory, target.arguments()), START_SECONDS)
        except (TimeoutError, MemoryError) as error:  # no caller's work has begun
            raise HelperLostError(f"a helper process could not make {target.factory}: {error!r}") from error
        self._made[target] = key

    def _ask(self, request: tuple[Any, ...], seconds: float) -> Any:
        message = _pickled(request)
        if self._connection is None:
            self._start()
        answer = self._exchange(message, time.monotonic() + WAITS * seconds)
        for name, level, text in answer["log"]:
            logging.getLogger(name).log(level, "%s", text)
        if answer.get("ends"):
            self.close()
        if "refused" in answer:
            raise RequestRefusedError(*answer["refused"])
        if "failed" in answer:
            raise RuntimeError(str(answer["failed"]))
        if "late" in answer:
            raise TimeoutError
        if "memory" in answer:
            raise MemoryError
        return answer["value"]

    def _start(self) -> None:
        try:
            self._process, self._connection = _started()
        except OSError as error:  # no descriptor, no memory, no process more
            raise HelperLostError(f"no helper process can be started: {error}") from error
        try:
            self._receive(time.monotonic() + START_SECONDS)
        except (EOFError, ConnectionError, TimeoutError) as error:
            self.close()
            raise HelperLostError("a helper process does not start; standard error has its reason") from error

    def _exchange(self, message: bytes, deadline: float) -> dict[str, Any]:
        """Send a request and return its answer; end the process where none comes in time."""
        assert self._connection is not None
        try:
            self._connection.settimeout(max(deadline - time.monotonic(), 0.001))
            send(self._connection, message)
            return self._receive(deadline)
        except TimeoutError as error:
            stopped = self._is_stopped()
            self.close()
            if stopped:
                raise HelperLostError("a helper process was stopped in its work") from error
            raise
        except (EOFError, ConnectionError, ValueError) as error:
            status = self._status()
            if status == -signal.SIGXCPU:
                raise TimeoutError from error
            if -status in _OWN_SIGNALS:
                raise MemoryError from error
            how = f"by signal {-status}" if status < 0 else f"with status {status}"
            raise _EndedError(f"a helper process ended in its work {how}") from error

    def _is_stopped(self) -> bool:
        """Whether somebody has stopped the process, which then uses no time; False where the system does not say."""
        stat = Path(f"/proc/{self.pid}/stat")
        return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] in "Tt"

    def _receive(self, deadline: float) -> dict[str, Any]:
        assert self._connection is not None
        self._connection.settimeout(max(deadline - time.monotonic(), 0.001))
        answer: dict[str, Any] = json.loads(receive(self._connection, LONGEST_ANSWER * 2))
        return answer


class _EndedError(HelperLostError):
    """The process ended in its work, and not for what the work did: the system or a person ended it."""


def _started() -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a process and return it with its connection. Raises OSError."""
    ours, theirs = socket.socketpair()
    with theirs:
        program = _PROGRAM.format(path=sys.path, descriptor=theirs.fileno())
        try:
            process = subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                # One arena: each thread's would take addresses, which the limit of memory counts.
                env={**os.environ, "MALLOC_ARENA_MAX": "1"},
            )
        except OSError:
            ours.close()
            raise
    return process, ours


def _pickled(request: tuple[Any, ...]) -> bytes:
    try:
        return pickle.dumps(request)
    except RecursionError as error:
        raise RequestRefusedError("it is nested too deep") from error
