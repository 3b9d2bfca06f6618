"""Predict a request's latencies beside what runs and waits, and refuse it where targets break. Host only, no jax, no
clock.

Steps under way end first. Then the prompts before it are computed, by order and fair share, beside all decodes, in steps
as long as targets or the rule of filling allow. It also waits until running sequences have ended that hold the rows and
blocks which it and those before it need.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Several
from dataclasses import dataclass, replace
from functools import cached_property

from jaxgen.cache.cache_manager import KVCacheManager
from jaxgen.core.errors import WouldBeLateError
from jaxgen.core.sequence import Level, Sequence
from jaxgen.core.service_class import ServiceClass
from jaxgen.scheduling.fill import DuePrompt, FillRule
from jaxgen.scheduling.queues import RequestQueues
from jaxgen.scheduling.service.backlog import Backlog
from jaxgen.scheduling.service.ordered_work import Work
from jaxgen.scheduling.step_time import MARGIN, Decodes, StepTimeModel


class Rows:
    """Running online sequences, and what predictions ask of them. Valid until one of them changes."""

    def __init__(self, sequences: Several[Sequence], backlog: Backlog, answered: float) -> None:
        """``answered``: the share of ``max_tokens`` that answers are expected to reach."""
        self._sequences = sequences
        self._answered = answered
        self.count = len(sequences)
        decoding = [s for s in sequences if not backlog.wants(s)]
        self.decoding = len(decoding)
        self.positions = sum([s.num_computed for s in decoding])
        """Of the decoding ones, summed."""
        speaking = [s for s in sequences if s.max_length > s.num_prompt + 1]
        self.speaking = len(speaking)
        """Sequences with more than one token to come in all."""
        self.contexts = sum([len(s.tokens) for s in speaking])
        """Tokens of these."""
        self.blocks = sum([len(s.block_table) for s in sequences])

    @cached_property
    def ends(self) -> list[tuple[float, int]]:
        """Expected steps until each ends, the first first, and the blocks that it gives back then."""
        answered = self._answered
        lefts = [
            (answered * (s.max_length - s.num_prompt) - s.num_generated, len(s.block_table)) for s in self._sequences
        ]
        return sorted([(max(1.0, left), blocks) for left, blocks in lefts])

    def steps_to_room(self, rows: int, blocks: int) -> float:
        """Return the steps until enough of them have ended to free ``rows`` and ``blocks``."""
        if rows <= 0 and blocks <= 0:
            return 0.0
        steps = 0.0
        for left, held in self.ends:
            if rows <= 0 and blocks <= 0:
                break
            steps, rows, blocks = left, rows - 1, blocks - held
        return steps


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A sequence that has its place and has not joined."""

    sequence: Sequence
    order_key: tuple[int, float, int]
    """As it will be once it has joined."""
    own: Work
    first: Work
    """What is computed before it."""
    due: Iterable[DuePrompt]
    """Prompts in the order of service up to its own, as FillRule asks for them."""
    staying: Rows
    """Running online sequences that it may not preempt."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a newcomer finds. ``under_way``: seconds until the steps in flight end, from ``now`` on."""

    queues: RequestQueues
    backlog: Backlog
    kv_cache: KVCacheManager
    step_time: StepTimeModel
    fill: FillRule
    answered: float
    """Share of ``max_tokens`` that recent answers reached."""
    online: Rows
    """All that run and are not of the background."""
    held_blocks: int
    """Blocks of all that run, counted for each owner."""
    now: float
    under_way: float
    next_is_planned: bool
    """Whether a step is planned before the newcomer can join, as after a quote."""


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


def predict(newcomer: Newcomer, load: Load) -> Prediction:
    """Predict the latencies of a newcomer."""
    first, own, step_time = newcomer.first, newcomer.own, load.step_time
    by_fill = newcomer.sequence.level is Level.BEST_EFFORT and not load.queues.has(Level.WITH_TARGETS)
    decodes = _decodes(newcomer, load)
    if by_fill and decodes.count:
        decodes = _beside_filled(decodes, newcomer, load)
    each = step_time.prompt_tokens(decodes)
    alone = step_time.decode_seconds(decodes.count, decodes.positions)
    before = step_time.prompt_seconds(first.tokens, first.positions, decodes)
    prompt = step_time.prompt_seconds(own.tokens, own.positions, decodes)
    # Once these prompts are computed, steps have decodes only.
    wait = max(0.0, _steps_to_room(newcomer, load) - first.tokens / each) * alone
    wanted = load.backlog.total(Level.WITH_TARGETS).tokens + load.backlog.total(Level.BEST_EFFORT).tokens
    if load.next_is_planned and (wanted or decodes.count):
        filled = step_time.wide.seconds(min(wanted, each) + decodes.count, decodes.positions)
        before = max(before, filled if wanted else alone)  # the next step has of these prompts what it can
    first_token = load.under_way + before + wait + prompt
    if by_fill:
        # Prompts behind it fill up the step with the last of its own.
        first_token += step_time.wide.per_token * min(max(0, wanted - first.tokens), -own.tokens % each)
    beside = _decodes_with_all(newcomer, load)
    inter_token = step_time.decode_seconds(beside.count, beside.positions)
    longest = (
        load.fill.longest(step_time, beside.count, beside.positions)
        if by_fill
        else step_time.wide.seconds(step_time.prompt_tokens(beside) + beside.count, beside.positions)
    )
    delayed = _delayed(newcomer, load, decodes, prompt)
    return Prediction(first_token, inter_token, max(inter_token, longest), _strictest(newcomer, load), delayed)


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


def _decodes(newcomer: Newcomer, load: Load) -> Decodes:
    """Estimate the sequences that decode while it waits.

    All that stay do; of the others as many as have rows beside it; and those computed before it, each for half of the
    time on average if its answer is that long.
    """
    first, rows, online = newcomer.first, load.kv_cache.num_rows, load.online
    now = max(newcomer.staying.decoding, min(online.decoding, rows - first.waiting - 1))
    steps = max(1.0, first.tokens / max(1, load.step_time.token_budget - now))
    count = min(rows, now + int(min(0.5 * first.sequences, load.answered * first.answers / steps)))
    positions = online.positions * count // max(1, online.decoding)
    return Decodes(count, positions, _targets(load.backlog.promises))


def _beside_filled(decodes: Decodes, newcomer: Newcomer, load: Load) -> Decodes:
    """Return the decodes with the time between tokens that the rule of filling leaves them, none of which has a
    target."""
    seconds = load.fill.seconds_for_prompts(load.step_time, decodes.count, decodes.positions, newcomer.due)
    seconds += load.step_time.wide.seconds(decodes.count, decodes.positions)
    return replace(decodes, targets=(seconds / MARGIN,))


def _decodes_with_all(newcomer: Newcomer, load: Load) -> Decodes:
    """Return the decodes of a step in which it and all that stay or wait before it decode, as far as there are rows."""
    sequence, staying, waiting = newcomer.sequence, newcomer.staying, load.backlog.total(Level.WITH_TARGETS)
    speaks = sequence.params.max_tokens > 1
    count = waiting.speaking + staying.speaking + speaks
    rows = min(count, load.kv_cache.num_rows)
    contexts = waiting.contexts + staying.contexts + speaks * sequence.num_tokens
    targets = _targets([*load.backlog.promises, sequence.service])
    return Decodes(rows, contexts * rows // max(1, count), targets)


def _steps_to_room(newcomer: Newcomer, load: Load) -> float:
    """Return the steps until running sequences have ended whose rows and blocks it and those before it need."""
    kv_cache, first, staying = load.kv_cache, newcomer.first, newcomer.staying
    free = kv_cache.pool.num_free + load.held_blocks - staying.blocks  # with those of sequences that it preempts
    return staying.steps_to_room(
        first.waiting + 1 - (kv_cache.num_rows - staying.count), first.blocks + newcomer.own.blocks - free
    )


def _delayed(newcomer: Newcomer, load: Load, decodes: Decodes, seconds: float) -> ServiceClass | None:
    """Return the class of a request of the same tenant that would meet its first-token target without this one and miss
    it ``seconds`` later; None if there is none. Fair sharing protects other tenants."""
    tokens = load.step_time.prompt_tokens(decodes)
    each = load.step_time.wide.seconds(tokens + decodes.count, decodes.positions) / tokens
    own_turn = load.now + load.under_way + each * newcomer.first.tokens
    tenant = newcomer.sequence.request.tenant
    for due, between, service in load.backlog.promised_behind(tenant, newcomer.order_key):
        begin = own_turn + each * between
        if begin <= due < begin + seconds:
            return service
    return None


def _strictest(newcomer: Newcomer, load: Load) -> ServiceClass:
    relying = [service for service in load.backlog.promises if not service.serve_late]
    classes = [newcomer.sequence.service, *relying]
    return min(classes, key=lambda s: s.inter_token_seconds or float("inf"))


def _targets(classes: Iterable[ServiceClass]) -> list[float]:
    return sorted({target for one in classes if (target := one.inter_token_seconds) is not None})
