"""The program of a helper process: it makes objects, calls their methods within limits of memory, and answers.

Messages have 8 bytes of length before them. Requests are pickled, as the parent is trusted; answers are JSON, as the
work may be a stranger's.
"""

import json
import logging
import os
import pickle
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from math import ceil
from pathlib import Path
from typing import Any

from jaxgen.core.errors import RequestRefusedError

STACK_BYTES = 2**28
"""Stack of the thread that works: llguidance recurses as deep as rules refer to rules. The usual 8 MiB are used up at
2,000 rules, and that ends the process."""
LONGEST_ANSWER = 2**26
"""Longest answer, bytes."""
KEPT_BYTES = 2**27
"""Memory that a process may gain between its first call and a later one, bytes; a process with more ends."""
_LENGTH = 8
_MOST_RECORDS = 20
_LONGEST_RECORD = 2**14


def main(descriptor: int) -> None:
    """Serve the requests that come through a socket until it is closed."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # sent to the whole group: the parent drains, then closes the socket
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=_serve, args=(socket.socket(fileno=descriptor),))
    thread.start()
    thread.join()


def send(connection: socket.socket, message: bytes) -> None:
    """Send a message."""
    connection.sendall(len(message).to_bytes(_LENGTH, "big") + message)


def receive(connection: socket.socket, longest: int = sys.maxsize) -> bytes:
    """Return the next message. Raises EOFError where none comes, or one beyond the ``longest``."""
    length = int.from_bytes(_read(connection, _LENGTH), "big")
    if length > longest:
        raise EOFError
    return _read(connection, length)


def _read(connection: socket.socket, length: int) -> bytes:
    received = bytearray()
    while len(received) < length:
        part = connection.recv(min(length - len(received), 2**20))
        if not part:
            raise EOFError
        received += part
    return bytes(received)


def _serve(connection: socket.socket) -> None:
    objects: dict[int, Any] = {}
    calls: dict[str, Callable[..., Any]] = {"make": _make, "call": _call, "drop": _drop}
    send(connection, b"{}")
    with Path(os.devnull).open("wb") as nothing:  # what llguidance writes of an error comes back as the error
        os.dup2(nothing.fileno(), 2)
    log = _Log()
    logging.getLogger("jaxgen").addHandler(log)
    logging.getLogger("jaxgen").setLevel(logging.INFO)
    held = _memory()[1]
    while True:
        try:
            name, *arguments = pickle.loads(receive(connection))
        except (EOFError, ConnectionError):
            return
        answer = _answer(partial(calls[name], objects, *arguments))
        _unlimit()
        answer["log"] = log.taken()
        if name == "make":
            held = _memory()[1]
        ends = _memory()[1] - held > KEPT_BYTES
        send(connection, json.dumps({**answer, "ends": ends}).encode())
        if ends:
            return


class _Log(logging.Handler):
    """Keeps what is logged for the parent, who logs it."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._records: list[tuple[str, int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if len(self._records) < _MOST_RECORDS:
            self._records.append((record.name, record.levelno, record.getMessage()[:_LONGEST_RECORD]))

    def taken(self) -> list[tuple[str, int, str]]:
        records, self._records = self._records, []
        return records


def _answer(work: Callable[[], Any]) -> dict[str, Any]:
    """Return what becomes of a request: a value, a refusal, or a failure in words."""
    try:
        value = work()
        if len(json.dumps(value)) > LONGEST_ANSWER:
            raise MemoryError
        return {"value": value}
    except RequestRefusedError as error:
        return {"refused": [str(error), error.param]}
    except MemoryError:
        return {"memory": True}
    except TimeoutError:
        return {"late": True}
    except BaseException as error:  # a panic of llguidance is not an Exception
        return {"failed": f"{type(error).__name__}: {error}"[:1000]}


def _make(objects: dict[int, Any], key: int, factory: str, arguments: tuple[Any, ...]) -> None:
    module, _, name = factory.partition(":")
    objects[key] = getattr(import_module(module), name)(*arguments)


def _call(
    objects: dict[int, Any],
    key: int,
    method: str,
    arguments: tuple[Any, ...],
    options: dict[str, Any],
    limits: tuple[float, int],
) -> Any:
    _limit(*limits)
    return getattr(objects[key], method)(*arguments, **options)


def _drop(objects: dict[int, Any], key: int) -> None:
    objects.pop(key, None)


def _limit(seconds: float, memory: int) -> None:
    """Limit the process to this much more memory and time of a processor; the system ends it beyond the latter."""
    if size := _memory()[0]:
        resource.setrlimit(resource.RLIMIT_AS, (size + memory, _hard(resource.RLIMIT_AS)))
    most = ceil(time.process_time() + seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (most, _hard(resource.RLIMIT_CPU)))


def _unlimit() -> None:
    for kind in (resource.RLIMIT_AS, resource.RLIMIT_CPU):
        resource.setrlimit(kind, (_hard(kind), _hard(kind)))


def _hard(kind: int) -> int:
    return resource.getrlimit(kind)[1]


def _memory() -> tuple[int, int]:
    """Return the bytes of the process's addresses and of its memory; zeros where the system does not say."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return 0, 0
    size, held = statm.read_text().split()[:2]
    return int(size) * resource.getpagesize(), int(held) * resource.getpagesize()
