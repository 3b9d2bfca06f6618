"""Errors that the engine raises to its callers, and the commands to their users. Host only, no jax."""

import os
import sys


class RequestRefusedError(ValueError):
    """The engine can never run this request. The message names the field and the limit; ``param`` is the field."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ContextLengthError(RequestRefusedError):
    """Prompt and answer are longer than the context; all lengths are in tokens.

    ``param`` is ``max_tokens``, or ``prompt`` if the prompt alone is too long. ``at_least``: the prompt, which was not
    tokenised, may have more than ``num_prompt``.
    """

    def __init__(self, num_prompt: int, max_tokens: int, max_model_len: int, *, at_least: bool = False) -> None:
        super().__init__(
            f"prompt ({num_prompt} tokens) + max_tokens ({max_tokens}) is {num_prompt + max_tokens} tokens, "
            f"the limit (--max-model-len) is {max_model_len}",
            "max_tokens" if num_prompt <= max_model_len else "prompt",
        )
        self.num_prompt = num_prompt
        self.at_least = at_least
        self.max_tokens = max_tokens
        self.max_model_len = max_model_len


class WouldBeLateError(RequestRefusedError):
    """This request would miss a target of its service class, or make another request miss one.

    It may be accepted after ``retry_after`` seconds.
    """

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message, "service_tier")
        self.retry_after = retry_after


class TooMuchWaitsError(RuntimeError):
    """A caller has too much work that waits, so new work has no room; some of it will be done soon."""


class TooCostlyError(RuntimeError):
    """Several works of a caller reached their limits; new ones are refused for ``retry_after`` seconds."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class HelperLostError(RuntimeError):
    """A helper process ended or did not start, through no fault of its work, which another may do soon."""


class EngineDeadError(RuntimeError):
    """The engine has stopped and takes no more requests."""


class DeviceLostError(RuntimeError):
    """The device runs no step any more after one that failed. Only another process can use it again."""


class ConfigError(ValueError):
    """A setting or a file cannot be used; the message names it and says what would be valid."""


class NoRoomError(ConfigError):
    """A valid request for memory that does not fit."""


def one_line(text: str) -> str:
    """Return a message as one line, as commands print it last."""
    return " ".join(text.split())


def check_path(flag: str, path: str | os.PathLike[str]) -> None:
    """Raise ConfigError for a path that is not UTF-8, which libraries in C++ and answers in JSON cannot express.

    Also for one that is, where the locale keeps Python from reading it so.
    """
    text, encoding = os.fspath(path), sys.getfilesystemencoding()
    try:
        name = os.fsencode(text).decode()
    except UnicodeError as error:
        if encoding == "utf-8" or isinstance(error, UnicodeDecodeError):
            raise ConfigError(f"{flag} {text!a} is not valid UTF-8: use a path that is") from error
        name = ""
    if name != text:
        raise ConfigError(
            f"{flag} {text!a} is UTF-8, and Python takes names of files as {encoding} here: unset PYTHONUTF8, or set "
            "LC_ALL=C.UTF-8"
        )
