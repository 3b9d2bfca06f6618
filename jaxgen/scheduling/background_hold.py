"""When background requests are held back, because online requests run or may soon come. Host only, no jax, no clock."""

from math import inf

HOLD_SECONDS = 1.0
"""Seconds after the last online request in which background requests get no tokens, unless they get some next to online
requests. A request that finds the device busy with background ones waits for two steps, and after one online request
more are likely to arrive."""


class BackgroundHold:
    """The time after online requests that is kept free of background requests. Times are seconds of any one clock."""

    def __init__(self) -> None:
        self._until = -inf

    def extend(self, now: float) -> None:
        """Hold the background back from now on, as an online request has not ended."""
        self._until = now + HOLD_SECONDS

    def seconds_left(self, now: float) -> float:
        """Return for how many seconds background requests are held back; 0: they are not."""
        return max(0.0, self._until - now)
