"""End a command by Ctrl-C, also where a library turns it into another error or drops it."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""
AGAIN_SECONDS = 0.05


@dataclass(slots=True)
class Interrupt:
    """Whether Ctrl-C came: a library may raise another error than KeyboardInterrupt then."""

    came: bool = False


@contextmanager
def noting_interrupts() -> Iterator[Interrupt]:
    """Note Ctrl-C, end the process by it while modules are imported, and raise it again where it came in a callback,
    which drops it. Only in the main thread, and only where Ctrl-C has its usual meaning."""
    noted = Interrupt()
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield noted
        return

    def note(_: int, frame: FrameType | None) -> None:
        noted.came = True
        if _imports(frame):  # libraries in C print the exception, or abort; and there is nothing to clean up yet
            os._exit(INTERRUPTED)
        raise KeyboardInterrupt

    tell = sys.unraisablehook

    def drop(unraisable: Any) -> None:
        if isinstance(unraisable.exc_value, KeyboardInterrupt):
            threading.Timer(AGAIN_SECONDS, os.kill, (os.getpid(), signal.SIGINT)).start()
        else:
            tell(unraisable)

    signal.signal(signal.SIGINT, note)
    sys.unraisablehook = drop
    try:
        yield noted
    finally:
        sys.unraisablehook = tell
        if signal.getsignal(signal.SIGINT) is note:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _imports(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
