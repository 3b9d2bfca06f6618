"""Whether a store is used, or left alone for a time after an error. Host only, no jax."""

import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)

RETRY_SECONDS = 30.0
"""Seconds after an error in which the store is not asked; the next call after them is the probe."""


class Health:
    """Remembers the last error of one kind of call, and logs when it begins to fail and when it works again."""

    def __init__(self, what: str, clock: Callable[[], float]) -> None:
        """``what``: of the log's lines, such as "written to the KV tier DIRECTORY"."""
        self._what = what
        self._clock = clock
        self._failed_at: float | None = None

    @property
    def usable(self) -> bool:
        """Whether the store may be asked now."""
        return self._failed_at is None or self._clock() - self._failed_at >= RETRY_SECONDS

    def failed(self, error: Exception) -> None:
        """Note an error of the store."""
        if self._failed_at is None:
            words = (str(error).splitlines() or [""])[0]  # the lines below are a library's own view of it
            logger.warning("nothing is %s until it works again: %s: %s", self._what, type(error).__name__, words)
        self._failed_at = self._clock()

    def worked(self) -> None:
        """Note a call that did not fail."""
        if self._failed_at is not None:
            logger.info("blocks are %s again", self._what)
            self._failed_at = None
