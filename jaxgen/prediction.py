"""Whether what a request's class promises can be kept, by what runs and waits. Host only, no jax, no clock."""

from collections.abc import Sequence as Several
from dataclasses import dataclass
from heapq import merge
from operator import attrgetter

from jaxgen.holdings import Holdings
from jaxgen.ledger import TokenLedger
from jaxgen.lineup import Lineup, may_displace
from jaxgen.pace import Pace, shortest_target
from jaxgen.request import WouldBeLateError
from jaxgen.sequence import Level, Sequence
from jaxgen.service import ServiceClass


@dataclass(frozen=True, slots=True)
class Prediction:
    """Of a request that comes now: seconds to its first token, and between tokens when it runs with all that run and
    wait and that it may not displace."""

    first_token: float
    inter_token: float
    strictest: ServiceClass
    """Of its class and theirs, where these were promised something, the one that promises least between tokens."""


def predict(
    sequence: Sequence, lineup: Lineup, holdings: Holdings, ledger: TokenLedger, pace: Pace, answered: float
) -> Prediction:
    """For a sequence that has not joined the line.

    Prompts before it, by order and shares, are computed first, in steps as long as promises allow; it waits, too, until
    those before it and itself have rows and blocks, as those that run end. ``answered``: the share of max_tokens that
    answers came to lately.
    """
    staying = [s for s in lineup.running if not may_displace(sequence, s)]
    displaced = sum([len(s.block_table) for s in lineup.running if may_displace(sequence, s)])
    begun = [s for s in staying if s.num_uncomputed > 1 and not s.request.background]
    wanting = list(merge(begun, lineup.waiting_of(background=False), key=attrgetter("urgency")))
    first = ledger.before(sequence, lineup.urgency_of(sequence), wanting)
    ahead = [s for s in first if s.row is None]
    tokens, positions = _work(first)
    own = sequence.num_prompt - len(holdings.prefixes.look_up(sequence)) * holdings.block_size
    decodes, target = len(staying) - len(first) + len(ahead), shortest_target([*staying, *ahead])
    before = pace.prompt_seconds(tokens, positions, decodes=decodes, target=target)
    own_positions = own * (2 * sequence.num_prompt - own) // 2
    prompt = pace.prompt_seconds(own, own_positions, decodes=decodes, target=target)
    rows = len(ahead) + 1 - (holdings.num_rows - len(staying))
    blocks = sum([holdings.blocks_for(len(s.tokens)) for s in (*ahead, sequence)]) - holdings.pool.num_free - displaced
    wait = _steps_to_room(staying, rows, blocks, answered) * pace.most_seconds
    # The step under way ends first.
    between = _between_tokens(sequence, staying, lineup, pace, holdings.num_rows)
    return Prediction(pace.most_seconds + max(before, wait) + prompt, *between)


def check(sequence: Sequence, prediction: Prediction) -> None:
    """Raises WouldBeLateError if a target of the sequence's class would be missed, or, because of it, the time between
    tokens that another class promises."""
    service = sequence.service
    target = service.first_token_target(sequence.num_prompt)
    if target is not None and prediction.first_token > target:
        raise WouldBeLateError(
            f"service_tier {service.name!r} promises the first token in {target:.3g} s, "
            f"and it would come in {prediction.first_token:.3g} s",
            prediction.first_token - target,
        )
    strictest = prediction.strictest
    target = strictest.inter_token_seconds
    if target is not None and prediction.inter_token > target:
        raise WouldBeLateError(
            f"service_tier {strictest.name!r} promises {target:.3g} s between tokens, "
            f"and beside what runs it would be {prediction.inter_token:.3g} s",
            target,
        )


def _between_tokens(
    sequence: Sequence, staying: Several[Sequence], lineup: Lineup, pace: Pace, num_rows: int
) -> tuple[float, ServiceClass]:
    """Seconds between tokens when all that came before run, as far as there are rows, and the strictest class among
    those that count on it."""
    waiting = [s for s in lineup.waiting if s.level is Level.PROMISED]
    contexts = sum([s.num_computed for s in staying]) + sum([s.num_tokens for s in waiting]) + sequence.num_prompt
    count = len(staying) + len(waiting) + 1
    rows = min(count, num_rows)
    relying = [s.service for s in (*staying, *waiting) if not s.service.serve_late]
    strictest = min([sequence.service, *relying], key=lambda s: s.inter_token_seconds or float("inf"))
    return pace.decode_seconds(rows, contexts * rows // count), strictest


def _work(sequences: Several[Sequence]) -> tuple[int, int]:
    """Tokens that they are to compute before they decode, and the positions of these."""
    tokens = sum([s.num_uncomputed for s in sequences])
    return tokens, sum([s.num_uncomputed * (s.num_computed + s.num_tokens) // 2 for s in sequences])


def _steps_to_room(running: Several[Sequence], rows: int, blocks: int, answered: float) -> float:
    """Steps until so many of those that run have ended that they leave so many rows and blocks."""
    ends = sorted([(max(1.0, answered * s.params.max_tokens - s.num_generated), len(s.block_table)) for s in running])
    steps = 0.0
    for left, held in ends:
        if rows <= 0 and blocks <= 0:
            break
        steps, rows, blocks = left, rows - 1, blocks - held
    return steps
