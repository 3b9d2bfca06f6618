"""Advance the constraints of requests by sampled tokens, and by the tokens that these force."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from jaxgen.core.request import FinishReason, TokenEvent
from jaxgen.core.sequence import Sequence
from jaxgen.core.step_plan import Outcome
from jaxgen.scheduling.scheduler import Scheduler
from jaxgen.text.constraint import Constraint, follow

MOST_FORCED = 32
"""Most forced tokens that a request gets after a sampled one. The next step samples the following token."""


@dataclass(frozen=True, slots=True)
class _Taken:
    """A token that a constraint is advanced by. ``index``: of the chunk before it."""

    sequence: Sequence
    index: int
    constraint: Constraint
    token: int


def follow_constraints(
    outcomes: list[Outcome], scheduler: Scheduler, *, most_forced: int
) -> tuple[list[Outcome], list[TokenEvent]]:
    """Advance the constraints of sequences that have not ended by their new tokens, all in parallel.

    Where a constraint then allows one token alone, its sequence gets that token, as a step would sample it. This
    repeats. It is jump-forward decoding (SGLang, arXiv 2312.07104), by tokens, so that an answer is the same without
    it. Requests that want log-probabilities get none, since only steps give these. ``most_forced``: of all sequences
    together. Each takes the host 10 to 100 microseconds, and the tokens of all requests wait meanwhile.

    Returns the outcomes of the forced tokens, and the last event of each request that cannot continue.
    """
    forced: list[Outcome] = []
    ends: list[TokenEvent] = []
    taken = list(_followed(outcomes))
    for count in range(MOST_FORCED + 1):
        follow([(one.constraint, one.token) for one in taken])
        ends += [_end(one) for one in taken if one.constraint.error is not None]
        left = most_forced - len(forced) if count < MOST_FORCED else 0
        run = list(islice(_forced(taken, scheduler), left))
        if not run:
            break
        forced += run
        taken = list(_followed(run))
    return forced, ends


def _followed(outcomes: Iterable[Outcome]) -> Iterator[_Taken]:
    """Yield the new tokens of sequences that have not ended, with the constraints that must follow them."""
    for one in outcomes:
        constraint, token = one.sequence.constraint, one.token
        if isinstance(constraint, Constraint) and token is not None and one.finish_reason is None:
            yield _Taken(one.sequence, one.index, constraint, token)


def _forced(taken: Iterable[_Taken], scheduler: Scheduler) -> Iterator[Outcome]:
    """Append the forced token of each sequence that has one; yield the outcomes."""
    for one in taken:
        sequence, token = one.sequence, one.constraint.only_token
        if token is not None and one.constraint.error is None and sequence.params.logprobs is None:
            yield Outcome(sequence, one.index, token, scheduler.force(sequence, token))


def _end(taken: _Taken) -> TokenEvent:
    source = taken.constraint.source
    error = f"{source} could not be followed any further: {taken.constraint.error}"
    return TokenEvent(taken.sequence.request_id, finish_reason=FinishReason.ERROR, error=error, param=source)
