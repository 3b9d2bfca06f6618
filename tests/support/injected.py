"""Raise an error in any one place of jaxgen's code: in place of a call of one of its functions, or before a line that
calls anything. Places are found by watching a run.

(An error in place of any call, by the event of calls, would be simpler; it crashes Python 3.12.1 in nested calls.)
"""

import linecache
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import CodeType
from typing import NamedTuple

from tests.support.paths import ROOT

_OURS = f"{ROOT}/jaxgen/"
_TOOL, _EVENTS = sys.monitoring.PROFILER_ID, sys.monitoring.events


class InjectedError(Exception):
    """Stands for any error."""


class Site(NamedTuple):
    """A place in the code."""

    code: CodeType
    line: int
    """0: where it is called."""

    @property
    def file(self) -> str:
        """Within jaxgen's folder."""
        return self.code.co_filename.removeprefix(_OURS)

    def __str__(self) -> str:
        place = f"line {self.line}" if self.line else "the call"
        return f"{self.file}: {place} of {self.code.co_qualname}"


class Watcher:
    """The places that one thread passes while it is ``watched``."""

    def __init__(self) -> None:
        self.counts: Counter[Site] = Counter()
        self.raised = False
        self._thread: int | None = None
        self._target: tuple[Site, int] | None = None

    def begin(self, target: Site | None = None, nth: int = 1) -> None:
        """Count anew; ``target`` will raise InjectedError when it is passed for the ``nth`` time, once."""
        self.counts.clear()
        self.raised = False
        self._target = None if target is None else (target, nth)

    @contextmanager
    def watched(self, thread: int | None = None) -> Iterator[None]:
        """Watch a thread; None: this one."""
        self._thread = threading.get_ident() if thread is None else thread
        try:
            yield
        finally:
            self._thread = None

    def _started(self, code: CodeType, offset: int) -> object:
        return self._line(code, 0)

    def _line(self, code: CodeType, line: int) -> object:
        if not (code.co_filename.startswith(_OURS) and (line == 0 or _calls(code.co_filename, line))):
            return sys.monitoring.DISABLE
        if threading.get_ident() == self._thread:
            site = Site(code, line)
            self.counts[site] += 1
            if self._target == (site, self.counts[site]):
                self.raised = True
                raise InjectedError(str(site))
        return None


@cache
def _calls(file: str, line: int) -> bool:
    """Whether a line calls anything. Not one that begins a ``with``, which is passed again at the end: an error there
    would keep a lock, as no error of the code can."""
    source = linecache.getline(file, line).strip()
    return "(" in source and not source.startswith("with ")


@contextmanager
def watcher() -> Iterator[Watcher]:
    """Places that can be watched inside this context."""
    found = Watcher()
    sys.monitoring.use_tool_id(_TOOL, "tests")
    sys.monitoring.register_callback(_TOOL, _EVENTS.LINE, found._line)
    sys.monitoring.register_callback(_TOOL, _EVENTS.PY_START, found._started)
    sys.monitoring.restart_events()
    sys.monitoring.set_events(_TOOL, _EVENTS.LINE | _EVENTS.PY_START)
    try:
        yield found
    finally:
        sys.monitoring.set_events(_TOOL, 0)
        for event in (_EVENTS.LINE, _EVENTS.PY_START):
            sys.monitoring.register_callback(_TOOL, event, None)
        sys.monitoring.free_tool_id(_TOOL)
