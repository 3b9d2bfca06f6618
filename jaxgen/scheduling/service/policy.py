"""The policy of a server: targets of service classes, priorities, and fair shares of tenants. Host only, no jax, no
clock."""

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
from jaxgen.scheduling.fill import DEFAULT_FILL, MOST_REGARDED, FillRule
from jaxgen.scheduling.policy import Fifo
from jaxgen.scheduling.service.fair_share import FairShare
from jaxgen.scheduling.service.queues import ServiceQueues, may_preempt, set_place
from jaxgen.scheduling.service.slo import Prediction, SchedulerSnapshot, check, predict
from jaxgen.scheduling.service.targets import breaks_targets, time_for_prompts, time_left
from jaxgen.scheduling.step_time import StepBudget


class ServicePolicy(Fifo):
    """Sequences whose classes have targets first, each before it is due; tenants within their fair shares.

    - Refuses a request whose class promises what cannot be kept, or that would break another's target, or serves it
      without targets where its class says so.
    - Cuts prompts so short that steps meet the inter-token targets of the sequences that decode.
    - Serves tenants that are over their fair share after the others.

    Without classes, priorities and several tenants every plan is that of ``Fifo``. Without ``step_time`` nothing is
    refused and no step is cut.
    """

    def __init__(self, config: SchedulerConfig, kv_cache: KVCacheManager) -> None:
        super().__init__(config, kv_cache)
        self.queues: ServiceQueues = ServiceQueues()
        self.fill: FillRule = DEFAULT_FILL
        self._kv_cache = kv_cache
        self._fair_shares = {background: FairShare(config.token_budget) for background in (False, True)}
        self._now = 0.0  # when the step that is planned began
        self._answered = Average(1.0)  # share of max_tokens that answers reached

    def place(self, sequence: Sequence, now: float, in_flight: Iterable[StepPlan]) -> None:
        """Set level and place, by when the sequence is due. Raises WouldBeLateError."""
        prompt_seconds = 0.0 if self.step_time is None else self.step_time.prompt_seconds(sequence.num_prompt)
        set_place(sequence, now, prompt_seconds)
        if sequence.service.has_targets and not self._meets_targets(sequence, now, in_flight):
            # It would be late at any place, and at this one others would be too.
            sequence.drop_targets()
            set_place(sequence, now, prompt_seconds)

    def prediction(self, sequence: Sequence, now: float, under_way: float) -> Prediction:
        """Predict the latencies of a sequence that arrives now and has not joined: it gets its place, nothing else.

        Steps in flight end in ``under_way`` seconds. Raises ValueError without ``step_time``.
        """
        if self.step_time is None:
            raise ValueError("nothing is predicted without step_time")
        set_place(sequence, now, self.step_time.prompt_seconds(sequence.num_prompt))
        answered = self._answered.value or 1.0
        load = SchedulerSnapshot(self.queues, self._kv_cache, self._fair_shares[False], answered, self.fill)
        return predict(sequence, load, self.step_time, now, under_way)

    def quote(self, sequence: Sequence, now: float, in_flight: Iterable[StepPlan]) -> Quote:
        """See Fifo. The next step is planned before a request can follow its quote: it counts as one more in flight."""
        coming = [*in_flight, *list(in_flight)[-1:]]
        self.place(sequence, now, coming)
        found = self.prediction(sequence, now, self._under_way(coming))
        return Quote(
            cached_tokens=sequence.num_expected,
            first_token=found.first_token,
            inter_token=found.inter_token,
            longest_step=found.longest_step,
        )

    def join(self, sequence: Sequence) -> None:
        background = sequence.request.background
        fair_share = self._fair_shares[background]
        has_others = fair_share.has_others(sequence)
        fair_share.join(sequence, self.queues.wanting(background=background) if has_others else ())
        super().join(sequence)

    def leave(self, sequence: Sequence, reason: FinishReason) -> None:
        if sequence.num_generated and reason is not FinishReason.ERROR:  # ABORT counts: stop strings end so
            self._answered.observe(sequence.num_generated / sequence.params.max_tokens)
        self._fair_shares[sequence.request.background].leave(sequence)

    def begin_step(self, now: float) -> None:
        self._now = now
        self.queues.promote_starved(now)

    def charge(self, chunks: list[Chunk]) -> None:
        for background, fair_share in self._fair_shares.items():
            if fair_share.compares:
                fair_share.charge([chunk for chunk in chunks if chunk.sequence.request.background is background])

    def rounds(self, prompts: list[Sequence], waiting: list[Sequence]) -> Iterable[Iterable[Sequence]]:
        """First the tenants that are not over their shares, then the others."""
        if not any(share.compares for share in self._fair_shares.values()):
            return super().rounds(prompts, waiting)
        everyone = (*prompts, *waiting)
        over = self._fair_shares[everyone[0].request.background].over(everyone) if everyone else frozenset()
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
            budget.seconds = self.fill.seconds_for_prompts(self.step_time, len(decodes), positions, self._due(prompts))

    def _due(self, prompts: list[Sequence]) -> Iterator[tuple[Sequence, float]]:
        """The first online prompts in the order of service, those of ``prompts`` and waiting ones, and the seconds left
        of the time that the first token of each is granted."""
        order = merge(prompts, islice(self.queues.waiting, MOST_REGARDED), key=attrgetter("order_key"))
        for sequence in islice(order, MOST_REGARDED):
            if sequence.level is Level.BEST_EFFORT:
                yield sequence, sequence.deadline - STARVATION_TIMEOUT_S - self._now

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

    def _meets_targets(self, sequence: Sequence, now: float, in_flight: Iterable[StepPlan]) -> bool:
        """Whether the targets of its class can be met; False where it is served all the same. Raises WouldBeLateError
        where it is not."""
        serve_late = sequence.service.serve_late
        if self.step_time is None:
            return True
        if serve_late and self.queues.late_one_waits(sequence):
            return False  # if it came before those, they might not be served at all
        try:
            check(sequence, self.prediction(sequence, now, self._under_way(in_flight)))
        except WouldBeLateError:
            if serve_late:
                return False
            raise
        return True

    def _under_way(self, in_flight: Iterable[StepPlan]) -> float:
        """Seconds in which the steps in flight end."""
        return 0.0 if self.step_time is None else sum([self.step_time.step_seconds(plan) for plan in in_flight])
