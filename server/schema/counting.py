"""Count what a body has many of before it is validated: pydantic calls Python for each part, on the event loop."""

from collections.abc import Mapping
from functools import cache
from typing import Any, get_args

from jaxgen.server.errors import bad_request
from jaxgen.server.schema.base import Body

MAX_KEYS = 1000
"""Most keys of one object whose fields are all named: an unknown key is a fault, for each of which an error is made."""

type _Kinds = frozenset[type[Body]]


class _TooManyError(Exception):
    """There are too many of something. ``steps``: where, the innermost first."""

    def __init__(self, words: str) -> None:
        self.words = words
        self.steps: list[str] = []


def check_parts(kind: type[Body], data: dict[str, Any], most: int, apart: frozenset[str]) -> None:
    """Raise ApiError 400 for more than ``most`` parts, blocks, calls, results and edits in a body together, and for an
    object with too many keys. ``apart``: fields that have limits of their own for their entries."""
    counter = _Counter(most)
    try:
        counter.fields(frozenset({kind}), data, apart)
    except _TooManyError as error:
        field = ".".join(reversed(error.steps))[:200]
        raise bad_request(f"{field}: {error.words}", field) from None


class _Counter:
    def __init__(self, most: int) -> None:
        self._most = most
        self._num = 0

    def fields(self, kinds: _Kinds, value: Mapping[str, Any], apart: frozenset[str] = frozenset()) -> None:
        """Count what is in an object of one of these kinds."""
        for name, inner in _nested(kinds).items():
            given = value.get(name)
            try:
                if isinstance(given, list):
                    self._entries(inner, given, counts=name not in apart)
                elif isinstance(given, dict):
                    self._object(inner, given)
            except _TooManyError as error:
                error.steps.append(name)
                raise

    def _entries(self, kinds: _Kinds, entries: list[Any], *, counts: bool) -> None:
        if counts:
            self._num += len(entries)
        if self._num > self._most:
            raise _TooManyError(
                f"with this the body has {self._num} parts, blocks, calls, results and edits or more; "
                f"this server takes {self._most} together (--max-parts)."
            )
        for i, entry in enumerate(entries):
            if isinstance(entry, dict):
                try:
                    self._object(kinds, entry)
                except _TooManyError as error:
                    error.steps.append(str(i))
                    raise

    def _object(self, kinds: _Kinds, value: dict[str, Any]) -> None:
        if len(value) > MAX_KEYS and _are_named(kinds):
            raise _TooManyError(f"it has {len(value)} fields; this server takes {MAX_KEYS} in one object.")
        self.fields(kinds, value)


@cache
def _nested(kinds: _Kinds) -> dict[str, _Kinds]:
    """Return the kinds of objects in each field of objects of these kinds."""
    fields: dict[str, _Kinds] = {}
    for kind in kinds:
        for name, field in kind.model_fields.items():
            if inner := _kinds_in(field.annotation):
                key = field.alias or name
                fields[key] = fields.get(key, frozenset()) | inner
    return fields


def _kinds_in(annotation: Any) -> _Kinds:
    """Return the kinds of objects that a type has in it."""
    if isinstance(annotation, type) and issubclass(annotation, Body):
        return frozenset({annotation})
    return frozenset[type[Body]]().union(*map(_kinds_in, get_args(annotation)))


@cache
def _are_named(kinds: _Kinds) -> bool:
    return any(kind.model_config.get("extra") == "forbid" for kind in kinds)
