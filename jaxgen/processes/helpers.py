"""Do work with helper processes in turns by caller, so that nobody's slow work is another's wait."""

import atexit
import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from jaxgen.core.errors import TooMuchWaitsError
from jaxgen.processes.child import STACK_BYTES
from jaxgen.processes.helper import Helper

MOST = 2
"""Processes at once."""
MOST_WAITING = 4096
"""Most works of one caller that wait."""
MOST_CHARACTERS = 2**24
"""Most characters of these together, unless none waits."""

type Work = Callable[[Helper], Any]


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    work: Work
    length: int
    result: Future[Any] = field(default_factory=Future)


class Helpers:
    """A few helper processes, each with one work at a time.

    Callers take turns. One caller never has all processes, so that its slow work holds up nobody else's. Work without
    a caller may have all of them.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._changed = threading.Condition()
        self._waiting: dict[str, deque[_Job]] = {}
        """By caller, the one whose turn is next first."""
        self._first: deque[_Job] = deque()
        """Work that all other work waits for."""
        self._preparing = False
        """Whether such work runs."""
        self._running: Counter[str] = Counter()
        self._free: list[Helper] = []
        self._all: list[Helper] = []
        self._threads: list[threading.Thread] = []
        self._closed = False

    def submit[Result](self, caller: str, work: Callable[[Helper], Result], length: int = 0) -> "Future[Result]":
        """Return a future of what ``work`` returns, which is called in a thread with a large stack.

        ``length``: characters that the work holds. Raises TooMuchWaitsError.
        """
        job = _Job(work, length)
        with self._changed:
            waiting = self._waiting.setdefault(caller, deque())
            if waiting and (
                len(waiting) >= MOST_WAITING or sum(one.length for one in waiting) + length > MOST_CHARACTERS
            ):
                raise TooMuchWaitsError(
                    "too many grammars and conversations of yours wait: send fewer requests at a time"
                )
            waiting.append(job)
            self._wake()
        return job.result

    def prepare[Result](self, work: Callable[[Helper], Result]) -> "Future[Result]":
        """Submit work; unlike with ``submit``, all other work that has not begun waits until it is done, and finds its
        process."""
        job = _Job(work, 0)
        with self._changed:
            self._first.append(job)
            self._wake()
        return job.result

    def close(self) -> None:
        """End all processes. Work under way fails."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for helper in self._all:
            helper.close()

    def _wake(self) -> None:
        if len(self._threads) < self._most:
            self._start_thread()
        self._changed.notify()

    def _start_thread(self) -> None:
        before = threading.stack_size(STACK_BYTES)  # a setting of the process
        try:
            thread = threading.Thread(target=self._serve, name="jaxgen-helper", daemon=True)
            thread.start()
        finally:
            threading.stack_size(before)
        self._threads.append(thread)

    def _serve(self) -> None:
        while True:
            with self._changed:
                while (found := self._next()) is None:
                    if self._closed:
                        return
                    self._changed.wait()
                caller, job = found
                helper = self._free.pop() if self._free else self._new()
            _run(job, helper)
            del job, found  # they may hold much
            with self._changed:
                self._free.append(helper)
                if caller is None:
                    self._preparing = False
                else:
                    self._running.subtract([caller])
                    self._running += Counter()  # without callers that have none
                self._changed.notify_all()

    def _next(self) -> tuple[str | None, _Job] | None:
        """Take the work of the caller whose turn it is, or of none that all wait for; None: there is none, or it must
        wait."""
        if self._preparing:
            return None
        if self._first:
            self._preparing = True
            return None, self._first.popleft()
        for caller, jobs in self._waiting.items():
            if self._running[caller] < (max(1, self._most - 1) if caller else self._most):
                job = jobs.popleft()
                del self._waiting[caller]
                if jobs:
                    self._waiting[caller] = jobs  # at the end
                self._running[caller] += 1
                return caller, job
        return None

    def _new(self) -> Helper:
        helper = Helper()
        self._all.append(helper)
        return helper


def _run(job: _Job, helper: Helper) -> None:
    if not job.result.set_running_or_notify_cancel():
        return
    try:
        result = job.work(helper)
    except BaseException as error:
        job.result.set_exception(error)
    else:
        job.result.set_result(result)


@cache
def shared() -> Helpers:
    """Return those of this process."""
    helpers = Helpers()
    atexit.register(helpers.close)
    return helpers
