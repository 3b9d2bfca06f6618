"""Read long texts in threads. What waits is bounded, and short texts do not wait behind long ones."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from math import ceil
from threading import Lock
from time import monotonic
from typing import Any

from jaxgen.server.errors import ApiError
from jaxgen.server.limits import Queue

SHORT_CHARS = 2**16
"""Longest text that goes with the short ones: a thread reads it in some 50 ms."""
CHARS_PER_SECOND = 2**20
"""About what a thread reads of English or code."""


class TextQueue:
    """Two lanes of threads, one for texts of up to SHORT_CHARS and one for longer ones.

    ``place`` counts what a request brings, in one of the lanes, until the request has been read or its caller has left.
    ``run`` reads one text of it.
    """

    def __init__(self, limits: Queue) -> None:
        self._short = _Lane("short", limits.encode_threads)
        self._long = _Lane("long", 1)
        self._most_chars = limits.max_queued_characters

    @property
    def num_chars(self) -> int:
        """Characters of all texts that wait or are read."""
        return self._short.num_chars + self._long.num_chars

    @contextmanager
    def place(self, length: int) -> Iterator[None]:
        """Count a request's texts of ``length`` characters together. Raises ApiError 429 where too much waits.

        A lane in which nothing waits takes any request. Requests with long texts do not count against others.
        """
        lane = self._lane(length)
        if lane.num_chars and lane.num_chars + length > self._most_chars:
            raise ApiError(
                429,
                f"The server is at its limit: {lane.num_chars} characters wait for its tokenizer, and this request has "
                f"{length}.",
                code="queue_full",
                headers={"Retry-After": str(ceil(lane.num_chars / 2 / CHARS_PER_SECOND))},
            )
        lane.num_chars += length
        try:
            yield
        finally:
            lane.num_chars -= length

    async def run[Result](self, read: Callable[[], Result], length: int) -> Result:
        """Return what ``read`` returns, from a thread; it reads a text of ``length`` characters."""
        return await self._lane(length).run(read, length)

    def _lane(self, length: int) -> "_Lane":
        return self._short if length <= SHORT_CHARS else self._long


class _Job:
    """A text to read. ``due``: orders jobs; a shorter text goes before one that came a little earlier, and none waits
    for ever."""

    def __init__(self, read: Callable[[], Any], length: int) -> None:
        self.read = read
        self.due = monotonic() + length / CHARS_PER_SECOND
        self.result: Future[Any] = Future()


class _Lane:
    """Threads, and the texts that wait for them."""

    def __init__(self, name: str, num_threads: int) -> None:
        self.num_chars = 0
        """Characters of the requests that have a place here."""
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix=f"jaxgen-encode-{name}")
        self._waiting: list[_Job] = []
        self._lock = Lock()

    async def run[Result](self, read: Callable[[], Result], length: int) -> Result:
        job = _Job(read, length)
        with self._lock:
            self._waiting.append(job)
        self._threads.submit(self._read_next)
        waits = asyncio.wrap_future(job.result)
        try:
            result: Result = await waits
            return result
        except asyncio.CancelledError:
            self._forget(job)
            raise
        finally:
            del job, waits  # else an error holds, through this frame, itself and the text

    def _forget(self, job: _Job) -> None:
        """Drop a job that still waits, as its caller has left: it holds a text."""
        with self._lock:
            if job in self._waiting:
                self._waiting.remove(job)

    def _read_next(self) -> None:
        with self._lock:
            if not self._waiting:
                return
            job = min(self._waiting, key=lambda job: job.due)
            self._waiting.remove(job)
        if not job.result.set_running_or_notify_cancel():
            return
        try:
            job.result.set_result(job.read())
        except BaseException as error:
            job.result.set_exception(error)
            del job  # as above
