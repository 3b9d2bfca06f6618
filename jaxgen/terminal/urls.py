"""Keep users and passwords of URLs out of what is printed. Host only, no jax."""

import re

_SECRET = re.compile(r"://.*@", re.DOTALL)


def without_password(text: str) -> str:
    """Return a text without the user and password that it has if it is a URL."""
    return _SECRET.sub("://***@", text)
