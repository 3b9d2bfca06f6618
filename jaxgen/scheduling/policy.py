"""The questions that planning leaves to a policy, answered first in, first out. Host only, no jax, no clock."""

from collections import abc
from collections.abc import Iterable
from heapq import merge
from operator import attrgetter

from jaxgen.cache.cache_manager import KVCacheManager
from jaxgen.core.config import SchedulerConfig
from jaxgen.core.quote import Quote
from jaxgen.core.request import FinishReason
from jaxgen.core.sequence import Chunk, Sequence
from jaxgen.core.step_plan import StepPlan
from jaxgen.scheduling.cost_model import LinearCost
from jaxgen.scheduling.queues import RequestQueues
from jaxgen.scheduling.step_time import NO_COST, StepBudget


class Fifo:
    """Requests in the order of arrival; background requests after all others, and preempted for them.

    Other policies derive from this one. It answers nothing to most questions, so that the planner asks each of them
    without a condition. A policy changes which sequence is served when, and how much of a step prompts get. The planner
    keeps the rules of every plan: budget, rows, blocks.
    """

    def __init__(self, config: SchedulerConfig, kv_cache: KVCacheManager) -> None:
        self.queues = RequestQueues()

    def place(self, sequence: Sequence, now: float, in_flight: abc.Sequence[StepPlan]) -> None:
        """Give a new sequence its place in the order. ``in_flight``: the steps that end before its own.

        Only the sequence changes. Raises WouldBeLateError if the policy refuses it.
        """

    def join(self, sequence: Sequence) -> None:
        """Put a sequence that has its place among the waiting ones."""
        self.queues.join(sequence)

    def quote(self, sequence: Sequence, now: float, in_flight: abc.Sequence[StepPlan]) -> Quote:
        """Predict the latencies of a sequence that would be added now; only the sequence changes.

        Raises as ``place`` does, and ValueError where nothing is predicted: without step times, and here always.
        """
        raise ValueError("first in, first out predicts nothing")

    def leave(self, sequence: Sequence, reason: FinishReason) -> None:
        """Forget a sequence that ends."""

    def begin_step(self, now: float) -> None:
        """Change the order of service by the time that has passed."""

    def charge(self, chunks: list[Chunk]) -> None:
        """Take note of a step's chunks."""

    def rounds(self, prompts: list[Sequence], waiting: list[Sequence]) -> Iterable[Iterable[Sequence]]:
        """Return, round by round, the sequences whose prompts may get a piece of the step, in the order of service.

        ``prompts`` run, ``waiting`` wait; all are online, or all are background. Within a round a sequence that must
        wait makes all behind it wait; the next round begins all the same.
        """
        return (merge(prompts, waiting, key=attrgetter("standing.order_key")),)

    def owed(self, most: int, *, background: bool) -> list[Sequence]:
        """Return online or background sequences that wait, ``most`` at most.

        They begin before others of their kind where rows or blocks are scarce.
        """
        return []

    def limit_prompts(
        self, budget: StepBudget, decodes: list[Chunk], prompts: list[Sequence], *, any_forced: bool
    ) -> None:
        """Lower the time that online prompts may take in a step with these decodes. ``prompts``: the
        running ones. ``any_forced``: forced tokens follow some of the decodes, and share the same time."""

    def limit_background(self, budget: StepBudget, online: list[Chunk]) -> None:
        """Lower the time that background work, or drafts, may take in a step with these online chunks."""

    def decode_cost(self, rows: int) -> LinearCost:
        """Return the cost of steps of about ``rows`` decodes and nothing else, as far as it is known."""
        return NO_COST

    @property
    def may_preempt_any(self) -> bool:
        """Whether a waiting sequence may preempt a running one at all: ``may_preempt`` is asked only then."""
        return self.queues.is_mixed

    def may_preempt(self, waiting: Sequence, running: Sequence) -> bool:
        """Whether sequence ``waiting`` may preempt sequence ``running``. Implies that it precedes that one."""
        return running.request.background and not waiting.request.background

    def may_give(self, newcomer: Sequence) -> Iterable[Sequence]:
        """Return running sequences that may be preempted for one of ``owed``, the first to preempt first."""
        return ()

    def last_running(self) -> Sequence:
        """Return the running sequence that is preempted where a decode finds no block."""
        return self.queues.running[-1]

    def must_wait(self, sequence: Sequence) -> bool:
        """Whether this sequence and all behind it in its round must wait, although there is room for them."""
        return False

    def misses_targets(self, sequences: abc.Sequence[Sequence]) -> bool:
        """Whether these sequences, all decoding, miss a target that some of them must be preempted for."""
        return False
