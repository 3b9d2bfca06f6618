"""Bound what single operations of a chat template make: ``10 ** 10 ** 8`` would hold the interpreter for minutes.

Jinja's sandbox lets a program look at binary operators (``intercepted_binops``), and calls go through the environment.
Operators must be intercepted while a template is compiled, since the compiler computes what is constant. The widths
that filters and methods take are bounded as well, and the texts that these make. Not bounded is a filter whose
arguments are all constants, which the compiler computes.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from threading import Lock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the import takes time, and only conversations need it
    from jinja2 import Template

MOST_BITS = 8192
"""Most bits of an integer."""
MOST_ENTRIES = 2**20
"""Most entries of a list, and most characters by which a filter or method may widen a text."""
MOST_CHARACTERS = 2**24
"""Most characters of a text that an operator makes: more than the longest body has."""
_WIDE_PERCENT = re.compile(r"%[^a-zA-Z%]*(\d{6,}|\*)")
_WIDE_BRACES = re.compile(r"\{[^{}]*:[^{}]*\d{6,}")
_compiling = Lock()


@contextmanager
def intercepting() -> Iterator[None]:
    """Have Jinja leave these operators to the environment in templates that are compiled within.

    Another program's environments compute them as ever.
    """
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    with _compiling:
        before = ImmutableSandboxedEnvironment.intercepted_binops
        ImmutableSandboxedEnvironment.intercepted_binops = frozenset(_OPERATORS)
        try:
            yield
        finally:
            ImmutableSandboxedEnvironment.intercepted_binops = before


def bound(template: "Template") -> None:
    """Bound the operations of a template that was compiled in ``intercepting``; a second call does nothing."""
    environment: Any = template.environment
    if "call" in vars(environment):
        return
    environment.binop_table = {**environment.binop_table, **_OPERATORS}
    environment.filters = {name: _checked(name, call) for name, call in environment.filters.items()}
    environment.globals.pop("lipsum", None)  # writes as many words as it is told
    environment.call = _checked_call(environment.call)
    names = template.root_render_func.__globals__
    for name in ("str_join", "markup_join"):
        if name in names:
            names[name] = _checked_join(names[name])


def _too_much(what: str) -> OverflowError:
    return OverflowError(f"{what} is too much for a chat template")


def _power(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * abs(right) > MOST_BITS:
        raise _too_much("a power")
    return left**right


def _times(left: Any, right: Any) -> Any:
    for one, other in ((left, right), (right, left)):
        if isinstance(other, int):
            if isinstance(one, int) and one.bit_length() + other.bit_length() > MOST_BITS:
                raise _too_much("a product")
            if isinstance(one, str | bytes | list | tuple):
                most = MOST_CHARACTERS if isinstance(one, str | bytes) else MOST_ENTRIES
                if len(one) * other > most:
                    raise _too_much("a repetition")
    return left * right


def _plus(left: Any, right: Any) -> Any:
    if isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
        most = MOST_CHARACTERS if isinstance(left, str) else MOST_ENTRIES
        if len(left) + len(right) > most:
            raise _too_much("a sum")
    return left + right


def _modulo(left: Any, right: Any) -> Any:
    if isinstance(left, str) and _WIDE_PERCENT.search(left):
        raise _too_much("a width")
    return left % right


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {"**": _power, "*": _times, "+": _plus, "%": _modulo}


def _check_arguments(name: str, target: Any, args: tuple[Any, ...], fields: Mapping[str, Any]) -> None:
    """Check what a filter or a method of ``target`` is given. Raises OverflowError."""
    given = (*args, *fields.values())
    for value in given:
        if isinstance(value, int) and abs(value) > MOST_ENTRIES:
            raise _too_much("an argument")
    if (
        name in ("format", "format_map")
        and isinstance(target, str)
        and (_WIDE_PERCENT.search(target) or _WIDE_BRACES.search(target))
    ):
        raise _too_much("a width")
    if name == "replace" and isinstance(target, str):
        old, new, *_ = [*[one for one in given if isinstance(one, str)], "", ""]
        if target.count(old) * len(new) > MOST_CHARACTERS:
            raise _too_much("a replacement")
    if name == "join":
        lists = [one for one in (target, *given) if isinstance(one, list | tuple)]
        between = max([len(one) for one in (target, *given) if isinstance(one, str)], default=0)
        for parts in lists:
            if sum([len(part) + between for part in parts if isinstance(part, str)]) > MOST_CHARACTERS:
                raise _too_much("a text")


def _result(value: Any) -> Any:
    if isinstance(value, str) and len(value) > MOST_CHARACTERS:
        raise _too_much("a text")
    return value


def _checked(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter with bounds. Jinja passes the context, or the environment, first to those that say so."""
    given_first = 1 if getattr(call, "jinja_pass_arg", None) is not None else 0

    @wraps(call)
    def checked(*args: Any, **fields: Any) -> Any:
        own = args[given_first:]
        _check_arguments(name, own[0] if own else None, own[1:], fields)
        return _result(call(*args, **fields))

    return checked


def _checked_call(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``Environment.call`` with bounds on methods of texts and numbers."""

    def checked(context: Any, method: Any, /, *args: Any, **fields: Any) -> Any:
        method_itself = getattr(method, "__wrapped__", method)  # the sandbox wraps str.format
        target = getattr(method_itself, "__self__", None)
        if not isinstance(target, str | bytes | int):
            return call(context, method, *args, **fields)
        _check_arguments(getattr(method_itself, "__name__", ""), target, args, fields)
        return _result(call(context, method, *args, **fields))

    return checked


def _checked_join(join: Callable[[Iterable[Any]], str]) -> Callable[[Iterable[Any]], str]:
    """Return what compiled templates call for ``~``, with a bound."""

    def checked(parts: Iterable[Any]) -> str:
        texts = [part if isinstance(part, str) else str(part) for part in parts]
        if sum([len(text) for text in texts]) > MOST_CHARACTERS:
            raise _too_much("a text")
        return join(texts)

    return checked
