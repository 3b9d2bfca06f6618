"""Who runs and who waits, each in the order of service. Host only, no jax, no clock."""

from bisect import bisect_left, insort
from math import inf
from typing import Any

from jaxgen.core.sequence import Level, Sequence
from jaxgen.core.service_class import STARVATION_TIMEOUT_S


class RequestQueues:
    """The sequences that run and those that wait, in one order: by level, then by when each is due to begin.

    Due is whoever has the least slack, the time to its target less what its prompt takes; what is left of that when
    time goes by is the same for all, so their order never changes by itself. Those to which nothing was promised are
    behind all others until their patience ends, of one at a time; the background is behind these.

    Within one tenant's requests of one class, those of lower ``priority`` take the places of those of higher: the order
    of all others is as it was. So a tenant cannot get before others by it.
    """

    def __init__(self) -> None:
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self._levels = [0] * len(Level)
        self._priorities: dict[int, int] = {}  # how many have each
        self._patient_until = -inf  # when the next one's patience may end

    @property
    def is_level(self) -> bool:
        """Whether nobody may take anything from another."""
        return len(self._priorities) < 2 and self._levels.count(0) >= len(Level) - 1

    @property
    def has_promised(self) -> bool:
        return self._levels[Level.PROMISED] > 0

    def any_waits(self, *, background: bool) -> bool:
        """Whether ``waiting_of`` has somebody."""
        return bool(self.waiting) and self.waiting[0].request.background is background

    def waiting_of(self, *, background: bool) -> list[Sequence]:
        """Those of one class; of the background none while others wait."""
        first = bisect_left(self.waiting, (Level.BACKGROUND,), key=_urgency)
        if background:
            return self.waiting[:] if first == 0 else []
        return self.waiting[:first]

    def late_one_waits(self, newcomer: Sequence) -> bool:
        """Whether one of its tenant and class waits that gave its promises up."""
        tenant, name = newcomer.request.tenant, newcomer.service.name
        first = bisect_left(self.waiting, (Level.BEST_EFFORT,), key=_urgency)
        return any(s.is_late and s.request.tenant == tenant and s.service.name == name for s in self.waiting[first:])

    def wanting(self, *, background: bool) -> list[Sequence]:
        """Those of one class that want to be computed, but for decodes: running ones, then waiting ones."""
        begun = [s for s in self.running if s.num_uncomputed > 1 and s.request.background is background]
        return begun + self.waiting_of(background=background)

    def urgency_of(self, newcomer: Sequence) -> tuple[int, float, int]:
        """That it will have once it has joined."""
        if not self._shares_places(newcomer):
            return newcomer.urgency
        group = self._group_of(newcomer)
        places = sorted([newcomer.place, *[s.place for s in group]])
        before = sum([(s.priority, s.place) < (newcomer.priority, newcomer.place) for s in group])
        return newcomer.level, *places[before]

    def join(self, sequence: Sequence) -> None:
        """A new one waits at its place."""
        if self._shares_places(sequence):
            self._share_places(sequence)
        insort(self.waiting, sequence, key=_urgency)
        self._levels[sequence.level] += 1
        self._priorities[sequence.priority] = self._priorities.get(sequence.priority, 0) + 1

    def begin(self, sequence: Sequence) -> None:
        """It waited, and runs."""
        _remove(self.waiting, sequence)
        insort(self.running, sequence, key=_urgency)

    def put_back(self, sequence: Sequence) -> None:
        """It ran, and waits again, at the same place in the order."""
        _remove(self.running, sequence)
        insort(self.waiting, sequence, key=_urgency)

    def leave(self, sequence: Sequence, line: list[Sequence]) -> None:
        """It goes from ``line``, which is one of the two, for good."""
        _remove(line, sequence)
        self._levels[sequence.level] -= 1
        left = self._priorities[sequence.priority] - 1
        if left:
            self._priorities[sequence.priority] = left
        else:
            del self._priorities[sequence.priority]

    def promote_starved(self, now: float) -> None:
        """Of those to which nothing was promised, and that came long ago, the first that gets no tokens is served with
        those to which something was; the next PATIENCE later."""
        if now < self._patient_until or not (self._levels[Level.PROMISED] and self._levels[Level.BEST_EFFORT]):
            return
        found = [
            (sequence, line)
            for line in (self.waiting, self.running)
            if (sequence := _first_of_long_ago(line, now)) is not None
        ]
        if not found:
            return
        sequence, line = min(found, key=lambda one: one[0].urgency)
        _remove(line, sequence)
        self._levels[sequence.level] -= 1
        sequence.level = Level.PROMISED
        self._levels[sequence.level] += 1
        insort(line, sequence, key=_urgency)
        self._patient_until = now + STARVATION_TIMEOUT_S

    def _shares_places(self, newcomer: Sequence) -> bool:
        return bool(self._priorities.keys() - {newcomer.priority})

    def _group_of(self, newcomer: Sequence) -> list[Sequence]:
        """Those with which it exchanges places, without itself."""
        return [s for s in (*self.running, *self.waiting) if _are_of_one_group(s, newcomer)]

    def _share_places(self, newcomer: Sequence) -> None:
        """The places that its group has with it go to them by priority, within one as they were."""
        group = [*self._group_of(newcomer), newcomer]
        places = sorted([s.place for s in group])
        for sequence, place in zip(sorted(group, key=lambda s: (s.priority, s.place)), places, strict=True):
            sequence.place = place
        self.running.sort(key=_urgency)
        self.waiting.sort(key=_urgency)


def may_displace(one: Sequence, other: Sequence) -> bool:
    """Whether ``one``, which finds no place, may take that of ``other``, which runs: then it is before it in the order.

    Who waited so long that it came among those with promises keeps its place, and takes none but of the background.
    """
    if Level.BACKGROUND in (one.level, other.level) and one.level is not other.level:
        return one.level < other.level
    if one.level is not other.level:
        return one.level < other.level and one.service.promises
    return one.priority < other.priority and _are_of_one_group(one, other)


def _are_of_one_group(one: Sequence, other: Sequence) -> bool:
    """Whether priority decides between them. Not where they waited for so long: then they go as due; nor where one has
    its class's promises and the other gave them up."""
    return (
        one.level is other.level
        and one.request.tenant == other.request.tenant
        and one.service == other.service
        and (one.level is not Level.PROMISED or one.service.promises)
    )


def due_time(sequence: Sequence, now: float, prompt_seconds: float) -> float:
    """When a sequence that comes ``now`` must begin, so that its first token comes in time: its slack, at time 0.

    One that is late whatever is done is due at once, not before: else it would make those late that came before it.
    """
    target = sequence.service.first_token_target(sequence.num_prompt)
    waited = sequence.request.waited_seconds
    return now + (STARVATION_TIMEOUT_S if target is None else max(0.0, target - waited - prompt_seconds))


def _first_of_long_ago(line: list[Sequence], now: float) -> Sequence | None:
    """Of those to which nothing was promised, whose time has come, and that do not decode."""
    for sequence in line[bisect_left(line, (Level.BEST_EFFORT,), key=_urgency) :]:
        if sequence.level is not Level.BEST_EFFORT or sequence.due > now:
            return None
        if sequence.row is None or sequence.num_uncomputed > 1:
            return sequence
    return None


def _urgency(sequence: Sequence) -> Any:  # a tuple, comparable with shorter ones too
    return sequence.urgency


def _remove(line: list[Sequence], sequence: Sequence) -> None:
    del line[bisect_left(line, sequence.urgency, key=_urgency)]
