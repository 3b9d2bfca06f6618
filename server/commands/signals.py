"""Handle the signals that end a server, from the first lines of its process to the last.

Python runs a signal's handler between two bytecodes of the main thread, which may be inside a compiler for a minute.
But it writes the signal's number to a file descriptor at once: a thread waits for that, and acts by itself.
"""

import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from jaxgen.server.commands import last_resort

TYPE_CHECKING = False  # not from typing, whose import takes as long as all others here
if TYPE_CHECKING:
    from typing import NoReturn

ENDING = (signal.SIGTERM, signal.SIGINT)
HANDLED = (*ENDING, signal.SIGHUP)
CHILD_SECONDS = 1.0
"""Time that child processes get to remove their temporary files."""
LAST_SECONDS = 10.0
"""Time that everything gets to end, beyond what a server gives its requests."""
STDERR = 2
_ACTING = b"\0"
"""What is in the pipe while a signal is acted on: no signal has this number."""


class SignalWatch:
    """Acts on signals in a thread. Made in the main thread; from then on a signal ends the process at once, with 0.

    Within ``delivered`` signals are given to a function instead.
    """

    def __init__(self) -> None:
        self._doing = "while starting"
        self._take: Callable[[int], object] | None = None
        self._seconds = 0.0
        numbers, self._written = os.pipe()
        os.set_blocking(self._written, False)
        self._claim()
        for number in sorted(HANDLED):  # SIGTERM is the last, so with its handler the others are there
            signal.signal(number, self._relay)
            signal.siginterrupt(number, False)
        threading.Thread(target=self._watch, args=(numbers,), name="jaxgen-signals", daemon=True).start()
        self._last_resort = last_resort.start(numbers)

    @contextmanager
    def delivered(self, take: Callable[[int], object], seconds: float) -> Iterator[None]:
        """Give signals to ``take``, which runs in the watching thread.

        A process has ``seconds`` and LAST_SECONDS to end after a signal, or LAST_SECONDS after a second one. Then it
        logs the stacks of its threads and ends with 1, whatever hangs.
        """
        self._seconds, self._take = seconds, take
        self._claim()
        try:
            yield
        finally:
            self._take, self._doing = None, "while ending"

    def dismiss(self) -> None:
        """End the process that would kill this one."""
        if self._last_resort is not None:
            last_resort.dismiss(self._last_resort)

    def _claim(self) -> int:
        """Have the numbers of signals written to our pipe. Return the file descriptor that got them until now."""
        return signal.set_wakeup_fd(self._written, warn_on_full_buffer=False)

    def _relay(self, number: int, _: FrameType | None) -> None:
        """Python's handler, which has nothing to do unless an event loop had put its file descriptor in our place."""
        if self._claim() != self._written:
            os.write(self._written, bytes([number]))

    def _watch(self, numbers: int) -> None:
        readable = select.poll()
        readable.register(numbers, select.POLLIN)
        while True:
            readable.poll()  # returns once the interpreter is free: until then ``last_resort`` sees what is unread
            for number in os.read(numbers, 64):
                if number in HANDLED:
                    os.write(self._written, _ACTING)  # read once that is done
                    self._act(number)

    def _act(self, number: int) -> None:
        take, name = self._take, signal.Signals(number).name
        if take is not None:
            if number in ENDING:
                self._bound()
            with suppress(RuntimeError):  # the event loop that it was for has just been closed
                take(number)
        elif number in ENDING:
            end_at_once(0, f"ended by {name} {self._doing}")
        else:
            _say(f"{name} is ignored {self._doing}")

    def _bound(self) -> None:
        import faulthandler

        faulthandler.dump_traceback_later(self._seconds + LAST_SECONDS, exit=True, file=STDERR)
        self._seconds = 0.0


_watches: list[SignalWatch] = []


def watch() -> SignalWatch:
    """Return the process's watch, which begins with the first call; that must come from the main thread."""
    if not _watches:
        _watches.append(SignalWatch())
    return _watches[0]


def end_at_once(code: int, message: str) -> "NoReturn":
    """End the process and its child processes without waiting for its threads; ``message`` is its last line."""
    import logging

    logging.disable()  # threads may find that their child processes are gone
    with suppress(Exception):
        _end_children()
    _say(message)
    os._exit(code)


def _end_children() -> None:
    import psutil

    for one in _watches:
        one.dismiss()
    children = psutil.Process().children(recursive=True)
    for act in (psutil.Process.terminate, psutil.Process.kill):
        for child in children:
            with suppress(psutil.NoSuchProcess):
                act(child)
        _, children = psutil.wait_procs(children, CHILD_SECONDS)


def _say(text: str) -> None:
    """Write a line to standard error, past ``sys.stderr``, whose lock another thread may have."""
    line = f"jaxgen serve: {text}\n".encode()
    with suppress(OSError):
        os.write(STDERR, b"\n" + line if os.isatty(STDERR) else line)
