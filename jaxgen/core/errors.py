"""Errors that the engine raises to its callers. Host only, no jax."""


class RequestRefusedError(ValueError):
    """The engine can never run this request. The message names the field and the limit; ``param`` is the field."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class WouldBeLateError(RequestRefusedError):
    """This request would miss a target of its service class, or make another request miss one.

    It may be accepted after ``retry_after`` seconds.
    """

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message, "service_tier")
        self.retry_after = retry_after


class EngineDeadError(RuntimeError):
    """The engine has stopped and takes no more requests."""


class DeviceLostError(RuntimeError):
    """The device runs no step any more after one that failed. Only another process can use it again."""


class ConfigError(ValueError):
    """A setting or a file cannot be used; the message names it and says what would be valid."""
