"""Find the route that a caller meant whose path is none: one ``/v1`` too many or too few, or a slip of a key."""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from itertools import dropwhile

from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope

from jaxgen.server.middleware.context import route_path

PREFIX = "v1"
_FIRST = {"GET": "/v1/models", "POST": "/v1/chat/completions"}
"""By method: the route that callers of the prefix alone need first."""
MOST_CHARACTERS = 200
"""Longest path for which another is looked for."""


def nearest_route(scope: Scope, routes: Sequence[BaseRoute]) -> str | None:
    """Return the path, as the caller should write it, of the route that is nearest to the request's; None: none is.

    Routes that take the request's method come first.
    """
    root, path = scope.get("root_path", ""), route_path(scope)
    if len(path) > MOST_CHARACTERS:
        return None
    known = [route for route in routes if isinstance(route, Route)]
    first = _FIRST.get(scope["method"])
    if path.strip("/") == PREFIX and any(route.path == first for route in known):
        return f"{root}{first}"
    for spelling in _spellings(path):
        if any(route.matches({**scope, "path": root + spelling})[0] == Match.FULL for route in known):
            return f"{root}{spelling}"
    for methods in ({scope["method"]}, None):
        paths = [route.path for route in known if methods is None or methods <= (route.methods or methods)]
        for spelling in _spellings(path):
            longer = [path for path in paths if path.startswith(f"{spelling}/")]
            if nearest := [*longer[:1], *get_close_matches(spelling, paths, 1, 0.8)]:
                return f"{root}{nearest[0]}"
    return None


def _spellings(path: str) -> Iterator[str]:
    """Yield what may have been meant: the path without empty segments, with one ``/v1`` at its beginning or without."""
    segments = [segment for segment in path.split("/") if segment]
    rest = list(dropwhile(PREFIX.__eq__, segments))
    yield "/" + "/".join((PREFIX, *rest))
    if rest:
        yield "/" + "/".join(rest)
