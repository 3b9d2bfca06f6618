"""Stop templates that render for too long.

Jinja's sandbox bounds what a template may access and how long a range is, but not its time: two nested ranges loop 10
billion times. So ``sys.monitoring`` checks the clock in every round of a loop and every call of a macro in the code
that Jinja compiled from the template. This costs other code nothing.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from math import inf
from threading import Lock
from time import monotonic
from types import CodeType
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the import takes time, and only conversations need it
    from jinja2 import Template

_FREE_TOOL_IDS = (4, 3)
"""Tool ids to which Python gives no meaning."""
_claiming = Lock()
_EVENTS = sys.monitoring.events.JUMP | sys.monitoring.events.PY_START
_deadline: ContextVar[float] = ContextVar("deadline of rendering", default=inf)


@contextmanager
def render_limit(template: "Template", seconds: float) -> Iterator[None]:
    """Raise TimeoutError in renderings of ``template`` inside this context after ``seconds``.

    A single operation is not interrupted: a server renders in helper processes, which can be ended.
    """
    _watch(template)
    token = _deadline.set(monotonic() + seconds)
    try:
        yield
    finally:
        _deadline.reset(token)


def _watch(template: "Template") -> None:
    with _claiming:
        tool = _claim_tool()
    for function in (template.root_render_func, *template.blocks.values()):
        for code in _codes(function.__code__):
            sys.monitoring.set_local_events(tool, code, _EVENTS)


@cache
def _claim_tool() -> int:
    tool = next(tool_id for tool_id in _FREE_TOOL_IDS if sys.monitoring.get_tool(tool_id) is None)
    sys.monitoring.use_tool_id(tool, "jaxgen")
    for event in (sys.monitoring.events.JUMP, sys.monitoring.events.PY_START):
        sys.monitoring.register_callback(tool, event, _check)
    return tool


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _check(*_: object) -> None:
    if monotonic() > _deadline.get():
        raise TimeoutError("it takes too long")
