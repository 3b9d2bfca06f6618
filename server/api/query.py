"""Read the parts of a request outside its body: who asks, and the parameters of its query."""

from starlette.requests import Request

from jaxgen.server.errors import bad_request
from jaxgen.server.middleware.auth import CALLER


def caller(request: Request) -> str:
    """Return the owner of what a request stores: the caller's name, see ``ApiKeys.caller``."""
    return str(request.scope.get(CALLER, ""))


class Query:
    """The parameters of a request's query. Raises ApiError 400 that names an unknown or invalid parameter."""

    def __init__(self, request: Request, known: tuple[str, ...]) -> None:
        self._values = request.query_params
        for name in self._values:
            if name not in known:
                there = f"there are {', '.join(known)}" if known else "there is none"
                raise bad_request(f"Unknown parameter {name[:100]!r}: {there}.", name[:100])

    def text(self, name: str) -> str | None:
        return self._values.get(name)

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        value = self._values.get(name, choices[0])
        if value not in choices:
            raise bad_request(f"{name} must be one of {', '.join(choices)}, not {value[:100]!r}.", name)
        return value

    def limit(self, default: int, most: int) -> int:
        text = self._values.get("limit", str(default))
        if not (text.isascii() and text.isdecimal() and len(text) < 10 and 1 <= int(text) <= most):
            raise bad_request(f"limit must be between 1 and {most}, not {text[:100]!r}.", "limit")
        return int(text)
