"""Rows that compare: what other software takes for the same work. Whatever keeps it from running is no fault here."""

from collections.abc import Callable
from functools import wraps

from scripts.gpu.bench import UnavailableError
from scripts.gpu.report import Measurement


def compared(function: Callable[..., Measurement]) -> Callable[..., Measurement]:
    """The function, whose errors say that a comparison is not to be had."""

    @wraps(function)
    def guarded(*args: object) -> Measurement:
        try:
            return function(*args)
        except UnavailableError:
            raise
        except Exception as error:  # other people's software, in versions unknown
            raise UnavailableError(f"{type(error).__name__}: {error}"[:1000]) from error

    return guarded
