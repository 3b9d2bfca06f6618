"""Errors that callers of the engine may see. Host only, no jax."""


class RequestRefusedError(ValueError):
    """The engine can never run this request; the message names the field and the limit, ``param`` the field again."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class WouldBeLateError(RequestRefusedError):
    """What its class promises cannot be kept for this request; in ``retry_after`` seconds perhaps."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message, "service_tier")
        self.retry_after = retry_after


class EngineDeadError(RuntimeError):
    """The engine has stopped and takes no more requests."""


class DeviceLostError(RuntimeError):
    """After a step that failed the device runs no other: only another process can have it back."""


class ConfigError(ValueError):
    """A setting or a file that cannot be honoured; the message names it and what would be right."""
