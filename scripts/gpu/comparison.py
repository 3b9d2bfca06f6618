"""Rows that time other software on the same work. Its errors are not failures of the check."""

from collections.abc import Callable
from functools import wraps

from scripts.gpu.bench import UnavailableError
from scripts.gpu.report import Measurement


def compared(function: Callable[..., Measurement]) -> Callable[..., Measurement]:
    """Return the function with every error turned into an UnavailableError."""

    @wraps(function)
    def guarded(*args: object) -> Measurement:
        try:
            return function(*args)
        except UnavailableError:
            raise
        except Exception as error:  # other people's software, in versions unknown
            raise UnavailableError(f"{type(error).__name__}: {error}"[:1000]) from error

    return guarded
