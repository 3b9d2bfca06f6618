"""Advance the grammars of requests by the tokens that steps sample."""

from jaxgen.core.request import FinishReason, TokenEvent
from jaxgen.core.step_plan import Outcome
from jaxgen.text.grammar import GrammarState, advance


def follow_grammars(outcomes: list[Outcome]) -> list[TokenEvent]:
    """Advance the grammars of sequences that have not ended by their new tokens, all in parallel.

    Returns the last event of each request whose grammar could not be advanced.
    """
    advance(
        [
            (outcome.sequence.grammar, outcome.token)
            for outcome in outcomes
            if isinstance(outcome.sequence.grammar, GrammarState)
            and outcome.token is not None
            and outcome.finish_reason is None
        ]
    )
    ends = []
    for sequence in [outcome.sequence for outcome in outcomes]:
        state, grammar = sequence.grammar, sequence.params.grammar
        if isinstance(state, GrammarState) and grammar is not None and state.error is not None:
            error = f"{grammar.source} could not be followed any further: {state.error}"
            reason = FinishReason.ERROR
            ends.append(TokenEvent(sequence.request_id, finish_reason=reason, error=error, param=grammar.source))
    return ends
