"""Check paths that the user names. Host only, no jax."""

import os

from jaxgen.core.errors import ConfigError


def check_path(flag: str, path: str | os.PathLike[str]) -> None:
    """Raise ConfigError for a path that is not UTF-8, which libraries in C++ and answers in JSON cannot express."""
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{flag} {os.fspath(path)!a} is not valid UTF-8: use a path that is") from error
