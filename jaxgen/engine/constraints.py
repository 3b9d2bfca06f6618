"""Advance the constraints of requests by sampled tokens, and by the tokens that these force.

Runs in the engine's thread. Host only, no jax.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from jaxgen.core.request import FinishReason, TokenEvent
from jaxgen.core.sequence import Sequence
from jaxgen.core.step_plan import Outcome
from jaxgen.processes.turns import Turns
from jaxgen.scheduling.scheduler import Scheduler
from jaxgen.text.constraint import Constraint, follow

MOST_FORCED = 32
"""Most forced tokens that a request gets after a sampled one. The next step samples the following token."""
CHEAP = 0.0002
"""Most seconds that a token of a cheap grammar takes. Each is followed at once: 256 rows take what a step may."""
SHARE = 0.2
"""Part of the time that costly grammars may take while other sequences have steps."""
MOST_SAVED = 0.02
"""Most seconds of their time that they may save up."""


@dataclass(frozen=True, slots=True, eq=False)
class _Taken:
    """A token that a constraint is advanced by. ``index``: of the chunk before it; ``forced``: tokens before it that
    followed the same sampled one."""

    sequence: Sequence
    index: int
    constraint: Constraint
    token: int
    forced: int = 0


class ConstraintFollower:
    """Advances the constraints of an engine's sequences by their new tokens.

    Cheap grammars are advanced at once, all in parallel. A costly one waits until its time has come: all of them
    together take a part of the host's time, since the tokens of all requests wait meanwhile. Of the callers whose
    grammars wait, the one goes first whose grammars took the least time lately. A sequence whose constraint waits sits
    out, so its answer is the same, later.

    Where a constraint then allows one token alone, its sequence gets that token, as a step would sample it. This
    repeats. It is jump-forward decoding (SGLang, arXiv 2312.07104), by tokens, so that an answer is the same without
    it. Requests that want log-probabilities get none, since only steps give these.
    """

    def __init__(
        self, scheduler: Scheduler, *, most_forced: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """``most_forced``: of all sequences together, in one call of ``follow``. Each takes the host 10 to 100
        microseconds."""
        self._scheduler = scheduler
        self._most_forced = most_forced
        self._clock = clock
        self._turns = Turns()
        self._waiting: list[_Taken] = []
        self._saved, self._counted = MOST_SAVED, clock()

    def follow(self, outcomes: Iterable[Outcome], *, idle: bool = False) -> tuple[list[Outcome], list[TokenEvent]]:
        """Advance constraints that waited, and constraints of sequences that have not ended by their new tokens.

        ``idle``: there is no step that a costly one could delay. Returns the outcomes of the forced tokens, and the
        last event of each request that cannot continue.
        """
        now = self._clock()
        self._saved, self._counted = min(MOST_SAVED, self._saved + SHARE * (now - self._counted)), now
        self._waiting = [entry for entry in self._waiting if self._scheduler.lives(entry.sequence)]
        self._put(_followed(outcomes))
        forced: list[Outcome] = []
        ends: list[TokenEvent] = []
        while due := self._due(costly=idle or self._saved > 0.0):
            idle = False
            self._advance(due)
            ends += [_end(entry) for entry in due if entry.constraint.error is not None]
            run = list(islice(self._forced(due), max(0, self._most_forced - len(forced))))
            forced += [outcome for outcome, _ in run]
            self._put(taken for outcome, taken in run if outcome.finish_reason is None)
        return forced, ends

    def _put(self, taken: Iterable[_Taken]) -> None:
        for entry in taken:
            entry.constraint.behind = True
            self._waiting.append(entry)

    def _due(self, *, costly: bool) -> list[_Taken]:
        """Return those to advance next: all cheap ones, or a costly one and others in the same state."""
        waiting = self._waiting
        due = [entry for entry in waiting if entry.constraint.seconds <= CHEAP or entry.constraint.error is not None]
        if not due and waiting and costly:
            tenants = dict.fromkeys(entry.sequence.request.tenant for entry in waiting)
            tenant = self._turns.in_order(tenants, self._counted)[0]
            first = next(entry for entry in waiting if entry.sequence.request.tenant == tenant)
            place = first.constraint.place
            due = [entry for entry in waiting if entry.constraint.place == place and entry.token == first.token]
        if len(due) == len(waiting):
            self._waiting = []
        elif due:
            taken = set(due)
            self._waiting = [entry for entry in waiting if entry not in taken]
        return due

    def _advance(self, due: list[_Taken]) -> None:
        """Advance constraints, and charge the first's caller for a costly one."""
        costly, began = due[0].constraint.seconds > CHEAP, self._clock()
        going_on = [entry for entry in due if entry.constraint.error is None]
        try:
            follow([(entry.constraint, entry.token) for entry in going_on])
        except Exception:
            for entry in going_on:  # the next call ends sequences that live on
                entry.constraint.error = "it could not be advanced"
            self._waiting += going_on
            raise
        for entry in due:
            entry.constraint.behind = False
        if costly:
            seconds = self._clock() - began
            self._saved -= seconds
            self._turns.took(due[0].sequence.request.tenant, seconds, self._counted, at_limit=False)

    def _forced(self, taken: Iterable[_Taken]) -> Iterator[tuple[Outcome, _Taken]]:
        """Append the forced token of each sequence that has one; yield the outcome, and the token to follow."""
        for entry in taken:
            sequence, token = entry.sequence, entry.constraint.only_token
            if entry.forced >= MOST_FORCED or token is None or entry.constraint.error is not None:
                continue
            if sequence.params.logprobs is None:
                outcome = Outcome(sequence, entry.index, token, self._scheduler.force(sequence, token))
                yield outcome, _Taken(sequence, entry.index, entry.constraint, token, entry.forced + 1)


def _followed(outcomes: Iterable[Outcome]) -> Iterator[_Taken]:
    """Yield the new tokens of sequences that have not ended, with the constraints that must follow them."""
    for outcome in outcomes:
        constraint, token = outcome.sequence.constraint, outcome.token
        if isinstance(constraint, Constraint) and token is not None and outcome.finish_reason is None:
            yield _Taken(outcome.sequence, outcome.index, constraint, token)


def _end(taken: _Taken) -> TokenEvent:
    source = taken.constraint.source
    error = f"{source} could not be followed any further: {taken.constraint.error}"
    return TokenEvent(taken.sequence.request_id, finish_reason=FinishReason.ERROR, error=error, param=source)
