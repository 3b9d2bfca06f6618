"""Share a bounded number of places between callers."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class Shares:
    """Places of which a caller alone may have all, and each of several callers at least its share.

    Where all are taken, one of n callers still gets places until it has ``limit`` / n, at least one. So no caller keeps
    others out, and nobody loses a place. With n callers there are at most ``limit`` * (1 + 1/2 + ... + 1/n) places,
    and n more.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._held: Counter[str] = Counter()

    def held(self, caller: str) -> int:
        """Return how many places a caller has."""
        return self._held[caller]

    @contextmanager
    def place(self, caller: str, refusal: Exception) -> Iterator[None]:
        """Hold a place for a caller. Raises ``refusal`` where there is none for it."""
        if not self.take(caller):
            raise refusal
        try:
            yield
        finally:
            self.give_back(caller)

    def take(self, caller: str) -> bool:
        """Take a place for a caller. Return False where there is none for it."""
        if not self._has_place(caller):
            return False
        self._held[caller] += 1
        return True

    def give_back(self, caller: str) -> None:
        """Give a place back that a caller has taken."""
        self._held[caller] -= 1
        if not self._held[caller]:
            del self._held[caller]

    def _has_place(self, caller: str) -> bool:
        if self._held.total() < self.limit:
            return True
        callers = len(self._held.keys() | {caller})
        return self._held[caller] < max(1, self.limit // callers)
