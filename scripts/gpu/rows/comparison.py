"""Rows that time other software on the same work. Its errors are not failures of the check."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from scripts.gpu.rows.bench import UnavailableError


def compared(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, which prepares a row or runs it, with every error turned into an UnavailableError."""

    @wraps(function)
    def guarded(*args: object) -> Any:
        try:
            result = function(*args)
        except UnavailableError:
            raise
        except Exception as error:  # other people's software, in versions unknown
            raise UnavailableError(f"{type(error).__name__}: {error}"[:1000]) from error
        return compared(result) if callable(result) else result

    return guarded
