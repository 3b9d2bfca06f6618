"""Advance the constraints of requests by the tokens that steps sample."""

from jaxgen.core.request import FinishReason, TokenEvent
from jaxgen.core.step_plan import Outcome
from jaxgen.text.constraint import Constraint, follow


def follow_constraints(outcomes: list[Outcome]) -> list[TokenEvent]:
    """Advance the constraints of sequences that have not ended by their new tokens, all in parallel.

    Returns the last event of each request that cannot go on.
    """
    taken = [
        (outcome.sequence.request_id, outcome.sequence.constraint, outcome.token)
        for outcome in outcomes
        if isinstance(outcome.sequence.constraint, Constraint)
        and outcome.token is not None
        and outcome.finish_reason is None
    ]
    follow([(constraint, token) for _, constraint, token in taken])
    ends = []
    for request_id, constraint, _ in taken:
        if constraint.error is not None:
            error = f"{constraint.source} could not be followed any further: {constraint.error}"
            ends.append(TokenEvent(request_id, finish_reason=FinishReason.ERROR, error=error, param=constraint.source))
    return ends
