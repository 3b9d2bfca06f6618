"""Keep the values of a store, which several processes may write, within a size. Host only, no jax."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

ROOM_LEFT = 0.1
"""Share of the size that is free after values were removed, so that not every write has to look for more."""
LOOK_AGAIN = 1 / 16
"""Share of the size that is written before all values are counted again: other processes write too."""


class StoredValue(NamedTuple):
    """A value in a store, in the order in which values are removed."""

    used: float
    """When it was used or written last, by the store's clock; larger is later."""
    num_bytes: int
    name: str


class ByteQuota:
    """Counts the bytes of a store, and removes the values used longest ago where more would be too many."""

    def __init__(
        self,
        most_bytes: int,
        values: Callable[[], Iterable[StoredValue]],
        remove: Callable[[Sequence[StoredValue]], None],
    ) -> None:
        """``values``: all that the store has, of every process. ``remove``: of these; some may be gone."""
        self._most_bytes, self._values, self._remove = most_bytes, values, remove
        self._known_bytes: int | None = None
        """Bytes of all values when they were counted last, and of those written since; None: never counted."""
        self._since_count = 0

    def make(self, size: int) -> None:
        """Remove the values used longest ago, if ``size`` more bytes would be too many."""
        known = self._known_bytes
        due = self._since_count > LOOK_AGAIN * self._most_bytes
        if known is not None and not due and known + size <= self._most_bytes:
            return
        values = sorted(self._values())
        total = sum(value.num_bytes for value in values)
        if total + size > self._most_bytes:
            goal = (1 - ROOM_LEFT) * self._most_bytes - size
            chosen = []
            for value in values:
                if total <= goal:
                    break
                chosen.append(value)
                total -= value.num_bytes
            self._remove(chosen)
        self._known_bytes, self._since_count = total, 0

    def taken(self, size: int) -> None:
        """Note that a value of ``size`` bytes was written."""
        self._known_bytes = (self._known_bytes or 0) + size
        self._since_count += size
