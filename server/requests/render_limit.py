"""An end to templates that render for too long.

Jinja's sandbox bounds what a template reaches and how long a range is, not how long it takes: two ranges, one in the
other, are 10 billion rounds. So the code that Jinja made of a template looks at the clock in every round of its loops
and in every call of its macros, by ``sys.monitoring``, which costs other code nothing.
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

if TYPE_CHECKING:  # who never chats need not wait for it
    from jinja2 import Template

_FREE_TOOL_IDS = (4, 3)
"""Those that Python gives no meaning to."""
_claiming = Lock()
_EVENTS = sys.monitoring.events.JUMP | sys.monitoring.events.PY_START
_deadline: ContextVar[float] = ContextVar("deadline of rendering", default=inf)


@contextmanager
def render_limit(template: "Template", seconds: float) -> Iterator[None]:
    """Raises TimeoutError in what the ``template`` renders inside, after so long. One operation of a template (``'a' *
    10 ** 9``) is not interrupted."""
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
    tool = next(one for one in _FREE_TOOL_IDS if sys.monitoring.get_tool(one) is None)
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
