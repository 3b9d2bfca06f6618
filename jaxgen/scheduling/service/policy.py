"""The policy of a server: targets of service classes, priorities, and fair shares of tenants. Host only, no jax, no
clock."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Several
from heapq import merge
from itertools import islice
from operator import attrgetter

from jaxgen.cache.cache_manager import KVCacheManager
from jaxgen.core.config import SchedulerConfig
from jaxgen.core.errors import WouldBeLateError
from jaxgen.core.quote import Quote
from jaxgen.core.request import FinishReason
from jaxgen.core.sequence import Chunk, Level, Sequence
from jaxgen.core.service_class import STARVATION_TIMEOUT_S
from jaxgen.core.step_plan import StepPlan
from jaxgen.scheduling.average import Average
from jaxgen.scheduling.fill import DEFAULT_FILL, MOST_REGARDED, DuePrompt, FillRule, target
from jaxgen.scheduling.policy import Fifo
from jaxgen.scheduling.queues import RequestQueues, may_preempt, order_key_of
from jaxgen.scheduling.service.backlog import Backlog
from jaxgen.scheduling.service.fair_share import FairShare
from jaxgen.scheduling.service.prediction import Load, Newcomer, Prediction, Rows, check, predict
from jaxgen.scheduling.service.targets import breaks_targets, time_for_prompts, time_left
from jaxgen.scheduling.step_time import StepBudget, StepTimeModel, StepTimes


class ServicePolicy(Fifo):
    """Sequences whose classes have targets first, each before it is due; tenants within their fair shares.

    - All due times come nearer at the same rate, so the order does not change with time. Of sequences without targets
      one is promoted after each STARVATION_TIMEOUT_S.
    - Refuses a request whose class promises what cannot be kept, or that would break another's target, or serves it
      without targets where its class says so.
    - Cuts prompts so short that steps meet the inter-token targets of the sequences that decode.
    - Serves tenants that are over their fair share after the others.

    Without classes, priorities and several tenants every plan is that of ``Fifo``. Without ``step_times`` nothing is
    refused and no step is cut.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        kv_cache: KVCacheManager,
        *,
        step_times: StepTimes | None = None,
        fill: FillRule = DEFAULT_FILL,
    ) -> None:
        super().__init__(config, kv_cache)
        self._backlog = Backlog(kv_cache)
        self.queues = RequestQueues(by_priority=True, touched=self._touch)
        self._kv_cache = kv_cache
        self._step_times = step_times
        self._fill = fill
        self._fair_shares = {background: FairShare(config.token_budget) for background in (False, True)}
        self._rows: dict[Level, Rows] = {}  # as far as asked for since they changed
        self._now = 0.0  # when the step that is planned began
        self._answered = Average(1.0)  # share of max_tokens that answers reached

    @property
    def step_time(self) -> StepTimeModel | None:
        """Predicts what steps take now; None: nothing is known."""
        return None if self._step_times is None else self._step_times.model

    def add(self, sequence: Sequence, now: float, in_flight: Several[StepPlan]) -> None:
        """See Fifo. The place is by when the sequence is due."""
        self._backlog.settle()
        self._place(sequence, now)
        self._predict_checked(sequence, now, in_flight)
        background, tenant = sequence.request.background, sequence.request.tenant
        self._fair_shares[background].join(tenant, self._backlog.tenants(background=background))
        self.queues.join(sequence)

    def quote(self, sequence: Sequence, now: float, in_flight: Several[StepPlan]) -> Quote:
        """See Fifo."""
        self._backlog.settle()
        self._place(sequence, now)
        found = self._predict_checked(sequence, now, in_flight, next_is_planned=True)
        if found is None:
            found = self.prediction(sequence, now, self._under_way(in_flight), next_is_planned=True)
        return Quote(
            cached_tokens=sequence.num_expected,
            first_token=found.first_token,
            inter_token=found.inter_token,
            longest_step=found.longest_step,
        )

    def prediction(
        self, sequence: Sequence, now: float, under_way: float, *, next_is_planned: bool = False
    ) -> Prediction:
        """Predict the latencies of a sequence that has a place and has not joined.

        Steps in flight end in ``under_way`` seconds. Raises ValueError without step times.
        """
        if self.step_time is None:
            raise ValueError("nothing is predicted without step times")
        order_key = self._find_prefix(sequence)
        own = self._backlog.work_of(sequence)
        first = self._backlog.ahead_of(sequence.request, own, order_key, self._fair_shares[False])
        newcomer = Newcomer(
            sequence, order_key, own, first, self._due_before(sequence, order_key, now), self._staying(sequence)
        )
        load = Load(
            queues=self.queues,
            backlog=self._backlog,
            kv_cache=self._kv_cache,
            step_time=self.step_time,
            fill=self._fill,
            answered=self._answered.value or 1.0,
            online=self._rows_to(Level.BEST_EFFORT),
            held_blocks=self._rows_to(Level.BACKGROUND).blocks,
            now=now,
            under_way=under_way,
            next_is_planned=next_is_planned,
        )
        return predict(newcomer, load)

    def leave(self, sequence: Sequence, reason: FinishReason) -> None:
        if sequence.num_generated and reason is not FinishReason.ERROR:  # ABORT counts: stop strings end so
            self._answered.observe(sequence.num_generated / sequence.params.max_tokens)
        self._fair_shares[sequence.request.background].leave(sequence.request.tenant)
        self._touch(sequence)

    def begin_step(self, now: float) -> None:
        self._now = now
        self._backlog.settle()
        self.queues.promote_starved(now)

    def charge(self, chunks: list[Chunk]) -> None:
        self._rows.clear()
        for chunk in chunks:
            if self._backlog.may_want(chunk.sequence):
                self._backlog.touch(chunk.sequence)
        for background, fair_share in self._fair_shares.items():
            if fair_share.compares:
                fair_share.charge([chunk for chunk in chunks if chunk.sequence.request.background is background])

    def rounds(self, prompts: list[Sequence], waiting: list[Sequence]) -> Iterable[Iterable[Sequence]]:
        """First the tenants that are not over their shares, then the others."""
        over: frozenset[str] = frozenset()
        if any(share.compares for share in self._fair_shares.values()) and (prompts or waiting):
            background = (prompts or waiting)[0].request.background
            self._backlog.settle()
            over = self._fair_shares[background].over(self._backlog.tenants(background=background))
        if not over:
            return super().rounds(prompts, waiting)
        return [
            merge(
                [s for s in prompts if (s.request.tenant in over) is second],
                [s for s in waiting if (s.request.tenant in over) is second],
                key=attrgetter("order_key"),
            )
            for second in (False, True)
        ]

    def limit_prompts(self, budget: StepBudget, decodes: list[Chunk], prompts: list[Sequence]) -> None:
        """By the inter-token targets of classes; where nothing has a target by ``fill``, by which prompts that must be
        early may lengthen steps."""
        if self.step_time is None or not (prompts or (self.queues.waiting and self._kv_cache.has_row)):
            return
        budget.cost = self.step_time.wide
        if decodes and self.queues.has(Level.WITH_TARGETS):
            start = prompts[0].num_computed if prompts else 0
            budget.seconds = time_for_prompts(self.step_time, decodes, start)
        else:
            positions = sum([chunk.start for chunk in decodes])
            due = self._due(islice(self._in_order(prompts), MOST_REGARDED), self._now)
            budget.seconds = self._fill.seconds_for_prompts(self.step_time, len(decodes), positions, due)

    def limit_background(self, budget: StepBudget, online: list[Chunk]) -> None:
        if self.step_time is not None and self.queues.has(Level.WITH_TARGETS):
            budget.cost, budget.seconds = self.step_time.wide, time_left(self.step_time, online)

    @property
    def may_preempt_any(self) -> bool:
        return self.queues.has_priorities or self.queues.is_mixed

    def may_preempt(self, one: Sequence, other: Sequence) -> bool:
        return may_preempt(one, other)

    def must_wait(self, sequence: Sequence) -> bool:
        """Whether a best-effort sequence would break an inter-token target."""
        if sequence.level is Level.WITH_TARGETS or not self.queues.has(Level.WITH_TARGETS):
            return False
        return self.misses_targets([*self.queues.running, sequence])

    def misses_targets(self, sequences: Several[Sequence]) -> bool:
        return breaks_targets(sequences, self.step_time)

    def _in_order(self, begun: list[Sequence]) -> Iterator[Sequence]:
        """Yield sequences with prompts to compute, those that have ``begun`` and waiting ones."""
        return merge(begun, islice(self.queues.waiting, MOST_REGARDED), key=attrgetter("order_key"))

    def _due(self, prompts: Iterable[Sequence], now: float) -> Iterator[DuePrompt]:
        """Yield what FillRule asks of those without targets."""
        for s in prompts:
            if s.level is Level.BEST_EFFORT:
                yield DuePrompt(s.num_to_compute, s.num_prompt, s.deadline - STARVATION_TIMEOUT_S - now)

    def _due_before(self, newcomer: Sequence, order_key: tuple[int, float, int], now: float) -> Iterator[DuePrompt]:
        """Yield what FillRule asks of prompts up to that of a newcomer."""
        begun = [s for s in self.queues.running_to(Level.BEST_EFFORT) if self._backlog.wants(s)]
        front = list(islice(self._in_order(begun), MOST_REGARDED))
        before = front[: bisect_left(front, order_key, key=order_key_of)]
        yield from self._due([*before, newcomer][:MOST_REGARDED], now)

    def _rows_to(self, level: Level) -> Rows:
        """Return the running sequences of this level and those before it."""
        if level not in self._rows:
            self._rows[level] = self._rows_of(self.queues.running_to(level))
        return self._rows[level]

    def _rows_of(self, sequences: list[Sequence]) -> Rows:
        return Rows(sequences, self._backlog, self._answered.value or 1.0)

    def _staying(self, newcomer: Sequence) -> Rows:
        """Return the running online sequences that a newcomer may not preempt."""
        level = Level.WITH_TARGETS if newcomer.service.has_targets else Level.BEST_EFFORT
        if not self.queues.has_priorities:
            return self._rows_to(level)
        return self._rows_of([s for s in self.queues.running_to(level) if not self.may_preempt(newcomer, s)])

    def _touch(self, sequence: Sequence) -> None:
        self._backlog.touch(sequence)
        if sequence.row is not None:
            self._rows.clear()

    def _place(self, sequence: Sequence, now: float) -> None:
        set_place(sequence, now, 0.0 if self.step_time is None else self.step_time.prompt_seconds(sequence.num_prompt))

    def _find_prefix(self, sequence: Sequence) -> tuple[int, float, int]:
        """Set what a placed newcomer will find in the prefix cache; return the order key that it will have."""
        order_key = self.queues.order_key_joined(sequence)
        self._backlog.find_prefix(sequence, order_key)
        return order_key

    def _predict_checked(
        self, sequence: Sequence, now: float, in_flight: Several[StepPlan], *, next_is_planned: bool = False
    ) -> Prediction | None:
        """Return the prediction of a placed sequence whose targets can be met, and None for others.

        A sequence that is served late loses its targets and gets another place. Raises WouldBeLateError for one that is
        not.
        """
        service, request = sequence.service, sequence.request
        if not service.has_targets or self.step_time is None:
            self._find_prefix(sequence)
            return None
        try:
            # If one came before those that gave up their targets, they might not be served at all.
            if not (service.serve_late and self._backlog.has_given_up(request.tenant, service.name)):
                found = self.prediction(sequence, now, self._under_way(in_flight), next_is_planned=next_is_planned)
                check(sequence, found)
                return found
        except WouldBeLateError:
            if not service.serve_late:
                raise
        # It would be late at any place, and at this one others would be too.
        sequence.drop_targets()
        self._place(sequence, now)
        self._find_prefix(sequence)
        return None

    def _under_way(self, in_flight: Iterable[StepPlan]) -> float:
        """Seconds in which the steps in flight end."""
        return 0.0 if self.step_time is None else sum([self.step_time.step_seconds(plan) for plan in in_flight])


def set_place(sequence: Sequence, now: float, prompt_seconds: float) -> None:
    """Give a sequence that arrives ``now`` its level and its place.

    Its due time is when it must begin for its first token to meet its target. One that must be late is due at once and
    not earlier, or it would delay sequences that arrived before it. ``prompt_seconds``: what its prompt takes.
    """
    if not sequence.request.background:
        sequence.level = Level.WITH_TARGETS if sequence.service.has_targets else Level.BEST_EFFORT
    promised = sequence.service.first_token_target(sequence.num_prompt)
    waited = sequence.request.waited_seconds
    if promised is None:
        slack = STARVATION_TIMEOUT_S + target(sequence.num_prompt) - waited
    else:
        slack = max(0.0, promised - waited - prompt_seconds)
    sequence.place = now + slack, sequence.arrival
