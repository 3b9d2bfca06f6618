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
from typing import Any

from jaxgen.core.errors import RequestRefusedError
from jaxgen.processes.child import LONGEST_ANSWER, receive, send

MEMORY = 2**29
"""Bytes that one call may take."""
START_SECONDS = 60.0
"""Longest time in which a process starts, and in which it makes an object."""
WAITS = 3
_MOST_OBJECTS = 8
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

    @property
    def pid(self) -> int | None:
        """The process id; None: there is no process now."""
        return None if self._process is None else self._process.pid

    def call(self, target: Target, method: str, *arguments: Any, seconds: float, **options: Any) -> Any:
        """Return what a method of the target returns. ``seconds``: of a processor, rounded up, so that a busy machine
        refuses no more; of the clock it may take WAITS times as many. A start does not count.

        Raises TimeoutError and MemoryError at the limits, which mostly end the process; RequestRefusedError as the
        method does; and RuntimeError with the words of any other error of it.
        """
        if self._process is not None and self._process.poll() is not None:
            self.close()  # somebody ended it while it had no work
        if target not in self._made:
            self._make(target)
        return self._ask(("call", self._made[target], method, arguments, options, (seconds, self._memory)), seconds)

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

    def _ended_by(self) -> int:
        """End the process and return the signal that had ended it; 0: none had."""
        assert self._process is not None
        if self._connection is not None:
            self._connection.close()
        try:
            ended_by = -self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            ended_by = 0
        self.close()
        return ended_by

    def _make(self, target: Target) -> None:
        if len(self._made) >= _MOST_OBJECTS:
            self._ask(("drop", self._made.pop(next(iter(self._made)))), START_SECONDS)
        key = next(self._keys)
        self._ask(("make", key, target.factory, target.arguments()), START_SECONDS)
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
        ours, theirs = socket.socketpair()
        with theirs:
            program = _PROGRAM.format(path=sys.path, descriptor=theirs.fileno())
            self._process = subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                # One arena: each thread's would take addresses, which the limit of memory counts.
                env={**os.environ, "MALLOC_ARENA_MAX": "1"},
            )
        self._connection = ours
        try:
            self._receive(time.monotonic() + START_SECONDS)
        except (EOFError, ConnectionError, TimeoutError) as error:
            self.close()
            raise RuntimeError("a helper process does not start; standard error has its reason") from error

    def _exchange(self, message: bytes, deadline: float) -> dict[str, Any]:
        """Send a request and return its answer; end the process where none comes in time."""
        assert self._connection is not None
        try:
            self._connection.settimeout(max(deadline - time.monotonic(), 0.001))
            send(self._connection, message)
            return self._receive(deadline)
        except TimeoutError:
            self.close()
            raise
        except (EOFError, ConnectionError, ValueError) as error:
            if self._ended_by() == signal.SIGXCPU:
                raise TimeoutError from error
            raise MemoryError from error  # it was killed, or a library ended it where it got no memory

    def _receive(self, deadline: float) -> dict[str, Any]:
        assert self._connection is not None
        self._connection.settimeout(max(deadline - time.monotonic(), 0.001))
        answer: dict[str, Any] = json.loads(receive(self._connection, LONGEST_ANSWER * 2))
        return answer


def _pickled(request: tuple[Any, ...]) -> bytes:
    try:
        return pickle.dumps(request)
    except RecursionError as error:
        raise RequestRefusedError("it is nested too deep") from error
