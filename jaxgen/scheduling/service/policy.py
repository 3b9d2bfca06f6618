"""The policy of a server: targets of service classes, priorities, and fair shares of tenants. Host only, no jax, no
clock."""

from collections import abc
from collections.abc import Iterable
from heapq import merge
from itertools import islice, takewhile
from operator import attrgetter

from jaxgen.cache.cache_manager import KVCacheManager
from jaxgen.core.config import SchedulerConfig
from jaxgen.core.errors import WouldBeLateError
from jaxgen.core.quote import Quote
from jaxgen.core.request import FinishReason
from jaxgen.core.sequence import Chunk, Sequence
from jaxgen.core.service_class import STARVATION_TIMEOUT_S
from jaxgen.core.standing import Level
from jaxgen.core.step_plan import StepPlan
from jaxgen.scheduling.cost_model import LinearCost
from jaxgen.scheduling.policy import Fifo
from jaxgen.scheduling.prefill_limits import DEFAULT_LIMITS, MOST_REGARDED, DuePrompt, PrefillLimits
from jaxgen.scheduling.queues import RequestQueues, may_preempt, set_place
from jaxgen.scheduling.service.backlog import Backlog
from jaxgen.scheduling.service.fair_share import FairShare
from jaxgen.scheduling.service.prediction import Prediction, Predictor, check
from jaxgen.scheduling.service.targets import breaks_targets, time_for_prompts, time_left
from jaxgen.scheduling.step_time import NO_COST, StepBudget, StepTimeModel, StepTimes


class ServicePolicy(Fifo):
    """Sequences whose classes have targets first, each before it is due; tenants within their fair shares.

    - All due times come nearer at the same rate, so the order does not change with time. Of sequences without targets
      one is promoted after each STARVATION_TIMEOUT_S.
    - Refuses a request whose class promises what cannot be kept, or that would break another's target, or serves it
      without targets where its class says so.
    - Cuts prompts so short that steps meet the inter-token targets of the sequences that decode.
    - Serves tenants that are over their fair share after the others.
    - Gives a tenant that has no row one of a tenant that has several.

    Without classes, priorities, several tenants and prompts of different lengths, every plan is that of ``Fifo``.
    Without ``step_times`` nothing is refused and no step is cut.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        kv_cache: KVCacheManager,
        *,
        step_times: StepTimes | None = None,
        limits: PrefillLimits = DEFAULT_LIMITS,
    ) -> None:
        super().__init__(config, kv_cache)
        self._backlog = Backlog(kv_cache)
        self.queues = RequestQueues(by_priority=True, on_change=self._mark_changed)
        self._kv_cache = kv_cache
        self._step_times = step_times
        self._limits = limits
        self._fair_shares = {background: FairShare(config.token_budget) for background in (False, True)}
        self._predictor = Predictor(self.queues, self._backlog, kv_cache, self._fair_shares[False], limits)
        self._now = 0.0  # when the step that is planned began

    @property
    def step_time(self) -> StepTimeModel | None:
        """Predicts what steps take now; None: nothing is known."""
        return None if self._step_times is None else self._step_times.model

    def place(self, sequence: Sequence, now: float, in_flight: abc.Sequence[StepPlan]) -> None:
        """See Fifo. The place is by when the sequence is due."""
        self._set_place(sequence, now, in_flight, next_is_planned=False)

    def join(self, sequence: Sequence) -> None:
        """See Fifo."""
        request = sequence.request
        wanting = self._backlog.tenants(background=request.background)
        self._fair_shares[request.background].join(request.tenant, request.tenant_weight, wanting)
        self.queues.join(sequence)

    def quote(self, sequence: Sequence, now: float, in_flight: abc.Sequence[StepPlan]) -> Quote:
        """See Fifo. One more step is planned before a request can follow its quote."""
        prediction = self._set_place(sequence, now, in_flight, next_is_planned=True)
        if prediction is None:
            prediction = self.prediction(sequence, now, self._under_way(in_flight), next_is_planned=True)
        assert self._step_times is not None, "predictions come from them"
        return Quote(
            cached_tokens=sequence.standing.num_expected,
            first_token=prediction.first_token,
            inter_token=prediction.inter_token,
            longest_step=prediction.longest_step,
            spread=self._step_times.spread,
        )

    def prediction(
        self, sequence: Sequence, now: float, under_way: float, *, next_is_planned: bool = False
    ) -> Prediction:
        """Predict the latencies of a sequence that has not joined, as of Predictor: it gets its place, nothing else.

        Raises ValueError without step times.
        """
        if self.step_time is None:
            raise ValueError("nothing is predicted without step times")
        self._backlog.update()
        set_place(sequence, now, self.step_time.prompt_seconds(sequence.num_given))
        return self._predictor.predict(sequence, self.step_time, now, under_way, next_is_planned=next_is_planned)

    def leave(self, sequence: Sequence, reason: FinishReason) -> None:
        if sequence.num_generated and reason is not FinishReason.ERROR:  # ABORT counts: stop strings end so
            self._predictor.answer_ratio.observe(sequence.num_generated / sequence.params.max_tokens)
        self._fair_shares[sequence.request.background].leave(sequence.request.tenant)
        self._mark_changed(sequence)

    def begin_step(self, now: float) -> None:
        self._now = now
        self._backlog.update()
        self.queues.promote_starved(now)

    def charge(self, chunks: list[Chunk]) -> None:
        self._predictor.running_changed()
        for chunk in chunks:
            if self._backlog.wants(chunk.sequence):
                self._backlog.mark_changed(chunk.sequence)
        for background, fair_share in self._fair_shares.items():
            if fair_share.compares:
                fair_share.charge([chunk for chunk in chunks if chunk.sequence.request.background is background])

    def rounds(self, prompts: list[Sequence], waiting: list[Sequence]) -> Iterable[Iterable[Sequence]]:
        """First the tenants that are not over their shares, then the others."""
        over: frozenset[str] = frozenset()
        if any(share.compares for share in self._fair_shares.values()) and (prompts or waiting):
            background = (prompts or waiting)[0].request.background
            self._backlog.update()
            over = self._fair_shares[background].over(self._backlog.tenants(background=background))
        if not over:
            return super().rounds(prompts, waiting)
        return [
            merge(
                [s for s in prompts if (s.request.tenant in over) is second],
                [s for s in waiting if (s.request.tenant in over) is second],
                key=attrgetter("standing.order_key"),
            )
            for second in (False, True)
        ]

    def owed(self, most: int, *, background: bool) -> list[Sequence]:
        """The first of each tenant that has no row."""
        return self.queues.owed(most, background=background)

    def limit_prompts(
        self, budget: StepBudget, decodes: list[Chunk], prompts: list[Sequence], *, any_forced: bool
    ) -> None:
        """Limit prompts by the inter-token targets of classes.

        If nothing has a target, ``limits`` limits them; prompts that must be early may lengthen steps.
        """
        begins = self.queues.waiting and self._kv_cache.has_row
        if self.step_time is None or not (prompts or begins or any_forced):
            return
        budget.cost = self.step_time.wide
        if decodes and self.queues.has(Level.WITH_TARGETS):
            start = prompts[0].num_computed if prompts else 0
            budget.seconds = time_for_prompts(self.step_time, decodes, start)
        else:
            contexts = sum([chunk.start for chunk in decodes])
            waiting = self.queues.waiting if prompts or begins else []
            order = merge(prompts, islice(waiting, MOST_REGARDED), key=attrgetter("standing.order_key"))
            due = (
                DuePrompt(s.num_to_compute, s.num_given, s.standing.deadline - STARVATION_TIMEOUT_S - self._now)
                for s in islice(order, MOST_REGARDED)
                if s.standing.level is Level.BEST_EFFORT
            )
            budget.seconds = self._limits.seconds_for_prompts(self.step_time, len(decodes), contexts, due)
            budget.spare = self._limits.spare(self.step_time, len(decodes), contexts, budget.seconds)

    def limit_background(self, budget: StepBudget, online: list[Chunk]) -> None:
        if self.step_time is not None and self.queues.has(Level.WITH_TARGETS):
            budget.cost, budget.seconds = self.step_time.wide, time_left(self.step_time, online)

    def decode_cost(self, rows: int) -> LinearCost:
        return NO_COST if self.step_time is None else self.step_time.decode_cost(rows)

    @property
    def may_preempt_any(self) -> bool:
        return self.queues.has_priorities or self.queues.is_mixed

    def may_preempt(self, waiting: Sequence, running: Sequence) -> bool:
        return may_preempt(waiting, running)

    def may_give(self, newcomer: Sequence) -> Iterable[Sequence]:
        return self.queues.tenant_queues_of(newcomer).may_give(self.queues.running, newcomer)

    def last_running(self) -> Sequence:
        """The last one whose tenant has further rows, of the level of the last of all."""
        running = self.queues.running
        last = running[-1]
        tenants = self.queues.tenant_queues_of(last)
        of_level = takewhile(lambda sequence: sequence.standing.level is last.standing.level, reversed(running))
        return next((sequence for sequence in of_level if tenants.has_others(sequence)), last)

    def must_wait(self, sequence: Sequence) -> bool:
        """Whether a best-effort sequence would break an inter-token target."""
        if sequence.standing.level is Level.WITH_TARGETS or not self.queues.has(Level.WITH_TARGETS):
            return False
        return self.misses_targets([*self.queues.running, sequence])

    def misses_targets(self, sequences: abc.Sequence[Sequence]) -> bool:
        return breaks_targets(sequences, self.step_time)

    def _mark_changed(self, sequence: Sequence) -> None:
        self._backlog.mark_changed(sequence)
        if sequence.row is not None:
            self._predictor.running_changed()

    def _set_place(
        self, sequence: Sequence, now: float, in_flight: abc.Sequence[StepPlan], *, next_is_planned: bool
    ) -> Prediction | None:
        """Set the place of a new sequence; return what is predicted of one whose targets can be met.

        One that is served late loses its targets, and its place by them. Raises WouldBeLateError for one that is not.
        """
        self._backlog.update()
        service, tenant = sequence.standing.service, sequence.request.tenant
        if service.has_targets and self.step_time is not None:
            try:
                # If it came before sequences that gave up their targets, these might not be served at all.
                if not (service.serve_late and self._backlog.has_given_up(tenant, service.name)):
                    prediction = self.prediction(
                        sequence, now, self._under_way(in_flight), next_is_planned=next_is_planned
                    )
                    check(sequence, prediction)
                    return prediction
            except WouldBeLateError:
                if not service.serve_late:
                    raise
            # It would be late at any place, and at this one others would be too.
            sequence.standing.service = service.without_targets()
        set_place(sequence, now, 0.0)
        self._backlog.find_prefix(sequence, self.queues.order_key_joined(sequence))
        return None

    def _under_way(self, in_flight: Iterable[StepPlan]) -> float:
        """Seconds in which the steps in flight end."""
        return 0.0 if self.step_time is None else sum([self.step_time.step_seconds(plan) for plan in in_flight])
