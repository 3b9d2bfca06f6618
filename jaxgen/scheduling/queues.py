"""Keep running and waiting sequences in the order of service. Host only, no jax, no clock."""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable
from math import inf
from typing import Any

from jaxgen.core.sequence import Sequence
from jaxgen.core.service_class import STARVATION_TIMEOUT_S
from jaxgen.core.standing import Level
from jaxgen.scheduling.prefill_limits import target
from jaxgen.scheduling.tenant_queues import TenantQueues


class RequestQueues:
    """Running and waiting sequences in one order: by level, then by place; background sequences come last.

    With ``by_priority``, ``priority`` orders the requests of one tenant and class among the places that they hold
    together. So no tenant gets ahead of another by it.
    """

    def __init__(self, *, by_priority: bool = False, on_change: Callable[[Sequence], None] | None = None) -> None:
        """``on_change``: is called with each sequence that comes, moves or ends, in the course of that change."""
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self._tenant_queues = {background: TenantQueues() for background in (False, True)}
        self.waiting_tokens = 0
        """Prompt tokens of the waiting ones that are not of the background."""
        self._by_priority = by_priority
        self._on_change = on_change
        self._levels = [0] * len(Level)
        self._priorities: Counter[int] = Counter()  # how many have each
        self._next_promotion = -inf  # no sequence is promoted before

    @property
    def is_mixed(self) -> bool:
        """Whether sequences of different levels run or wait."""
        return self._levels.count(0) < len(Level) - 1

    @property
    def has_priorities(self) -> bool:
        """Whether sequences of different priorities run or wait."""
        return len(self._priorities) > 1

    def has(self, level: Level) -> bool:
        """Whether a sequence of this level runs or waits."""
        return self._levels[level] > 0

    def any_waits(self, *, background: bool) -> bool:
        """Whether ``waiting_of`` is not empty."""
        return bool(self.waiting) and self.waiting[0].request.background is background

    def waiting_of(self, *, background: bool) -> list[Sequence]:
        """Waiting sequences, online or background; no background ones while online ones wait."""
        first = bisect_left(self.waiting, (Level.BACKGROUND,), key=order_key_of)
        if background:
            return self.waiting[:] if first == 0 else []
        return self.waiting[:first]

    def tenant_queues_of(self, sequence: Sequence) -> TenantQueues:
        """Return who holds rows and who waits for one, of the online or the background sequences."""
        return self._tenant_queues[sequence.request.background]

    def owed(self, most: int, *, background: bool) -> list[Sequence]:
        """Return waiting sequences that are owed a row, as TenantQueues; no background ones while online ones wait."""
        return self._tenant_queues[background].owed(most) if self.any_waits(background=background) else []

    def running_to(self, level: Level) -> list[Sequence]:
        """Running sequences of this level and those before it."""
        return self.running[: bisect_left(self.running, (level + 1,), key=order_key_of)]

    def order_key_joined(self, newcomer: Sequence) -> tuple[int, float, int]:
        """The order key that ``newcomer`` will have once it has joined."""
        if not self._shares_places(newcomer):
            return newcomer.standing.order_key
        group = self._group_of(newcomer)
        places = sorted([s.standing.due_key for s in (newcomer, *group)])
        before = sum([_by_priority(s) < _by_priority(newcomer) for s in group])
        return newcomer.standing.level, *places[before]

    def mark_changed(self, sequence: Sequence) -> None:
        """Note that a sequence has changed, in its place or in what it has computed."""
        if self._on_change is not None:
            self._on_change(sequence)

    def join(self, sequence: Sequence) -> None:
        """Add a new sequence to the waiting ones."""
        if self._shares_places(sequence):
            self._share_places(sequence)
        self._wait(sequence)
        self._levels[sequence.standing.level] += 1
        self._priorities[sequence.priority] += 1

    def begin(self, sequence: Sequence) -> None:
        """Move a waiting sequence to the running ones."""
        self._remove(sequence, self.waiting)
        insort(self.running, sequence, key=order_key_of)
        self.tenant_queues_of(sequence).run(sequence)

    def put_back(self, sequence: Sequence) -> None:
        """Move a running sequence back to the waiting ones, at its place in the order."""
        self._remove(sequence, self.running)
        self._wait(sequence)

    def leave(self, sequence: Sequence, line: list[Sequence]) -> None:
        """Remove a sequence that ends from ``line``, the running or the waiting ones."""
        self._remove(sequence, line)
        self._levels[sequence.standing.level] -= 1
        self._priorities[sequence.priority] -= 1
        if not self._priorities[sequence.priority]:
            del self._priorities[sequence.priority]

    def promote_starved(self, now: float) -> None:
        """Promote the first best-effort sequence that has waited STARVATION_TIMEOUT_S and gets no tokens.

        It is then served like sequences with targets. The next one is promoted after the same time again.
        """
        if now < self._next_promotion or not (self.has(Level.WITH_TARGETS) and self.has(Level.BEST_EFFORT)):
            return
        starved = [
            (sequence, line)
            for line in (self.waiting, self.running)
            if (sequence := _first_starved(line, now)) is not None
        ]
        if not starved:
            return
        sequence, line = min(starved, key=lambda entry: entry[0].standing.order_key)
        self._remove(sequence, line)
        self._levels[Level.BEST_EFFORT] -= 1
        sequence.standing.level = Level.WITH_TARGETS
        self._levels[Level.WITH_TARGETS] += 1
        if line is self.waiting:
            self._wait(sequence)
        else:
            insort(line, sequence, key=order_key_of)
            self.tenant_queues_of(sequence).run(sequence)
        self._next_promotion = now + STARVATION_TIMEOUT_S

    def _wait(self, sequence: Sequence) -> None:
        insort(self.waiting, sequence, key=order_key_of)
        self.waiting_tokens += _foreground_tokens(sequence)
        self.tenant_queues_of(sequence).wait(sequence)
        self.mark_changed(sequence)

    def _remove(self, sequence: Sequence, line: list[Sequence]) -> None:
        del line[bisect_left(line, sequence.standing.order_key, key=order_key_of)]
        if line is self.waiting:
            self.waiting_tokens -= _foreground_tokens(sequence)
            self.tenant_queues_of(sequence).stop_waiting(sequence)
        else:
            self.tenant_queues_of(sequence).run(sequence, by=-1)
        self.mark_changed(sequence)

    def _shares_places(self, newcomer: Sequence) -> bool:
        return self._by_priority and bool(self._priorities.keys() - {newcomer.priority})

    def _group_of(self, newcomer: Sequence) -> list[Sequence]:
        """Other sequences whose places ``priority`` may exchange with that of ``newcomer``."""
        return [s for s in (*self.running, *self.waiting) if _are_of_one_group(s, newcomer)]

    def _share_places(self, newcomer: Sequence) -> None:
        """Deal the places of the group out by priority, then in the order before."""
        group = [*self._group_of(newcomer), newcomer]
        places = sorted([s.standing.due_key for s in group])
        for sequence, place in zip(sorted(group, key=_by_priority), places, strict=True):
            if sequence.standing.due_key != place:
                sequence.standing.due_key = place
                self.mark_changed(sequence)
        self.running.sort(key=order_key_of)
        self.waiting.sort(key=order_key_of)
        self.tenant_queues_of(newcomer).sort(newcomer.request.tenant)


def order_key_of(sequence: Sequence) -> Any:
    """The key of the order of service."""
    return sequence.standing.order_key


def set_place(sequence: Sequence, now: float, prompt_seconds: float) -> None:
    """Give a sequence that arrives ``now`` its level and its place.

    Its due time is when it must begin for its first token to meet its target. Without a target that is FastGen's, and
    STARVATION_TIMEOUT_S later. One that must be late is due at once and not earlier, or it would delay sequences that
    arrived before it. ``prompt_seconds``: what the tokens that it begins with take.
    """
    standing = sequence.standing
    if not sequence.request.background:
        standing.level = Level.WITH_TARGETS if standing.service.has_targets else Level.BEST_EFFORT
    promised = standing.service.first_token_target(sequence.num_given)
    waited = sequence.request.waited_seconds
    if promised is None:
        slack = STARVATION_TIMEOUT_S + target(sequence.num_given) - waited
    else:
        slack = max(0.0, promised - waited - prompt_seconds)
    standing.due_key = now + slack, sequence.arrival


def may_preempt(waiting: Sequence, running: Sequence) -> bool:
    """Whether sequence ``waiting`` may preempt sequence ``running``. Implies that it precedes that one.

    A sequence promoted after STARVATION_TIMEOUT_S is not preempted, and itself preempts only background sequences.
    """
    level, running_level = waiting.standing.level, running.standing.level
    if level is not running_level:
        return level < running_level and (running_level is Level.BACKGROUND or waiting.standing.service.has_targets)
    return waiting.priority < running.priority and _are_of_one_group(waiting, running)


def _are_of_one_group(sequence: Sequence, other: Sequence) -> bool:
    """Whether priority decides between two sequences: of one tenant, class and level.

    Not between promoted sequences, which keep the order of their due times, nor where one has given up its targets.
    """
    return (
        sequence.standing.level is other.standing.level
        and sequence.request.tenant == other.request.tenant
        and sequence.standing.service == other.standing.service
        and not sequence.standing.is_promoted
    )


def _by_priority(sequence: Sequence) -> tuple[int, tuple[float, int]]:
    return sequence.priority, sequence.standing.due_key


def _foreground_tokens(sequence: Sequence) -> int:
    return 0 if sequence.request.background else sequence.num_given


def _first_starved(line: list[Sequence], now: float) -> Sequence | None:
    """The first best-effort sequence past its due time that does not decode."""
    for sequence in line[bisect_left(line, (Level.BEST_EFFORT,), key=order_key_of) :]:
        if sequence.standing.level is not Level.BEST_EFFORT or sequence.standing.deadline > now:
            return None
        if sequence.row is None or not sequence.is_decode:
            return sequence
    return None
