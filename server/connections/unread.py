"""End connections whose callers read nothing."""

import asyncio

from jaxgen.server.connections.minute_log import MinuteLog


class UnreadLimit:
    """Ends a connection whose caller reads nothing for ``seconds``. ``peer``: the caller's address, for the log."""

    def __init__(self, stream: asyncio.Transport, seconds: float, log: MinuteLog, peer: str) -> None:
        self._stream = stream
        self._seconds = seconds
        self._log = log
        self._peer = peer
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to wait for the caller to read, unless that has begun."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._is_late)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def say(self) -> None:
        """Log that the connection is closed."""
        what = f"it read nothing for {self._seconds:g} s (--write-timeout)"
        self._log.say("unread", f"closed a connection of {self._peer}: {what}")

    def _is_late(self) -> None:
        self.say()
        self._stream.abort()
