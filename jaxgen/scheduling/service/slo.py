"""Predict whether a request's targets can be met beside what runs and waits. Host only, no jax, no clock."""

from collections.abc import Sequence as Several
from dataclasses import dataclass, replace
from operator import attrgetter

from jaxgen.cache.cache_manager import KVCacheManager
from jaxgen.core.errors import WouldBeLateError
from jaxgen.core.sequence import Level, Sequence
from jaxgen.core.service_class import STARVATION_TIMEOUT_S, ServiceClass
from jaxgen.scheduling.fill import DEFAULT_FILL, MOST_REGARDED, FillRule
from jaxgen.scheduling.service.fair_share import FairShare
from jaxgen.scheduling.service.queues import ServiceQueues, may_preempt
from jaxgen.scheduling.service.targets import targets_between
from jaxgen.scheduling.step_time import MARGIN, Decodes, StepTimeModel


@dataclass(frozen=True, slots=True)
class SchedulerSnapshot:
    """What a new request finds. ``answered``: the share of max_tokens that recent answers reached."""

    queues: ServiceQueues
    kv_cache: KVCacheManager
    fair_share: FairShare
    answered: float = 1.0
    fill: FillRule = DEFAULT_FILL


@dataclass(frozen=True, slots=True)
class Prediction:
    """Of a request that arrives now: seconds to its first token, and seconds between tokens beside all sequences that
    run or wait and that it may not preempt."""

    first_token: float
    inter_token: float
    longest_step: float
    """Seconds of the longest step beside all of these, with prompts in it."""
    strictest: ServiceClass
    """The class with the shortest inter-token target among its own and those of these sequences."""
    delayed: ServiceClass | None = None
    """The class of a sequence behind it whose first token it would make late."""


def predict(
    sequence: Sequence, load: SchedulerSnapshot, step_time: StepTimeModel, now: float, under_way: float
) -> Prediction:
    """Predict the latencies of a sequence that has its place but has not joined the queue.

    Sets what it may expect of the prefix cache. Steps in flight end first, in ``under_way`` seconds.
    Then prompts before it are computed, by order and fair share, beside all decodes, in steps as long as targets allow.
    It also waits until running sequences have ended that hold the rows and blocks which it and those before it need.
    """
    queues, kv_cache = load.queues, load.kv_cache
    staying = [s for s in queues.running if not may_preempt(sequence, s)]
    wanting = sorted(queues.wanting(background=False), key=attrgetter("order_key"))
    order_key = queues.order_key_joined(sequence)
    first = load.fair_share.ahead_of(sequence, order_key, wanting)
    ahead = [s for s in first if s.row is None]
    _expect(sequence, first, kv_cache)
    decodes = _decodes(staying, first, load, step_time)
    by_fill = sequence.level is Level.BEST_EFFORT and not queues.has(Level.WITH_TARGETS)
    if by_fill and decodes.count:
        decodes = _beside_filled(decodes, [*first, sequence], load.fill, step_time, now)
    before, prompt = (step_time.prompt_seconds(*_work(some), decodes) for some in (first, [sequence]))
    missing = _missing_blocks(sequence, ahead, load)
    steps = _steps_to_room(staying, len(ahead) + 1 - (kv_cache.num_rows - len(staying)), missing, load.answered)
    # Once these prompts are computed, steps have decodes only.
    steps -= sum([s.num_to_compute for s in first]) / step_time.prompt_tokens(decodes)
    wait = max(0.0, steps) * step_time.decode_seconds(decodes.count, decodes.positions)
    delayed = _delayed(sequence, order_key, wanting, step_time, decodes, now + under_way, prompt)
    beside, strictest = _beside_tokens(sequence, staying, queues, kv_cache.num_rows)
    inter_token = step_time.decode_seconds(beside.count, beside.positions)
    longest = load.fill.longest(step_time, beside.count, beside.positions) if by_fill else _longest(beside, step_time)
    first_token = under_way + before + wait + prompt
    if by_fill:
        behind = sum([s.num_to_compute for s in set(wanting) - set(first)])
        first_token += _filling(sequence, behind, decodes, step_time)
    return Prediction(first_token, inter_token, max(inter_token, longest), strictest, delayed)


def check(sequence: Sequence, prediction: Prediction) -> None:
    """Raise WouldBeLateError if the sequence would miss a target of its class, or make another miss one."""
    service, waited = sequence.service, sequence.request.waited_seconds
    target = service.first_token_target(sequence.num_prompt)
    if target is not None and waited + prediction.first_token > target:
        raise WouldBeLateError(
            f"service_tier {service.name!r} promises the first token in {target:.3g} s, "
            f"and it would come in {waited + prediction.first_token:.3g} s",
            waited + prediction.first_token - target,
        )
    if prediction.delayed is not None:
        raise WouldBeLateError(
            f"a request of service_tier {prediction.delayed.name!r}, promised its first token before, "
            "would be late behind this one",
            prediction.first_token,
        )
    strictest = prediction.strictest
    target = strictest.inter_token_seconds
    if target is not None and prediction.inter_token > target:
        raise WouldBeLateError(
            f"service_tier {strictest.name!r} promises {target:.3g} s between tokens, "
            f"and beside what runs it would be {prediction.inter_token:.3g} s",
            target,
        )


def _expect(sequence: Sequence, first: Several[Sequence], kv_cache: KVCacheManager) -> None:
    """Set what the sequence will find in the prefix cache: what is there, or what those before it will compute."""
    found = kv_cache.prefixes.look_up(sequence)
    coming = max([kv_cache.prefixes.num_common(sequence, s) for s in first], default=0)
    sequence.num_expected = max(len(found), coming) * kv_cache.block_size
    sequence.num_expected_shared = max(sum([kv_cache.pool.num_owners(block) > 0 for block in found]), coming)


def _decodes(
    staying: Several[Sequence], first: Several[Sequence], load: SchedulerSnapshot, step_time: StepTimeModel
) -> Decodes:
    """Estimate the sequences that decode while it waits.

    All that stay do; of the others as many as have rows beside it; and those computed before it, each for half of the
    time on average if its answer is that long.
    """
    running, rows = load.queues.running, load.kv_cache.num_rows
    found = [s for s in running if s.num_uncomputed <= 1 and not s.request.background]
    stay = sum([s.num_uncomputed <= 1 and not s.request.background for s in staying])
    ahead = [s for s in first if s.row is None]
    now = max(stay, min(len(found), rows - len(ahead) - 1))
    steps = max(1.0, sum([s.num_to_compute for s in first]) / max(1, step_time.token_budget - now))
    more = sum([min(0.5, load.answered * s.params.max_tokens / steps) for s in first])
    count = min(rows, now + int(more))
    positions = sum([s.num_computed for s in found]) * count // max(1, len(found))
    return Decodes(count, positions, targets_between([*running, *ahead]))


def _beside_filled(
    decodes: Decodes, prompts: Several[Sequence], fill: FillRule, step_time: StepTimeModel, now: float
) -> Decodes:
    """Return the decodes with the time between tokens that ``fill`` leaves them beside ``prompts``, none of which has a
    target."""
    due = [(s, s.deadline - STARVATION_TIMEOUT_S - now) for s in prompts[:MOST_REGARDED]]
    seconds = fill.seconds_for_prompts(step_time, decodes.count, decodes.positions, due)
    seconds += step_time.wide.seconds(decodes.count, decodes.positions)
    return replace(decodes, targets=(seconds / MARGIN,))


def _longest(beside: Decodes, step_time: StepTimeModel) -> float:
    """Return the seconds of a step with these decodes and as many tokens of prompts as their targets allow."""
    return step_time.wide.seconds(step_time.prompt_tokens(beside) + beside.count, beside.positions)


def _filling(sequence: Sequence, behind: int, decodes: Decodes, step_time: StepTimeModel) -> float:
    """Return the seconds that ``behind`` tokens of prompts after it add to the step with the last of its own."""
    each = step_time.prompt_tokens(decodes)
    return step_time.wide.per_token * min(behind, -sequence.num_to_compute % each)


def _missing_blocks(sequence: Sequence, ahead: Several[Sequence], load: SchedulerSnapshot) -> int:
    """Blocks that it and those before it lack, once the sequences that it preempts have freed theirs."""
    kv_cache = load.kv_cache
    wanted = sum([kv_cache.blocks_for(len(s.tokens)) - s.num_expected_shared for s in (*ahead, sequence)])
    displaced = sum([len(s.block_table) for s in load.queues.running if may_preempt(sequence, s)])
    return wanted - kv_cache.pool.num_free - displaced


def _delayed(
    sequence: Sequence,
    order_key: tuple[int, float, int],
    wanting: Several[Sequence],
    step_time: StepTimeModel,
    decodes: Decodes,
    begin: float,
    seconds: float,
) -> ServiceClass | None:
    """Service class of the first request of the same tenant that would meet its first-token target without this one and
    miss it ``seconds`` later; None if there is none. Fair sharing protects other tenants."""
    tokens = step_time.prompt_tokens(decodes)
    each = step_time.wide.seconds(tokens + decodes.count, decodes.positions) / tokens
    for s in wanting:
        if s.level is not Level.WITH_TARGETS:
            return None
        promises = s.service.first_token_target(s.num_prompt) is not None and not s.service.serve_late
        promises = promises and s.request.tenant == sequence.request.tenant
        if promises and s.order_key > order_key and begin <= s.deadline < begin + seconds:
            return s.service
        begin += each * s.num_to_compute
    return None


def _beside_tokens(
    sequence: Sequence, staying: Several[Sequence], queues: ServiceQueues, num_rows: int
) -> tuple[Decodes, ServiceClass]:
    """Return the decodes of a step in which all sequences before it decode, as far as there are rows, and it too; and
    the class with the shortest inter-token target among them."""
    waiting = [s for s in queues.waiting if s.level is Level.WITH_TARGETS]
    decoding = [s for s in (*staying, *waiting, sequence) if s.params.max_tokens > 1]
    rows = min(len(decoding), num_rows)
    contexts = sum([s.num_tokens for s in decoding]) * rows // max(1, len(decoding))
    relying = [s.service for s in (*staying, *waiting) if not s.service.serve_late]
    strictest = min([sequence.service, *relying], key=lambda s: s.inter_token_seconds or float("inf"))
    return Decodes(rows, contexts, targets_between(decoding)), strictest


def _work(sequences: Several[Sequence]) -> tuple[int, int]:
    """Prompt tokens left to compute, and their positions summed."""
    tokens = [s.num_to_compute for s in sequences]
    return sum(tokens), sum([n * (2 * s.num_tokens - n) // 2 for s, n in zip(sequences, tokens, strict=True)])


def _steps_to_room(running: Several[Sequence], rows: int, blocks: int, answered: float) -> float:
    """Steps until enough running sequences have ended to free ``rows`` and ``blocks``."""
    ends = sorted([(max(1.0, answered * s.params.max_tokens - s.num_generated), len(s.block_table)) for s in running])
    steps = 0.0
    for left, held in ends:
        if rows <= 0 and blocks <= 0:
            break
        steps, rows, blocks = left, rows - 1, blocks - held
    return steps
