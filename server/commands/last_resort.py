"""Kill a process that does not even take note of a signal: its interpreter is held by one long operation of C code.

Python writes a signal's number to a pipe at once, even then; a thread reads it, unless the interpreter is held. A small
process of its own looks at that pipe, and reads nothing: where a number stays there, nothing else can end the server.
"""

import os
import signal
import sys
from contextlib import suppress

SECONDS = 5.0
"""How long a signal's number may stay unread."""

_WATCH = """
import os, select, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
numbers, server, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
poll = select.poll()
poll.register(numbers, select.POLLIN)
since = None
while os.getppid() == server:
    found = poll.poll(1000)
    if any(event & select.POLLHUP for _, event in found):
        break
    if not found:
        since = None
        continue
    since = time.monotonic() if since is None else since
    if time.monotonic() - since > seconds:
        os.write(2, b"jaxgen serve: killed: a signal was not taken note of for %d s\\n" % seconds)
        os.kill(server, signal.SIGRTMAX if server == 1 else signal.SIGKILL)
        break
    time.sleep(0.2)
"""


def _let_first_process_end() -> None:
    """Have SIGRTMAX end the first process of a container, which no process inside can kill by another signal.

    The handler is the C library's _exit itself, so it needs no interpreter.
    """
    import ctypes

    library = ctypes.CDLL(None)
    library.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
    library.signal(int(signal.SIGRTMAX), ctypes.cast(library._exit, ctypes.c_void_p))


def start(numbers: int) -> int | None:
    """Start the process that watches the pipe whose read end is ``numbers``; return its id, None where there is none.

    Not by ``subprocess``, whose import takes longer than all else that is done so early.
    """
    command = [sys.executable, "-I", "-S", "-c", _WATCH, str(numbers), str(os.getpid()), str(SECONDS)]
    nowhere = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1)]
    if os.getpid() == 1:
        _let_first_process_end()
    os.set_inheritable(numbers, True)
    try:
        return os.posix_spawn(sys.executable, command, os.environ, file_actions=nowhere, setsid=True)
    except (OSError, NotImplementedError):
        return None
    finally:
        os.set_inheritable(numbers, False)


def dismiss(process: int) -> None:
    """End the process that ``start`` returned."""
    with suppress(OSError):
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
