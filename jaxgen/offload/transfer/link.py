"""One direction of the link between device and host memory, with a thread that copies so that no step waits for it."""

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax

AHEAD = 2
"""Copies under way at the same time, so that the link never waits for the thread."""


@dataclass(slots=True, eq=False)
class Transfer:
    """One copy. The other fields are valid only once ``done`` is True."""

    pieces: Any
    """The arrays to copy; once done, their copies."""
    num_bytes: int
    submitted: float
    done: bool = field(default=False)
    error: Exception | None = field(default=None)
    seconds: float = field(default=0.0)
    """Seconds in which it used the link: from the end of the copy before it, or its submission, to its end."""


class Link:
    """Copies pytrees of arrays, in the order given. Its thread ends with ``close``, the object, or the process."""

    def __init__(
        self,
        name: str,
        copy: Callable[[Any], Any],
        arrived: threading.Condition,
    ) -> None:
        """``copy`` begins a copy and returns its result; ``arrived`` is notified when a copy has ended."""
        self.bytes_per_second: float | None = None
        """Simulates a slower link, in tests and measurements: an arrival is delayed until a link of that rate would
        have copied its bytes."""
        self.num_bytes = 0
        """Bytes copied so far."""
        self.busy_seconds = 0.0
        self._queue: deque[Transfer] = deque()
        self._wake = threading.Condition()
        state = _State(self._queue, self._wake, copy, arrived, weakref.ref(self))
        threading.Thread(target=_run, args=(state,), name=f"jaxgen-{name}", daemon=True).start()
        self._state = state
        self.close = weakref.finalize(self, _close, state)

    def submit(self, pieces: Any) -> Transfer:
        """Queue a copy of a pytree of arrays and return at once."""
        num_bytes = sum(array.nbytes for array in jax.tree.leaves(pieces))
        transfer = Transfer(pieces, num_bytes, time.perf_counter())
        with self._wake:
            self._queue.append(transfer)
            self._wake.notify()
        return transfer


@dataclass(slots=True, eq=False)
class _State:
    """State of the thread. It has only a weak reference to the Link, which may be garbage-collected."""

    queue: deque[Transfer]
    wake: threading.Condition
    copy: Callable[[Any], Any]
    arrived: threading.Condition
    link: "weakref.ref[Link]"
    closed: bool = False


def _close(state: _State) -> None:
    with state.wake:
        state.closed = True
        state.wake.notify()


def _run(state: _State) -> None:
    under_way: deque[Transfer] = deque()
    last = 0.0
    while True:
        with state.wake:
            while not (state.queue or under_way or state.closed):
                state.wake.wait()
            if state.closed:
                return
            begins = state.queue.popleft() if state.queue and len(under_way) < AHEAD else None
        if begins is not None:
            _begin(state, begins)
            under_way.append(begins)
        else:
            last = _finish(state, under_way.popleft(), last)


def _begin(state: _State, transfer: Transfer) -> None:
    try:
        transfer.pieces = state.copy(transfer.pieces)
    except Exception as error:  # any error of a runtime that has no memory left
        transfer.error = error


def _finish(state: _State, transfer: Transfer, last: float) -> float:
    """Wait for the end of a transfer and return its time."""
    started = max(transfer.submitted, last)
    if transfer.error is None:
        try:
            jax.block_until_ready(transfer.pieces)
        except Exception as error:
            transfer.error = error
    link = state.link()
    if link is not None and link.bytes_per_second is not None:
        time.sleep(max(0.0, started + transfer.num_bytes / link.bytes_per_second - time.perf_counter()))
    ended = time.perf_counter()
    transfer.seconds = ended - started
    if link is not None and transfer.error is None:
        link.num_bytes += transfer.num_bytes
        link.busy_seconds += transfer.seconds
    with state.arrived:
        transfer.done = True
        state.arrived.notify_all()
    return ended
