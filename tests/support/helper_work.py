"""Work that tests give to helper processes."""

import ctypes
import os
import signal
import time
from pathlib import Path
from typing import Any

from jaxgen.core.errors import RequestRefusedError


class Work:
    def __init__(self, *given: Any) -> None:
        self.given = given

    def given_at_first(self) -> Any:
        return self.given

    def pid(self) -> int:
        return os.getpid()

    def echo(self, value: Any) -> Any:
        return value

    def sleep(self, seconds: float) -> str:
        time.sleep(seconds)
        return "slept"

    def power(self) -> int:
        return len(str(bool(10 ** (10**9))))

    def take(self, num_bytes: int) -> int:
        return len(b"x" * num_bytes)

    def keep(self, num_bytes: int) -> None:
        self.given = (b"x" * num_bytes,)

    def crash(self) -> None:
        ctypes.string_at(0)

    def be_killed(self, mark: str, times: int) -> str:
        """End as the system ends a process that takes its memory, the first ``times`` times."""
        path = Path(mark)
        path.write_text(path.read_text() + "x" if path.exists() else "x")
        if len(path.read_text()) <= times:
            os.kill(os.getpid(), signal.SIGKILL)
        return path.read_text()

    def refuse(self) -> None:
        raise RequestRefusedError("it is not blue", "colour")

    def fail(self) -> None:
        raise KeyError("nothing there")

    def recurse(self, depth: int) -> int:
        return 0 if depth == 0 else 1 + self.recurse(depth - 1)
