"""Wait a moment for the next request of a caller whose answer has just ended. Host only, no jax, no clock.

Event loops' threads and the engine's thread call it, one at a time: the inbox holds its lock meanwhile.

An agent sends its next request a few milliseconds after an answer. By then an engine has begun its next step, and the
request waits for the end of that. This is the deceptive idleness that disks know, with the same remedy: *anticipatory
scheduling* (Iyer and Druschel, SOSP 2001) waits for a request that is likely to come soon. It costs other requests
little: all waits together take at most ``SHARE`` of the time.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import NamedTuple

MOST_SECONDS = 0.01
"""Longest wait after an answer. A caller that needs more is on another machine, or works between its requests."""
SHARE = 0.01
"""Share of the time that may be spent waiting."""
MOST_SAVED = 0.05
"""Most seconds of that share that are saved up: agents that began together end in consecutive steps."""
LIKELY = 0.5
"""Least share of a tenant's answers that a request followed within ``MOST_SECONDS``, for the next to be awaited."""
LEARNED = 0.5
"""Weight of the last answer in that share."""
FIRST_SECONDS = 0.003
"""Seconds after which the first request of a tenant is expected to follow. The first answers are awaited too: agents
that begin together would else compute their second prompts in one step, and stay together."""
RATE = 0.25
"""Weight of the newest sample in averages of times."""
MOST_TENANTS = 1024
MOST_ENDS = 64


@dataclass(slots=True)
class _Habit:
    """What a tenant's requests do after its answers: the share that come soon, and after how many seconds."""

    share: float = LIKELY
    seconds: float = FIRST_SECONDS

    def note(self, seconds: float | None) -> None:
        """Note that a request followed after ``seconds``; None: none came soon."""
        self.share += LEARNED * ((seconds is not None) - self.share)
        if seconds is not None:
            self.seconds += RATE * (seconds - self.seconds)


class _End(NamedTuple):
    tenant: str
    time: float


class Anticipation:
    """Learns how soon tenants send requests after their answers. Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._habits: OrderedDict[str, _Habit] = OrderedDict()
        self._ends: deque[_End] = deque(maxlen=MOST_ENDS)
        """Answers after which no request has come yet, the oldest first."""
        self._step_seconds = 0.0
        self._saved = 0.0

    def stepped(self, seconds: float) -> None:
        """Note that a step took ``seconds``."""
        self._step_seconds += RATE * (seconds - self._step_seconds)
        self._saved = min(self._saved + SHARE * seconds, MOST_SAVED)

    def ended(self, tenant: str, now: float) -> None:
        """Note that an answer to a request of ``tenant`` is on its way."""
        self._expire(now)
        self._ends.append(_End(tenant, now))

    def came(self, tenant: str, now: float) -> None:
        """Note that a request of ``tenant`` came. It follows the tenant's oldest answer that none has followed."""
        self._expire(now)
        end = next((end for end in self._ends if end.tenant == tenant), None)
        if end is not None:
            self._ends.remove(end)
            self._habit(tenant).note(now - end.time)

    def seconds(self, now: float) -> float:
        """Return for how many seconds the next step should wait for requests; 0: not at all.

        A wait begins only if all of it is saved, since a shorter one would end before the request comes. This may be
        asked again during a wait: the saved time changes only at its end, by ``waited``.
        """
        self._expire(now)
        until = max([end.time + self._wait(end.tenant) for end in self._ends], default=now)
        return until - now if now < until <= now + self._saved else 0.0

    def waited(self, seconds: float) -> None:
        """Note that the engine waited for ``seconds``. If fewer were saved, the next steps pay the debt first."""
        self._saved -= seconds

    def _wait(self, tenant: str) -> float:
        """Seconds after an answer for which a request of the tenant is awaited. 0 where that would be no gain: few
        come, or the step to be put off takes little longer."""
        habit = self._habits.get(tenant, _Habit())
        if habit.share < LIKELY or 2.0 * habit.seconds > self._step_seconds:
            return 0.0
        return min(2.0 * habit.seconds, MOST_SECONDS)

    def _expire(self, now: float) -> None:
        while self._ends and now - self._ends[0].time > MOST_SECONDS:
            self._habit(self._ends.popleft().tenant).note(None)

    def _habit(self, tenant: str) -> _Habit:
        habit = self._habits.setdefault(tenant, _Habit())
        self._habits.move_to_end(tenant)
        if len(self._habits) > MOST_TENANTS:
            self._habits.popitem(last=False)
        return habit
