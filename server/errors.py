"""The errors that callers get, in OpenAI's format: {"error": {"message", "type", "param", "code"}}."""

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import ceil

from starlette.responses import JSONResponse

from jaxgen.core.errors import (
    ContextLengthError,
    EngineDeadError,
    HelperLostError,
    RequestRefusedError,
    TooCostlyError,
    TooMuchWaitsError,
    WouldBeLateError,
)
from jaxgen.server.log import frames

logger = logging.getLogger(__name__)

with_prompts = logging.getLogger(f"{__name__}.with_prompts")
"""Logger of unexpected errors' messages, which may have a piece of a prompt; off without ``--log-prompts``."""
with_prompts.setLevel(logging.CRITICAL)

INTERNAL_MESSAGE = "The server had an error while processing your request."
HELPER_LOST_MESSAGE = "A helper process of the server was ended, or could not be started: try again."
ENGINE_DEAD_MESSAGE = "The engine is not running."
"""Only the log has the reason, which may have a piece of another caller's prompt, or a path."""


MOST_DIGITS = 100
"""Most digits of a number that an error repeats."""
_LONG_NUMBER = re.compile(rf"\d{{{MOST_DIGITS + 1},}}")


class ApiError(Exception):
    """An HTTP response with an error: its status, and the fields of the error object."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        message = _LONG_NUMBER.sub(lambda digits: f"{digits[0][:MOST_DIGITS]}...", message)
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = headers

    @property
    def kind(self) -> str:
        """OpenAI's ``type`` of the error."""
        if self.status == 429:
            return "rate_limit_error"
        return "invalid_request_error" if self.status < 500 else "server_error"

    def body(self) -> dict[str, dict[str, str | None]]:
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), status_code=self.status, headers=self.headers)


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def refusal(error: RequestRefusedError, prompt: str = "prompt") -> ApiError:
    """Return the ApiError 400 for a request that can never run. ``prompt``: the body's field with the prompt."""
    if not isinstance(error, ContextLengthError):
        return bad_request(f"{error}.", error.param)
    # Clients find these words, and read the numbers, to shorten a conversation.
    if error.at_least or not error.max_tokens:
        most = f"at least {error.num_prompt}" if error.at_least else str(error.num_prompt)
        rest = f"your {prompt} resulted in {most} tokens. Please reduce the length of the {prompt}."
    else:
        rest = (
            f"you requested {error.num_prompt + error.max_tokens} tokens ({error.num_prompt} in the {prompt}, "
            f"{error.max_tokens} in the completion). Please reduce the length of the {prompt} or completion."
        )
    return bad_request(
        f"This model's maximum context length is {error.max_model_len} tokens. However, {rest}",
        prompt if error.param == "prompt" else error.param,
        "context_length_exceeded",
    )


@contextmanager
def refusals(prompt: str = "prompt") -> Iterator[None]:
    """Turn a RequestRefusedError of the enclosed code into the ApiError 400 of ``refusal``."""
    try:
        yield
    except RequestRefusedError as error:
        raise refusal(error, prompt) from error


def as_api_error(error: Exception) -> ApiError:
    """Return the caller's error for ``error``. An unexpected error is logged here; the caller gets no details of it."""
    match error:
        case ApiError():
            return error
        case WouldBeLateError():
            headers = {"Retry-After": str(max(1, ceil(error.retry_after)))}
            return ApiError(429, f"{error}.", param=error.param, code="would_be_late", headers=headers)
        case ContextLengthError():
            return refusal(error)
        case RequestRefusedError():
            return bad_request(str(error), error.param)
        case TooMuchWaitsError():
            return ApiError(
                429, f"The server is at its limit: {error}.", code="queue_full", headers={"Retry-After": "1"}
            )
        case TooCostlyError():
            headers = {"Retry-After": str(max(1, ceil(error.retry_after)))}
            return ApiError(429, f"{error}.", code="too_costly", headers=headers)
        case HelperLostError():
            logger.error("%s", error)
            return ApiError(503, HELPER_LOST_MESSAGE, code="helper_lost", headers={"Retry-After": "1"})
        case EngineDeadError():
            return ApiError(503, ENGINE_DEAD_MESSAGE, code="engine_dead")
    logger.error("unexpected %s while answering a request\n%s", type(error).__name__, frames(error))
    if with_prompts.isEnabledFor(logging.ERROR):
        with_prompts.error("what it says", exc_info=error)
    return ApiError(500, INTERNAL_MESSAGE)
