"""Predict a request's latencies at the current load, and refuse it if targets break. Host only, no jax, no clock."""

from dataclasses import dataclass, replace
from math import inf

from jaxgen.cache.cache_manager import KVCacheManager
from jaxgen.core.errors import WouldBeLateError
from jaxgen.core.sequence import Sequence
from jaxgen.core.service_class import STARVATION_TIMEOUT_S, ServiceClass
from jaxgen.core.standing import Level
from jaxgen.scheduling.average import Average
from jaxgen.scheduling.ordered_work import Work, total
from jaxgen.scheduling.prefill_limits import DuePrompt, PrefillLimits
from jaxgen.scheduling.queues import RequestQueues, may_preempt
from jaxgen.scheduling.running_sums import RunningSums
from jaxgen.scheduling.service.backlog import Backlog, OrderKey
from jaxgen.scheduling.service.fair_share import FairShare
from jaxgen.scheduling.service.targets import targets_between
from jaxgen.scheduling.step_time import MARGIN, Decodes, StepTimeModel


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted seconds of a new request: to its first token, and between tokens.

    Every sequence that it cannot preempt is assumed to keep running.
    """

    first_token: float
    inter_token: float
    longest_step: float
    """Seconds of the longest step with all these sequences, with prompts in it."""
    strictest: ServiceClass
    """The class with the shortest inter-token target among its own and those of these sequences."""
    delayed: ServiceClass | None = None
    """The class of a sequence behind it whose first token it would make late."""


class Predictor:
    """Predicts the latencies of a newcomer: a sequence that has its place and has not joined.

    Steps under way end first. Then the prompts before it are computed, by order and fair share. All decodes run
    in the same steps, which are as long as targets or the rule of filling allow. The newcomer also waits for running
    sequences to end, if they have the rows and blocks that it and the sequences before it need.
    """

    def __init__(
        self, queues: RequestQueues, backlog: Backlog, kv_cache: KVCacheManager, share: FairShare, limits: PrefillLimits
    ) -> None:
        self.answer_ratio = Average(1.0)
        """Tokens of recent answers over their ``max_tokens``."""
        self._queues = queues
        self._backlog = backlog
        self._kv_cache = kv_cache
        self._share = share
        self._limits = limits
        self._running_sums: dict[Level, RunningSums] = {}

    def running_changed(self) -> None:
        """Note that running sequences have changed."""
        self._running_sums.clear()

    def predict(
        self, sequence: Sequence, step_time: StepTimeModel, now: float, under_way: float, *, next_is_planned: bool
    ) -> Prediction:
        """Return the prediction for a newcomer. Sets what it will find in the prefix cache.

        Steps in flight end ``under_way`` seconds from ``now``. ``next_is_planned``: so is one more before it can join.
        """
        backlog, order_key = self._backlog, self._queues.order_key_joined(sequence)
        backlog.find_prefix(sequence, order_key)
        own, unpreemptible = backlog.work_of(sequence), self._unpreemptible(sequence)
        owed = self._is_owed(sequence)
        first = self._work_before(sequence, own, order_key, owed=owed)
        decodes = self._decodes(first, unpreemptible, step_time)
        by_fill = sequence.standing.level is Level.BEST_EFFORT and not self._queues.has(Level.WITH_TARGETS)
        if by_fill and decodes.count:
            granted = sequence.standing.deadline - STARVATION_TIMEOUT_S - now
            due = DuePrompt(first.tokens + own.tokens, sequence.num_given, granted)  # it, with all before it
            decodes = self._decodes_in_filled_steps(decodes, due, step_time)
        each = step_time.prompt_tokens(decodes)
        alone = step_time.decode_seconds(decodes.count, decodes.contexts)
        before = step_time.prompt_seconds(first.tokens, first.positions, decodes)
        prompt = step_time.prompt_seconds(own.tokens, own.positions, decodes)
        # Once these prompts are computed, steps have decodes only.
        room = 0.0 if owed else self._steps_to_room(first, own, unpreemptible)
        wait = max(0.0, room - first.tokens / each) * alone
        wanted = backlog.total(Level.WITH_TARGETS).tokens + backlog.total(Level.BEST_EFFORT).tokens
        if next_is_planned and (wanted or decodes.count):
            filled = step_time.wide.seconds(min(wanted, each) + decodes.count, contexts=decodes.contexts)
            before = max(before, filled if wanted else alone)  # that step has of these prompts what it can
        first_token = under_way + before + wait + prompt
        with_all = self._decodes_with_all(sequence, unpreemptible)
        inter_token = step_time.decode_seconds(with_all.count, with_all.contexts)
        longest = self._longest_step(with_all, step_time, by_fill=by_fill)
        if by_fill:
            # Prompts behind it fill up the step with the last of its own.
            first_token += step_time.wide.per_token * min(max(0, wanted - first.tokens), -own.tokens % each)
        step = step_time.wide.seconds(each + decodes.count, contexts=decodes.contexts)
        begin = now + under_way + step / each * first.tokens
        delayed = backlog.first_delayed(sequence.request.tenant, order_key, begin, step / each, prompt)
        relying = [service for service in backlog.promises if not service.serve_late]
        strictest = min([sequence.standing.service, *relying], key=lambda service: service.inter_token_seconds or inf)
        return Prediction(first_token, inter_token, max(inter_token, longest), strictest, delayed)

    def _work_before(self, newcomer: Sequence, own: Work, order_key: OrderKey, *, owed: bool) -> Work:
        """Return the work before a newcomer's ``own``; of running sequences alone if it is ``owed`` a row."""
        backlog = self._backlog
        if not owed:
            return backlog.ahead_of(newcomer.request, own, order_key, self._share)
        running = [s for s in self._queues.running_to(newcomer.standing.level) if s.standing.order_key < order_key]
        return total([backlog.work_of(s) for s in running if backlog.wants(s)])

    def _longest_step(self, decodes: Decodes, step_time: StepTimeModel, *, by_fill: bool) -> float:
        """Return the seconds of the longest step with decodes and prompts; ``by_fill``: by the rule of filling."""
        if by_fill:
            return self._limits.longest(step_time, decodes.count, decodes.contexts)
        tokens = step_time.prompt_tokens(decodes) + decodes.count
        return step_time.wide.seconds(tokens, contexts=decodes.contexts)

    def _is_owed(self, newcomer: Sequence) -> bool:
        """Whether a newcomer takes the row of a tenant that has several, or the next that is free."""
        queues, tenants = self._queues, self._queues.tenant_queues_of(newcomer)
        if self._kv_cache.num_free_rows > len(queues.waiting) or not tenants.owes(newcomer.request.tenant):
            return False
        return self._kv_cache.has_row or any(tenants.may_give(queues.running, newcomer))

    def _running_to(self, level: Level) -> RunningSums:
        if level not in self._running_sums:
            self._running_sums[level] = self._sums_of(self._queues.running_to(level))
        return self._running_sums[level]

    def _sums_of(self, sequences: list[Sequence]) -> RunningSums:
        decoding = [s for s in sequences if not self._backlog.wants(s)]
        return RunningSums(sequences, decoding, self.answer_ratio.value or 1.0)

    def _unpreemptible(self, newcomer: Sequence) -> RunningSums:
        """Return the running sequences that a newcomer may not preempt."""
        level = Level.WITH_TARGETS if newcomer.standing.service.has_targets else Level.BEST_EFFORT
        if not self._queues.has_priorities:
            return self._running_to(level)
        return self._sums_of([s for s in self._queues.running_to(level) if not may_preempt(newcomer, s)])

    def _decodes(self, first: Work, unpreemptible: RunningSums, step_time: StepTimeModel) -> Decodes:
        """Estimate the sequences that decode while it waits.

        All unpreemptible sequences do. Of the others, as many do as find rows next to it. A sequence that is computed
        before it decodes for half of the time on average, if its answer is that long.
        """
        rows, online = self._kv_cache.num_rows, self._running_to(Level.BEST_EFFORT)
        now = max(unpreemptible.decoding, min(online.decoding, rows - first.waiting - 1))
        steps = max(1.0, first.tokens / max(1, step_time.token_budget - now))
        more = min(0.5 * first.sequences, (self.answer_ratio.value or 1.0) * first.max_tokens / steps)
        count = min(rows, now + int(more))
        contexts = online.decoded * count // max(1, online.decoding)
        return Decodes(count, contexts, targets_between(self._backlog.promises))

    def _decodes_in_filled_steps(self, decodes: Decodes, due: DuePrompt, step_time: StepTimeModel) -> Decodes:
        """Return the decodes with the time between tokens that the rule of filling leaves them."""
        seconds = self._limits.seconds_for_prompts(step_time, decodes.count, decodes.contexts, [due])
        seconds += step_time.wide.seconds(decodes.count, contexts=decodes.contexts)
        return replace(decodes, targets=(seconds / MARGIN,))

    def _decodes_with_all(self, newcomer: Sequence, unpreemptible: RunningSums) -> Decodes:
        """Return the decodes of a step in which it and all that stay or wait before it decode, as far as there are
        rows."""
        waiting, decodes = self._backlog.total(Level.WITH_TARGETS), newcomer.params.max_tokens > 1
        count = waiting.will_decode + unpreemptible.will_decode + decodes
        contexts = waiting.contexts + unpreemptible.contexts + decodes * newcomer.num_tokens
        rows = min(count, self._kv_cache.num_rows)
        targets = targets_between([*self._backlog.promises, newcomer.standing.service])
        return Decodes(rows, contexts * rows // max(1, count), targets)

    def _steps_to_room(self, first: Work, own: Work, unpreemptible: RunningSums) -> float:
        """Return the steps until running sequences have ended whose rows and blocks it and those before it need."""
        displaced = self._running_to(Level.BACKGROUND).blocks - unpreemptible.blocks
        blocks = first.blocks + own.blocks - self._kv_cache.pool.num_free - displaced
        return unpreemptible.steps_to_room(first.waiting + 1 - (self._kv_cache.num_rows - unpreemptible.count), blocks)


def check(sequence: Sequence, prediction: Prediction) -> None:
    """Raise WouldBeLateError if the sequence would miss a target of its class, or make another miss one."""
    service, waited = sequence.standing.service, sequence.request.waited_seconds
    target = service.first_token_target(sequence.num_given)
    if target is not None and waited + prediction.first_token > target:
        raise WouldBeLateError(
            f"service_tier {service.name!r} has a target of {target:.3g} s for the first token, "
            f"which would come after {waited + prediction.first_token:.3g} s",
            waited + prediction.first_token - target,
        )
    if prediction.delayed is not None:
        raise WouldBeLateError(
            f"an earlier request of service_tier {prediction.delayed.name!r} would miss its target for the first token",
            prediction.first_token,
        )
    strictest = prediction.strictest
    target = strictest.inter_token_seconds
    if target is not None and prediction.inter_token > target:
        raise WouldBeLateError(
            f"service_tier {strictest.name!r} has a target of {target:.3g} s between tokens, "
            f"and at the current load it would be {prediction.inter_token:.3g} s",
            target,
        )
