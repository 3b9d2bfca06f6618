"""A thread that runs calls in order, from a queue of bounded length. Host only, no jax."""

import queue
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress


class Worker:
    """Runs calls, which must not raise, in a daemon thread: one that hangs does not keep the process from ending.

    The thread ends with ``close``, the object, or the process.
    """

    def __init__(self, name: str, most_queued: int) -> None:
        self._calls: queue.Queue[Callable[[], None] | None] = queue.Queue(most_queued)
        self._thread = threading.Thread(target=_run, args=(self._calls,), name=f"jaxgen-{name}", daemon=True)
        self._thread.start()
        weakref.finalize(self, _end, self._calls)

    def submit(self, call: Callable[[], None]) -> bool:
        """Queue a call and return at once; return False if the queue is full."""
        try:
            self._calls.put_nowait(call)
        except queue.Full:
            return False
        return True

    def close(self, seconds: float) -> bool:
        """Run what is queued, then end the thread; return whether it ended within the given seconds."""
        until = time.monotonic() + seconds
        with suppress(queue.Full):
            self._calls.put(None, timeout=seconds)
        self._thread.join(max(0.0, until - time.monotonic()))
        return not self._thread.is_alive()


def _end(calls: "queue.Queue[Callable[[], None] | None]") -> None:
    with suppress(queue.Full):  # then the thread hangs, and ends with the process
        calls.put_nowait(None)


def _run(calls: "queue.Queue[Callable[[], None] | None]") -> None:
    while True:
        call = calls.get()
        if call is None:
            return
        call()
        del call
