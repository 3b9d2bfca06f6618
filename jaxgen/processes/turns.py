"""Whose work is next, by the time that each caller's work took lately. No thread, no clock."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

HALF_LIFE = 30.0
"""Seconds in which time that was used counts half as much."""
LONG = 2.0
"""Seconds of a work that is long."""
MEMORY = 60.0
"""Seconds for which a long work, and one that reached a limit, is remembered."""
MOST_AT_LIMIT = 3
"""Works of a caller that may reach a limit, of those remembered, before new ones are refused."""
_NOTHING = 1e-3


@dataclass(slots=True)
class _Account:
    """What the work of one caller took, up to the time ``at``."""

    used: float = 0.0
    at: float = 0.0
    last_long: float = float("-inf")
    at_limit: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_AT_LIMIT))

    def used_at(self, now: float) -> float:
        return self.used * 0.5 ** ((now - self.at) / HALF_LIFE)

    def is_forgotten(self, now: float) -> bool:
        recent = max(self.last_long, *self.at_limit, self.at - MEMORY) + MEMORY
        return recent <= now and self.used_at(now) < _NOTHING


class Turns:
    """Remembers what works took. A caller without a name is all who have none: it is never held back.

    Times are seconds by any one clock.
    """

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}

    def took(self, caller: str, seconds: float, now: float, *, at_limit: bool) -> None:
        """Note that a work took some seconds and has ended; ``at_limit``: it was ended, or gave up, at a limit."""
        account = self._accounts.setdefault(caller, _Account())
        account.used, account.at = account.used_at(now) + seconds, now
        if seconds > LONG:
            account.last_long = now
        if at_limit:
            account.at_limit.append(now)
        for gone in [name for name, account in self._accounts.items() if account.is_forgotten(now)]:
            del self._accounts[gone]

    def in_order(self, callers: Iterable[str], now: float) -> list[str]:
        """Return the callers, first the one whose work took the least time lately; of equal ones in their order."""
        return sorted(callers, key=lambda caller: self._account(caller).used_at(now))

    def is_long(self, caller: str, now: float) -> bool:
        """Whether a work of the caller was long, lately."""
        return bool(caller) and self._account(caller).last_long + MEMORY > now

    def refused_for(self, caller: str, now: float) -> float:
        """Return the seconds for which the caller's new work is refused, since several reached a limit; else 0."""
        times = self._account(caller).at_limit
        if not caller or len(times) < MOST_AT_LIMIT or times[-1] - times[0] > MEMORY:
            return 0.0
        return max(0.0, times[-1] + MEMORY - now)

    def _account(self, caller: str) -> _Account:
        return self._accounts.get(caller) or _Account()
