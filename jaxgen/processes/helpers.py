"""Do work with helper processes in turns by caller, so that nobody's slow work is another's wait."""

import atexit
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from jaxgen.core.errors import HelperLostError, TooCostlyError, TooMuchWaitsError
from jaxgen.processes.child import STACK_BYTES
from jaxgen.processes.helper import Helper, Target
from jaxgen.processes.turns import MOST_AT_LIMIT, Turns

logger = logging.getLogger(__name__)

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

    Callers take turns, first the one whose work took the least time lately. One caller never has all processes, nor
    have all those together whose work took long lately. So slow work holds up nobody else's. Work without a caller may
    have all of them.
    """

    def __init__(self, most: int = MOST, *, refuses: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        """``refuses``: what the works are; a caller's new ones are refused for a while after some that reached their
        limits. Empty: none are."""
        self._most = most
        self._refuses = refuses
        self._clock = clock
        self._turns = Turns()
        self._changed = threading.Condition()
        self._waiting: dict[str, deque[_Job]] = {}
        """By caller, the one that waits longest for its turn first."""
        self._first: deque[_Job] = deque()
        """Work that all other work waits for."""
        self._preparing = False
        """Whether such work runs."""
        self._running: Counter[str] = Counter()
        self._free: list[Helper] = []
        self._all: list[Helper] = []
        self._threads: list[threading.Thread] = []
        self._closed = False

    def submit[Result](
        self, caller: str, work: Callable[[Helper], Result], length: int = 0, *, cheap: bool = False
    ) -> "Future[Result]":
        """Return a future of what ``work`` returns, which is called in a thread with a large stack.

        ``length``: characters that the work holds. ``cheap``: it is not refused for what others of its caller took.
        Raises TooMuchWaitsError, TooCostlyError, and HelperLostError where no thread can be started.
        """
        job = _Job(work, length)
        with self._changed:
            if not cheap:
                self._check_costs(caller)
            waiting = self._waiting.get(caller, ())
            if waiting and (
                len(waiting) >= MOST_WAITING or sum(job.length for job in waiting) + length > MOST_CHARACTERS
            ):
                raise TooMuchWaitsError(
                    "too many grammars and conversations of yours wait: send fewer requests at a time"
                )
            self._have_threads()
            self._waiting.setdefault(caller, deque()).append(job)
            self._changed.notify()
        return job.result

    def prepare[Result](self, work: Callable[[Helper], Result]) -> "Future[Result]":
        """Submit work; unlike with ``submit``, all other work that has not begun waits until it is done, and finds its
        process."""
        job = _Job(work, 0)
        with self._changed:
            self._have_threads()
            self._first.append(job)
            self._changed.notify()
        return job.result

    def close(self) -> None:
        """End all processes. Work under way fails."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for helper in self._all:
            helper.close()

    def _check_costs(self, caller: str) -> None:
        seconds = self._turns.refused_for(caller, self._clock()) if self._refuses else 0.0
        if seconds > 0.0:
            raise TooCostlyError(
                f"{MOST_AT_LIMIT} {self._refuses} of yours took too much time or memory: simplify them, and send new "
                f"ones after {seconds:.0f} s",
                seconds,
            )

    def _have_threads(self) -> None:
        """Start a thread if there may be one more."""
        if len(self._threads) >= self._most:
            return
        before = threading.stack_size(STACK_BYTES)  # a setting of the process
        try:
            thread = threading.Thread(target=self._serve, name="jaxgen-helper", daemon=True)
            thread.start()
            self._threads.append(thread)
        except RuntimeError as error:
            if not self._threads:
                raise HelperLostError(f"no thread can be started for a helper process: {error}") from error
        finally:
            threading.stack_size(before)

    def _serve(self) -> None:
        while True:
            with self._changed:
                while (turn := self._next()) is None:
                    if self._closed:
                        return
                    self._changed.wait()
                caller, job = turn
                helper = self._free.pop() if self._free else self._new()
            made, at_limit, began = helper.made, helper.num_at_limit, self._clock() - helper.start_seconds
            _run(job, helper)
            del job, turn  # they may hold much
            with self._changed:
                if caller is None:
                    self._preparing = False
                else:
                    now = self._clock()
                    seconds = now - helper.start_seconds - began
                    self._turns.took(caller, seconds, now, at_limit=helper.num_at_limit > at_limit)
                    self._running.subtract([caller])
                    self._running += Counter()  # without callers that have none
                self._changed.notify_all()
            if made and not helper.made:
                self._start_again(helper, made)
            with self._changed:
                self._free.append(helper)
                self._changed.notify_all()

    def _start_again(self, helper: Helper, made: list[Target]) -> None:
        """Start a process in the place of one that was ended, for which the next work would wait."""
        try:
            if not self._closed:
                helper.start_again(made)
        except Exception as error:  # the next work tries again, and its caller is told
            logger.warning("a helper process is not started again: %s", error)

    def _next(self) -> tuple[str | None, _Job] | None:
        """Take the work of the caller whose turn it is, or work that all wait for; None: there is none, or it must
        wait."""
        if self._preparing:
            return None
        if self._first:
            self._preparing = True
            return None, self._first.popleft()
        now = self._clock()
        for caller in self._turns.in_order(self._waiting, now):
            if self._may_begin(caller, now):
                jobs = self._waiting.pop(caller)
                job = jobs.popleft()
                if jobs:
                    self._waiting[caller] = jobs  # at the end
                self._running[caller] += 1
                return caller, job
        return None

    def _may_begin(self, caller: str, now: float) -> bool:
        """Whether enough processes are left to others while work of this caller runs."""
        most = max(1, self._most - 1)
        if not caller or self._running[caller] >= most:
            return not caller
        turns = self._turns
        return not turns.is_long(caller, now) or most > sum(
            number for other, number in self._running.items() if turns.is_long(other, now)
        )

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
def for_grammars() -> Helpers:
    """Return those of this process that make and compile grammars."""
    return _until_exit(Helpers(refuses="grammars"))


@cache
def for_conversations() -> Helpers:
    """Return those of this process that render conversations, which never wait for a grammar."""
    return _until_exit(Helpers())


def _until_exit(helpers: Helpers) -> Helpers:
    atexit.register(helpers.close)
    return helpers
