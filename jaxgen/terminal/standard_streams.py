"""Open the standard streams that a process was started without. Only os and sys: the first lines of a server use it."""

import os
import sys

_NAMES = ("stdin", "stdout", "stderr")


def open_standard_streams() -> None:
    """Open the null device in place of standard input, output and error that are closed.

    Some supervisors start daemons so. Libraries write to ``sys.stderr``, which is None then, and the next socket that
    is opened would be standard error to all that writes there by number. Call this before anything else is opened.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) < len(_NAMES):
        os.set_inheritable(number, True)
    os.close(number)
    for number, name in enumerate(_NAMES):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", buffering=1, encoding="utf-8", closefd=False))  # noqa: SIM115
