"""Log what callers can cause as often as they like, without a line for each."""

import asyncio
import logging

MINUTE = 60.0


class MinuteLog:
    """Says an event at once, then at most once a minute, with how often it happened meanwhile."""

    def __init__(self, logger: logging.Logger, seconds: float = MINUTE) -> None:
        self._logger = logger
        self._seconds = seconds
        self._more: dict[str, int] = {}

    def say(self, kind: str, message: str) -> None:
        """Log ``message`` unless one of its ``kind`` was logged within the minute. Call it in the event loop."""
        if kind in self._more:
            self._more[kind] += 1
            return
        self._logger.warning("%s", message)
        self._more[kind] = 0
        self._later(kind, message)

    def _later(self, kind: str, message: str) -> None:
        asyncio.get_running_loop().call_later(self._seconds, self._again, kind, message)

    def _again(self, kind: str, message: str) -> None:
        more = self._more.pop(kind)
        if more:
            self._logger.warning("%s; %d more in the last %g s", message, more, self._seconds)
            self._more[kind] = 0
            self._later(kind, message)
