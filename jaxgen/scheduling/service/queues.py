"""Order sequences by what their classes promise and by priority. Host only, no jax, no clock."""

from bisect import bisect_left, insort
from math import inf

from jaxgen.core.sequence import Level, Sequence
from jaxgen.core.service_class import STARVATION_TIMEOUT_S
from jaxgen.scheduling import fill
from jaxgen.scheduling.queues import RequestQueues, order_key_of


class ServiceQueues(RequestQueues):
    """Running and waiting sequences in one order: by level, then by due time, which is when each must begin.

    The due time is the target of the first token less the time that the prompt takes. All due times come nearer at the
    same rate, so the order never changes with time. Sequences of classes without targets come after all with targets;
    after STARVATION_TIMEOUT_S they are promoted, one at a time. Background sequences come last.

    ``priority`` orders the requests of one tenant and class among the places that they hold together. So no tenant gets
    ahead of another by it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._priorities: dict[int, int] = {}  # how many have each
        self._next_promotion = -inf  # no sequence is promoted before

    @property
    def has_priorities(self) -> bool:
        """Whether sequences of different priorities run or wait."""
        return len(self._priorities) > 1

    def late_one_waits(self, newcomer: Sequence) -> bool:
        """Whether a sequence of the same tenant and class waits that gave up its targets."""
        tenant, name = newcomer.request.tenant, newcomer.service.name
        first = bisect_left(self.waiting, (Level.BEST_EFFORT,), key=order_key_of)
        late = [s for s in self.waiting[first:] if s.targets_dropped]
        return any(s.request.tenant == tenant and s.service.name == name for s in late)

    def order_key_joined(self, newcomer: Sequence) -> tuple[int, float, int]:
        """The order key that ``newcomer`` will have once it has joined."""
        if not self._shares_places(newcomer):
            return newcomer.order_key
        group = self._group_of(newcomer)
        places = sorted([newcomer.place, *[s.place for s in group]])
        before = sum([(s.priority, s.place) < (newcomer.priority, newcomer.place) for s in group])
        return newcomer.level, *places[before]

    def join(self, sequence: Sequence) -> None:
        """Add a new sequence to the waiting ones."""
        if self._shares_places(sequence):
            self._share_places(sequence)
        super().join(sequence)
        self._priorities[sequence.priority] = self._priorities.get(sequence.priority, 0) + 1

    def leave(self, sequence: Sequence, line: list[Sequence]) -> None:
        """Remove a sequence that ends from ``line``, the running or the waiting ones."""
        super().leave(sequence, line)
        left = self._priorities[sequence.priority] - 1
        if left:
            self._priorities[sequence.priority] = left
        else:
            del self._priorities[sequence.priority]

    def promote_starved(self, now: float) -> None:
        """Promote the first best-effort sequence that has waited STARVATION_TIMEOUT_S and gets no tokens.

        It is then served like sequences with targets. The next one is promoted after the same time again.
        """
        if now < self._next_promotion or not (self.has(Level.WITH_TARGETS) and self.has(Level.BEST_EFFORT)):
            return
        found = [
            (sequence, line)
            for line in (self.waiting, self.running)
            if (sequence := _first_starved(line, now)) is not None
        ]
        if not found:
            return
        sequence, line = min(found, key=lambda one: one[0].order_key)
        line.remove(sequence)
        self._levels[sequence.level] -= 1
        sequence.level = Level.WITH_TARGETS
        self._levels[sequence.level] += 1
        insort(line, sequence, key=order_key_of)
        self._next_promotion = now + STARVATION_TIMEOUT_S

    def _shares_places(self, newcomer: Sequence) -> bool:
        return bool(self._priorities.keys() - {newcomer.priority})

    def _group_of(self, newcomer: Sequence) -> list[Sequence]:
        """Other sequences whose places ``priority`` may exchange with that of ``newcomer``."""
        return [s for s in (*self.running, *self.waiting) if _are_of_one_group(s, newcomer)]

    def _share_places(self, newcomer: Sequence) -> None:
        """Deal the places of the group out by priority, then in the order before."""
        group = [*self._group_of(newcomer), newcomer]
        places = sorted([s.place for s in group])
        for sequence, place in zip(sorted(group, key=lambda s: (s.priority, s.place)), places, strict=True):
            sequence.place = place
        self.running.sort(key=order_key_of)
        self.waiting.sort(key=order_key_of)


def may_preempt(one: Sequence, other: Sequence) -> bool:
    """Whether waiting sequence ``one`` may preempt running sequence ``other``. Implies that ``one`` precedes ``other``.

    A sequence promoted after STARVATION_TIMEOUT_S is not preempted, and itself preempts only background sequences.
    """
    if Level.BACKGROUND in (one.level, other.level) and one.level is not other.level:
        return one.level < other.level
    if one.level is not other.level:
        return one.level < other.level and one.service.has_targets
    return one.priority < other.priority and _are_of_one_group(one, other)


def set_place(sequence: Sequence, now: float, prompt_seconds: float) -> None:
    """Give a sequence that arrives ``now`` its level and its place.

    Its due time is when it must begin for its first token to meet its target. One that must be late is due at once and
    not earlier, or it would delay sequences that arrived before it. ``prompt_seconds``: what its prompt takes.
    """
    if not sequence.request.background:
        sequence.level = Level.WITH_TARGETS if sequence.service.has_targets else Level.BEST_EFFORT
    target = sequence.service.first_token_target(sequence.num_prompt)
    waited = sequence.request.waited_seconds
    if target is None:
        slack = STARVATION_TIMEOUT_S + fill.target(sequence.num_prompt) - waited
    else:
        slack = max(0.0, target - waited - prompt_seconds)
    sequence.place = now + slack, sequence.arrival


def _first_starved(line: list[Sequence], now: float) -> Sequence | None:
    """The first best-effort sequence past its due time that does not decode."""
    for sequence in line[bisect_left(line, (Level.BEST_EFFORT,), key=order_key_of) :]:
        if sequence.level is not Level.BEST_EFFORT or sequence.deadline > now:
            return None
        if sequence.row is None or sequence.num_uncomputed > 1:
            return sequence
    return None


def _are_of_one_group(one: Sequence, other: Sequence) -> bool:
    """Whether priority decides between two sequences: of one tenant, class and level.

    Not between promoted sequences, which keep the order of their due times, nor where one has given up its targets.
    """
    return (
        one.level is other.level
        and one.request.tenant == other.request.tenant
        and one.service == other.service
        and (one.level is not Level.WITH_TARGETS or one.service.has_targets)
    )
